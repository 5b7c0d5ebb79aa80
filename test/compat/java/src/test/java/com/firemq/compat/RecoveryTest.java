package com.firemq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.rabbitmq.client.BlockedListener;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoverableConnection;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.ShutdownSignalException;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/** Heartbeats, alarms, and what the client brings back by itself after a restart. */
class RecoveryTest extends Suite {
  @Test
  void heartbeatsKeepAnIdleConnection() throws Exception {
    ConnectionFactory factory = factory();
    factory.setRequestedHeartbeat(1);
    factory.setAutomaticRecoveryEnabled(false);
    Connection idle = connect(factory);
    assertEquals(1, idle.getHeartbeat());
    BlockingQueue<ShutdownSignalException> closed = new LinkedBlockingQueue<>();
    idle.addShutdownListener(closed::add);
    assertNull(closed.poll(4, TimeUnit.SECONDS));
    idle.createChannel().queueDeclare();
  }

  @Test
  void theServerSaysWhatItCan() {
    Map<?, ?> capabilities = (Map<?, ?>) connection.getServerProperties().get("capabilities");
    for (String name : new String[] {"publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
        "connection.blocked", "consumer_priorities", "authentication_failure_close", "per_consumer_qos", "direct_reply_to"}) {
      assertEquals(true, capabilities.get(name), name);
    }
    assertEquals(2047, connection.getChannelMax());
    assertEquals(131072, connection.getFrameMax());
  }

  @Test
  @EnabledIfEnvironmentVariable(named = "BROKER_CONTROL", matches = "http.*")
  void aPublisherIsToldOfAnAlarm() throws Exception {
    BlockingQueue<String> told = new LinkedBlockingQueue<>();
    connection.addBlockedListener(new BlockedListener() {
      @Override
      public void handleBlocked(String reason) {
        told.add(reason);
      }

      @Override
      public void handleUnblocked() {
        told.add("unblocked");
      }
    });
    String queue = queue();
    publish(queue, "m");
    control("alarm");
    try {
      channel.basicPublish("", queue, null, bytes("m"));
      String reason = next(told);
      assertTrue(reason.startsWith("low on "), reason);
      channel.basicPublish("", queue, null, bytes("m"));
    } finally {
      control("clear");
    }
    assertEquals("unblocked", next(told));
    channel.waitForConfirmsOrDie(LIMIT.toMillis());
    assertEquals(3, ready(queue));
  }

  @Test
  @EnabledIfEnvironmentVariable(named = "BROKER_CONTROL", matches = "http.*")
  void topologyConsumersAndPrefetchComeBack() throws Exception {
    String exchange = unique("exchange");
    channel.exchangeDeclare(exchange, BuiltinExchangeType.TOPIC, false, true, null);
    String upper = unique("upper");
    channel.exchangeDeclare(upper, BuiltinExchangeType.DIRECT, false, true, null);
    channel.exchangeBind(exchange, upper, "order.paid");
    String named = channel.queueDeclare(unique("named"), false, true, true, Map.of("x-max-length", 100)).getQueue();
    String serverNamed = channel.queueDeclare().getQueue();
    channel.queueBind(named, exchange, "order.*");
    channel.queueBind(serverNamed, exchange, "order.*");
    channel.basicQos(2);
    BlockingQueue<Delivery> one = consume(channel, named, false);
    BlockingQueue<Delivery> two = consume(channel, serverNamed, true);

    BlockingQueue<Recoverable> recovered = recoveries(connection);
    for (int n = 0; n < 2; n++) {
      control("restart");
      next(recovered);
      for (int message = 0; message < 3; message++) {
        channel.basicPublish(upper, "order.paid", null, bytes(message));
      }
      Delivery first = next(one);
      assertEquals("0", text(first.getBody()));
      next(one);
      assertEquals("0", text(next(two).getBody()));
      next(two);
      next(two);
      assertTrue(one.isEmpty(), "the prefetch is back");
      ack(channel, first);
      Delivery third = next(one);
      channel.basicAck(third.getEnvelope().getDeliveryTag(), true);
    }
  }

  @Test
  @EnabledIfEnvironmentVariable(named = "BROKER_CONTROL", matches = "http.*")
  void whatWasConfirmedIsThereAfterARestart() throws Exception {
    String queue = channel.queueDeclare(unique("durable"), true, false, false, null).getQueue();
    for (int n = 0; n < 100; n++) {
      publish(queue, n, MessageProperties.PERSISTENT_BASIC);
    }
    channel.basicQos(10);
    BlockingQueue<Delivery> inbox = consume(channel, queue, false);
    for (int n = 0; n < 5; n++) {
      ack(channel, next(inbox));
    }
    ready(queue); // the acks have been read
    BlockingQueue<Recoverable> recovered = recoveries(connection);
    control("restart");
    next(recovered);
    Channel checking = connection.createChannel();
    eventually(() -> checking.messageCount(queue) == 85);
    Delivery delivery;
    do {
      delivery = next(inbox);
    } while (!(text(delivery.getBody()).equals("5") && delivery.getEnvelope().getDeliveryTag() > 10)); // those of before the restart come first
    ack(channel, delivery);
    channel.queueDelete(queue);
  }

  @Test
  @EnabledIfEnvironmentVariable(named = "BROKER_CONTROL", matches = "http.*")
  void withoutRecoveryTheReasonIsConnectionForced() throws Exception {
    ConnectionFactory factory = factory();
    factory.setAutomaticRecoveryEnabled(false);
    Connection plain = connect(factory);
    BlockingQueue<ShutdownSignalException> closed = new LinkedBlockingQueue<>();
    plain.addShutdownListener(closed::add);
    control("restart");
    String reason = next(closed).getMessage();
    assertTrue(reason.contains("320") && reason.contains("CONNECTION_FORCED"), reason);
  }

  private static BlockingQueue<Recoverable> recoveries(Connection connection) {
    BlockingQueue<Recoverable> recovered = new LinkedBlockingQueue<>();
    ((RecoverableConnection) connection).addRecoveryListener(new RecoveryListener() {
      @Override
      public void handleRecovery(Recoverable recoverable) {
        recovered.add(recoverable);
      }

      @Override
      public void handleRecoveryStarted(Recoverable recoverable) { }
    });
    return recovered;
  }
}
