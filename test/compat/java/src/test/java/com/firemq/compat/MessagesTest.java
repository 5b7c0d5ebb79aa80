package com.firemq.compat;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.RpcServer;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Publishing and consuming: confirms, returns, settlement, prefetch, transactions, replies. */
class MessagesTest extends Suite {
  @Test
  void everyPublishIsConfirmed() throws Exception {
    String queue = queue();
    BlockingQueue<Long> confirmed = new LinkedBlockingQueue<>();
    channel.confirmSelect();
    channel.addConfirmListener((tag, multiple) -> confirmed.add(tag), (tag, multiple) -> confirmed.add(-tag));
    for (int n = 0; n < 2000; n++) {
      channel.basicPublish("", queue, null, bytes(n));
    }
    assertTrue(channel.waitForConfirms(LIMIT.toMillis()));
    assertEquals(2000, ready(queue));
    long last = 0;
    for (Long tag : confirmed) {
      assertTrue(tag > last, "confirms rise");
      last = tag;
    }
    assertEquals(2000, last);
  }

  @Test
  void persistentMessagesAreConfirmed() throws Exception {
    String queue = channel.queueDeclare(unique("durable"), true, false, false, null).getQueue();
    for (int n = 0; n < 50; n++) {
      publish(queue, n, MessageProperties.PERSISTENT_TEXT_PLAIN);
    }
    assertEquals(50, channel.queueDelete(queue).getMessageCount());
  }

  @Test
  void aMandatoryMessageComesBackBeforeItsConfirm() throws Exception {
    BlockingQueue<String> events = new LinkedBlockingQueue<>();
    channel.confirmSelect();
    channel.addReturnListener(back -> events.add(back.getReplyCode() + " " + back.getReplyText() + " " + back.getRoutingKey() + " " + text(back.getBody())));
    channel.addConfirmListener((tag, multiple) -> events.add("confirm " + tag), (tag, multiple) -> events.add("nack"));
    channel.basicPublish("amq.direct", "nowhere", true, null, bytes("back"));
    assertEquals("312 NO_ROUTE nowhere back", next(events));
    assertEquals("confirm 1", next(events));
  }

  @Test
  void aFullQueueThatRejectsNacks() throws Exception {
    String queue = queue(Map.of("x-max-length", 1, "x-overflow", "reject-publish"));
    publish(queue, "fits");
    IOException nacked = assertThrows(IOException.class, () -> publish(queue, "too many"));
    assertEquals("nacks received", nacked.getMessage());
  }

  @Test
  void messagesArriveInOrderWithRisingTags() throws Exception {
    String queue = queue();
    for (int n = 0; n < 500; n++) {
      channel.basicPublish("", queue, null, bytes(n));
    }
    BlockingQueue<Delivery> inbox = consume(channel, queue, true);
    for (int n = 0; n < 500; n++) {
      Delivery delivery = next(inbox);
      assertEquals(n + " " + (n + 1), text(delivery.getBody()) + " " + delivery.getEnvelope().getDeliveryTag());
    }
  }

  @Test
  void getReportsWhatRemains() throws Exception {
    String queue = queue();
    assertNull(channel.basicGet(queue, true));
    publish(queue, "1");
    publish(queue, "2");
    GetResponse got = channel.basicGet(queue, false);
    assertEquals("1 1 false", text(got.getBody()) + " " + got.getMessageCount() + " " + got.getEnvelope().isRedeliver());
    channel.basicAck(got.getEnvelope().getDeliveryTag(), false);
    assertEquals("2", take(queue));
  }

  @Test
  void requeuedMessagesReturnToTheirPlace() throws Exception {
    String queue = queue();
    for (int n = 1; n <= 4; n++) {
      publish(queue, n);
    }
    long[] tags = new long[3];
    for (int n = 0; n < 3; n++) {
      tags[n] = channel.basicGet(queue, false).getEnvelope().getDeliveryTag();
    }
    channel.basicNack(tags[2], false, true);
    channel.basicReject(tags[0], true);
    channel.basicNack(tags[1], false, true);
    for (int n = 1; n <= 4; n++) {
      GetResponse got = channel.basicGet(queue, true);
      assertEquals(n + " " + (n < 4), text(got.getBody()) + " " + got.getEnvelope().isRedeliver());
    }
  }

  @Test
  void recoverRequeuesAll() throws Exception {
    String queue = queue();
    publish(queue, "m");
    channel.basicGet(queue, false);
    channel.basicRecover(true);
    assertTrue(channel.basicGet(queue, true).getEnvelope().isRedeliver());
  }

  @Test
  void prefetchHoldsDeliveriesBack() throws Exception {
    String queue = queue();
    for (int n = 0; n < 10; n++) {
      publish(queue, n);
    }
    Channel taker = connection.createChannel();
    taker.basicQos(3);
    BlockingQueue<Delivery> inbox = consume(taker, queue, false);
    Delivery third = null;
    for (int n = 0; n < 3; n++) {
      third = next(inbox);
    }
    assertEquals(7, ready(queue));
    taker.basicAck(third.getEnvelope().getDeliveryTag(), true);
    for (int n = 3; n < 6; n++) {
      assertEquals(String.valueOf(n), text(next(inbox).getBody()));
    }
    assertEquals(4, ready(queue));
    assertTrue(inbox.isEmpty());
  }

