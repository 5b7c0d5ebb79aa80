package com.firemq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.Method;
import com.rabbitmq.client.ShutdownSignalException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/**
 * What the tests of RabbitMQ's Java client share: a connection and a channel for each, and ways to wait.
 *
 * <p>The suite runs against any broker: set AMQP_URL, or nothing for one on localhost. Names are unique to a
 * test, so a run leaves nothing that disturbs the next.
 */
@Timeout(60)
abstract class Suite {
  static final String URL = System.getenv().getOrDefault("AMQP_URL", "amqp://guest:guest@localhost:5672");
  static final String CONTROL = System.getenv().getOrDefault("BROKER_CONTROL", "");
  static final Duration LIMIT = Duration.ofSeconds(20); // for any single answer
  static final String REPLY_TO = "amq.rabbitmq.reply-to";

  private final List<Connection> opened = new ArrayList<>();
  Connection connection;
  Channel channel;

  @BeforeEach
  void open() throws Exception {
    connection = connect(factory());
    channel = connection.createChannel();
  }

  @AfterEach
  void close() {
    opened.forEach(Connection::abort);
  }

  /** A factory with the library's defaults, automatic recovery among them. */
  static ConnectionFactory factory() throws Exception {
    ConnectionFactory factory = new ConnectionFactory();
    factory.setUri(URL);
    factory.setNetworkRecoveryInterval(50);
    return factory;
  }

  Connection connect(ConnectionFactory factory) throws Exception {
    Connection made = factory.newConnection();
    opened.add(made);
    return made;
  }

  static String unique(String name) {
    return name + "-" + UUID.randomUUID().toString().substring(0, 8);
  }

  /** Declares an exclusive queue of that connection. */
  String queue(Map<String, Object> arguments) throws Exception {
    return channel.queueDeclare(unique("queue"), false, true, false, arguments).getQueue();
  }

  String queue() throws Exception {
    return queue(Map.of());
  }

  static byte[] bytes(Object value) {
    return value.toString().getBytes(StandardCharsets.UTF_8);
  }

  static String text(byte[] body) {
    return new String(body, StandardCharsets.UTF_8);
  }

  /** Publishes to a queue and waits for the confirm. */
  void publish(String queue, Object body, AMQP.BasicProperties properties) throws Exception {
    channel.confirmSelect();
    channel.basicPublish("", queue, properties, bytes(body));
    channel.waitForConfirmsOrDie(LIMIT.toMillis());
  }

  void publish(String queue, Object body) throws Exception {
    publish(queue, body, null);
  }

  String take(String queue) throws Exception {
    GetResponse got = channel.basicGet(queue, true);
    return got == null ? null : text(got.getBody());
  }

  long ready(String queue) throws Exception {
    return channel.messageCount(queue);
  }

  /** Polls a condition of the broker until it holds. */
  static void eventually(Callable<Boolean> condition) throws Exception {
    long deadline = System.nanoTime() + LIMIT.toNanos();
    while (!condition.call()) {
      if (System.nanoTime() > deadline) {
        fail("not within " + LIMIT);
      }
      Thread.sleep(5);
    }
  }

  /** The next of what a callback put there. */
  static <T> T next(BlockingQueue<T> queue) throws Exception {
    T value = queue.poll(LIMIT.toSeconds(), TimeUnit.SECONDS);
    assertNotNull(value, "nothing came");
    return value;
  }

  /** Collects a consumer's deliveries. */
  static BlockingQueue<Delivery> consume(Channel channel, String queue, boolean autoAck, Map<String, Object> arguments) throws Exception {
    BlockingQueue<Delivery> inbox = new LinkedBlockingQueue<>();
    channel.basicConsume(queue, autoAck, arguments, new DefaultConsumer(channel) {
      @Override
      public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
        inbox.add(new Delivery(envelope, properties, body));
      }
    });
    return inbox;
  }

  static BlockingQueue<Delivery> consume(Channel channel, String queue, boolean autoAck) throws Exception {
    return consume(channel, queue, autoAck, Map.of());
  }

  static void ack(Channel channel, Delivery delivery) throws Exception {
    channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
  }

  /** Calls what the broker answers by closing the channel or the connection, and checks code and text. */
  static void assertRefused(int code, String text, Executable call) {
    Throwable thrown = assertThrows(Exception.class, call);
    while (!(thrown instanceof ShutdownSignalException) && thrown.getCause() != null) {
      thrown = thrown.getCause();
    }
    assertClosed(code, text, (ShutdownSignalException) thrown);
  }

  static void assertClosed(int code, String text, ShutdownSignalException closed) {
    Method reason = closed.getReason();
    if (reason instanceof AMQP.Channel.Close close) {
      assertEquals(code + " " + text, close.getReplyCode() + " " + close.getReplyText());
    } else {
      AMQP.Connection.Close close = (AMQP.Connection.Close) reason;
      assertEquals(code + " " + text, close.getReplyCode() + " " + close.getReplyText());
    }
  }

  /** What the broker closed a channel with, after a call that has no answer. */
  static ShutdownSignalException closed(Channel channel, Executable call) throws Exception {
    BlockingQueue<ShutdownSignalException> reasons = new LinkedBlockingQueue<>();
    channel.addShutdownListener(reasons::add);
    try {
      call.execute();
    } catch (AlreadyClosedException e) {
      // its answer came before the call had ended
    } catch (Throwable e) {
      throw new AssertionError(e);
    }
    return next(reasons);
  }

  /** Restarts the broker or raises its alarm, where what runs the suite offers it. */
  static void control(String what) throws Exception {
    HttpRequest request = HttpRequest.newBuilder(URI.create(CONTROL + "/" + what)).POST(HttpRequest.BodyPublishers.noBody()).build();
    HttpResponse<String> response = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    assertTrue(response.statusCode() == 200, response.body());
  }
}
