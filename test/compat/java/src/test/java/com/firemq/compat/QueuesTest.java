package com.firemq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.Return;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.junit.jupiter.api.Test;

/** Queues and exchanges: time to live, dead letters, limits, priorities, a single active consumer, routing. */
class QueuesTest extends Suite {
  private static AMQP.BasicProperties priority(int n) {
    return new AMQP.BasicProperties.Builder().priority(n).build();
  }

  @Test
  void expiredMessagesAreDeadLettered() throws Exception {
    String dead = queue();
    String shortLived = queue(Map.of("x-message-ttl", 20, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
    publish(shortLived, "m");
    eventually(() -> ready(dead) == 1);
    GetResponse got = channel.basicGet(dead, true);
    Map<String, Object> headers = got.getProps().getHeaders();
    Map<?, ?> death = (Map<?, ?>) ((List<?>) headers.get("x-death")).get(0);
    assertEquals("expired " + shortLived + " 1", death.get("reason") + " " + death.get("queue") + " " + death.get("count"));
    assertEquals("expired " + shortLived, headers.get("x-first-death-reason") + " " + headers.get("x-first-death-queue"));
    assertEquals(0, ready(shortLived));
  }

  @Test
  void aMessagesOwnExpiration() throws Exception {
    String queue = queue();
    publish(queue, "m", new AMQP.BasicProperties.Builder().expiration("20").build());
    eventually(() -> ready(queue) == 0);
  }

  @Test
  void rejectedMessagesAreDeadLetteredAndCounted() throws Exception {
    String dead = queue();
    String work = queue(Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
    channel.queueBind(work, "amq.direct", work);
    publish(work, "m");
    channel.basicReject(channel.basicGet(work, false).getEnvelope().getDeliveryTag(), false);
    eventually(() -> ready(dead) == 1);
    Map<?, ?> death = (Map<?, ?>) ((List<?>) channel.basicGet(dead, true).getProps().getHeaders().get("x-death")).get(0);
    assertEquals("rejected", death.get("reason").toString());
  }

  @Test
  void aFullQueueDropsItsHead() throws Exception {
    String queue = queue(Map.of("x-max-length", 2));
    for (int n = 0; n < 4; n++) {
      publish(queue, n);
    }
    assertEquals("2", take(queue));
    assertEquals("3", take(queue));
    assertNull(take(queue));
  }

  @Test
  void anUnusedQueueExpires() throws Exception {
    String queue = unique("expires");
    channel.queueDeclare(queue, false, false, false, Map.of("x-expires", 50));
    BlockingQueue<Return> returned = new LinkedBlockingQueue<>();
    channel.addReturnListener(returned::add);
    channel.confirmSelect();
    eventually(() -> { // a publish is no use of the queue
      channel.basicPublish("", queue, true, null, bytes("m"));
      channel.waitForConfirmsOrDie(LIMIT.toMillis());
      return !returned.isEmpty();
    });
  }

  @Test
  void higherPrioritiesComeFirst() throws Exception {
    String queue = queue(Map.of("x-max-priority", 10));
    publish(queue, "low", priority(1));
    publish(queue, "high", priority(9));
    publish(queue, "none");
    publish(queue, "high too", priority(9));
    for (String want : List.of("high", "high too", "low", "none")) {
      assertEquals(want, take(queue));
    }
  }

  @Test
  void oneActiveConsumerAtATime() throws Exception {
    String queue = queue(Map.of("x-single-active-consumer", true));
    Channel first = connection.createChannel();
    Channel second = connection.createChannel();
    BlockingQueue<Delivery> active = consume(first, queue, false);
    BlockingQueue<Delivery> standby = consume(second, queue, false);
    publish(queue, "1");
    publish(queue, "2");
    ack(first, next(active));
    next(active);
    assertTrue(standby.isEmpty());
    first.close();
    Delivery again = next(standby);
    assertEquals("2 true", text(again.getBody()) + " " + again.getEnvelope().isRedeliver());
    ack(second, again);
  }

  @Test
  void consumerPriorities() throws Exception {
    String queue = queue();
    BlockingQueue<Delivery> low = consume(channel, queue, true, Map.of("x-priority", -1));
    BlockingQueue<Delivery> high = consume(channel, queue, true, Map.of("x-priority", 5));
    for (int n = 0; n < 5; n++) {
      publish(queue, n);
    }
    for (int n = 0; n < 5; n++) {
      assertEquals(String.valueOf(n), text(next(high).getBody()));
    }
    assertTrue(low.isEmpty());
  }

  @Test
  void anAutoDeleteQueueGoesWithItsLastConsumer() throws Exception {
    String queue = channel.queueDeclare(unique("auto"), false, false, true, null).getQueue();
    channel.basicCancel(channel.basicConsume(queue, (tag, message) -> { }, tag -> { }));
    assertRefused(404, "NOT_FOUND - no queue '" + queue + "' in vhost '/'", () -> connection.createChannel().queueDeclarePassive(queue));
  }

  @Test
  void aQuorumQueueLimitsDeliveries() throws Exception {
    String dead = queue();
    String queue = unique("quorum");
    channel.queueDeclare(queue, true, false, false,
        Map.of("x-queue-type", "quorum", "x-delivery-limit", 2, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
    publish(queue, "m");
    BlockingQueue<Delivery> inbox = consume(channel, queue, false);
    for (int n = 0; n < 3; n++) {
      Delivery delivery = next(inbox);
      assertEquals(n == 0 ? null : (Object) (long) n, delivery.getProperties().getHeaders() == null ? null : delivery.getProperties().getHeaders().get("x-delivery-count"));
      channel.basicNack(delivery.getEnvelope().getDeliveryTag(), false, true);
    }
    eventually(() -> ready(dead) == 1);
    Map<?, ?> death = (Map<?, ?>) ((List<?>) channel.basicGet(dead, true).getProps().getHeaders().get("x-death")).get(0);
    assertEquals("delivery_limit", death.get("reason").toString());
    channel.queueDelete(queue);
  }

  @Test
  void exchangesOfEveryTypeRoute() throws Exception {
    String topic = unique("topic");
    String headers = unique("headers");
    String fanout = unique("fanout");
    String queue = queue();
    String rest = queue();
    channel.exchangeDeclare(fanout, BuiltinExchangeType.FANOUT, false, true, null);
    channel.exchangeDeclare(headers, BuiltinExchangeType.HEADERS, false, true, null);
    channel.exchangeDeclare(topic, BuiltinExchangeType.TOPIC, false, true, Map.of("alternate-exchange", "amq.fanout"));
    channel.exchangeBind(headers, topic, "order.#");
    channel.exchangeBind(fanout, headers, "", Map.of("x-match", "all", "region", "eu"));
    channel.queueBind(queue, fanout, "");
    channel.queueBind(rest, "amq.fanout", "");
    for (String[] message : new String[][] {{"order.paid.now", "eu"}, {"order.paid", "us"}, {"invoice", "eu"}}) {
      channel.basicPublish(topic, message[0], new AMQP.BasicProperties.Builder().headers(Map.of("region", message[1])).build(), bytes(message[0]));
    }
    assertEquals("order.paid.now", take(queue));
    assertNull(take(queue));
    eventually(() -> ready(rest) >= 1);
    assertEquals("invoice", take(rest));
    channel.exchangeDelete(topic);
  }
}