  @Test
  void aGlobalPrefetchLimitsTheChannel() throws Exception {
    String queue = queue();
    for (int n = 0; n < 10; n++) {
      publish(queue, n);
    }
    Channel taker = connection.createChannel();
    taker.basicQos(4, true);
    BlockingQueue<Delivery> one = consume(taker, queue, false);
    BlockingQueue<Delivery> two = consume(taker, queue, false);
    eventually(() -> one.size() + two.size() == 4);
    assertEquals(6, ready(queue));
  }

  @Test
  void aConsumerIsToldWhenItsQueueIsDeleted() throws Exception {
    String queue = queue();
    BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();
    channel.basicConsume(queue, true, "tag", (tag, message) -> { }, cancelled::add);
    connection.createChannel().queueDelete(queue);
    assertEquals("tag", next(cancelled));
  }

  @Test
  void cancelStopsDeliveries() throws Exception {
    String queue = queue();
    String tag = channel.basicConsume(queue, (t, message) -> { }, t -> { });
    channel.basicCancel(tag);
    publish(queue, "later");
    assertEquals(1, ready(queue));
    assertEquals(0, channel.consumerCount(queue));
  }

  @Test
  void aTransactionPublishesAndAcksAtCommit() throws Exception {
    String queue = queue();
    Channel transactional = connection.createChannel();
    transactional.txSelect();
    transactional.basicPublish("", queue, null, bytes("m"));
    assertEquals(0, ready(queue));
    transactional.txCommit();
    assertEquals(1, ready(queue));
    transactional.basicPublish("", queue, null, bytes("m"));
    transactional.txRollback();
    GetResponse got = transactional.basicGet(queue, false);
    transactional.basicAck(got.getEnvelope().getDeliveryTag(), false);
    transactional.txRollback();
    transactional.basicAck(got.getEnvelope().getDeliveryTag(), false);
    transactional.txCommit();
    transactional.close();
    assertEquals(0, ready(queue));
  }

  @Test
  void directReplyToByTheLibrarysRpc() throws Exception {
    String queue = queue();
    Channel serving = connection.createChannel();
    RpcServer server = new RpcServer(serving, queue) {
      @Override
      public byte[] handleCall(Delivery request, AMQP.BasicProperties reply) {
        int n = Integer.parseInt(text(request.getBody()));
        return bytes(n * n);
      }
    };
    Thread loop = new Thread(() -> {
      try {
        server.mainloop();
      } catch (IOException e) {
        throw new AssertionError(e);
      }
    });
    loop.start();
    RpcClientParams params = new RpcClientParams().channel(connect(factory()).createChannel()).exchange("").routingKey(queue).timeout((int) LIMIT.toMillis());
    RpcClient client = new RpcClient(params);
    for (int n = 0; n < 20; n++) {
      assertEquals(String.valueOf(n * n), text(client.primitiveCall(bytes(n))));
    }
    client.close();
    serving.abort(); // which ends the loop
    loop.join(LIMIT.toMillis());
    assertFalse(loop.isAlive());
  }

  @ParameterizedTest
  @ValueSource(ints = {0, 1, 131064, 131065, 8 << 20})
  void bodiesComeBackEqual(int size) throws Exception {
    String queue = queue();
    byte[] body = new byte[size];
    for (int n = 0; n < size; n++) {
      body[n] = (byte) (n * 31);
    }
    channel.basicPublish("", queue, null, body);
    assertArrayEquals(body, channel.basicGet(queue, true).getBody());
  }

  @Test
  void propertiesAndHeadersComeBack() throws Exception {
    String queue = queue();
    Map<String, Object> headers = new HashMap<>();
    headers.put("yes", true);
    headers.put("int", -7);
    headers.put("long", 1L << 40);
    headers.put("short", (short) 3);
    headers.put("double", 0.1);
    headers.put("float", 0.5f);
    headers.put("none", null);
    headers.put("bytes", new byte[] {0, (byte) 255});
    headers.put("date", new Date(1_700_000_000_000L));
    headers.put("list", List.of(1, true));
    headers.put("table", Map.of("deep", Map.of("n", 1)));
    AMQP.BasicProperties sent = new AMQP.BasicProperties("text/plain", "identity", headers, 2, 7, "c-1", "answers", "60000", "m-1",
        new Date(1_700_000_000_000L), "greeting", "guest", "suite", null);
    publish(queue, "m", sent);
    AMQP.BasicProperties got = channel.basicGet(queue, true).getProps();
    Map<String, Object> back = new HashMap<>(got.getHeaders());
    assertArrayEquals((byte[]) headers.remove("bytes"), (byte[]) back.remove("bytes"));
    assertEquals(headers, back);
    assertEquals(sent.builder().headers(null).build(), got.builder().headers(null).build());
  }

  @Test
  void manyChannelsWorkSideBySide() throws Exception {
    String queue = queue();
    List<Channel> channels = new ArrayList<>();
    for (int n = 0; n < 500; n++) {
      Channel one = connection.createChannel();
      one.confirmSelect();
      channels.add(one);
    }
    for (Channel one : channels) {
      one.basicPublish("", queue, null, bytes("m"));
    }
    for (Channel one : channels) {
      one.waitForConfirmsOrDie(LIMIT.toMillis());
    }
    assertEquals(500, ready(queue));
    for (Channel one : channels) {
      one.close();
    }
  }
}
