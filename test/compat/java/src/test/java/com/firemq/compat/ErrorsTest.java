package com.firemq.compat;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import java.net.ConnectException;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** The code, the text and the scope of errors, as applications match on them. */
class ErrorsTest extends Suite {
  @Test
  void aWrongPasswordIsAnAuthenticationFailure() throws Exception {
    ConnectionFactory factory = factory();
    factory.setPassword("wrong");
    Exception refused = assertThrows(AuthenticationFailureException.class, factory::newConnection);
    assertTrue(refused.getMessage().contains("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN"), refused.getMessage());
  }

  @Test
  void anUnknownVhostIs530() throws Exception {
    ConnectionFactory factory = factory();
    factory.setVirtualHost("nowhere");
    assertRefused(530, "NOT_ALLOWED - vhost nowhere not found", factory::newConnection);
  }

  @Test
  void aPortWhereNobodyListensIsRefused() throws Exception {
    ConnectionFactory factory = factory();
    factory.setPort(1);
    assertThrows(ConnectException.class, factory::newConnection);
  }

  @Test
  void whatIsMissingIs404() throws Exception {
    String text = "NOT_FOUND - no queue 'missing' in vhost '/'";
    assertRefused(404, text, () -> connection.createChannel().queueDeclarePassive("missing"));
    assertRefused(404, text, () -> connection.createChannel().basicGet("missing", true));
    assertRefused(404, text, () -> connection.createChannel().queuePurge("missing"));
    assertRefused(404, text, () -> connection.createChannel().queueBind("missing", "amq.direct", "k"));
    assertRefused(404, "NOT_FOUND - no exchange 'missing' in vhost '/'", () -> connection.createChannel().exchangeDeclarePassive("missing"));
    assertTrue(connection.isOpen());
  }

  @Test
  void publishingToAMissingExchangeClosesTheChannel() throws Exception {
    assertClosed(404, "NOT_FOUND - no exchange 'missing' in vhost '/'", closed(channel, () -> channel.basicPublish("missing", "k", null, bytes("m"))));
    assertTrue(connection.isOpen());
  }

  @Test
  void whatIsForbiddenIs403() throws Exception {
    assertRefused(403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
        () -> connection.createChannel().queueDeclare("amq.mine", false, false, false, null));
    assertRefused(403, "ACCESS_REFUSED - operation not permitted on the default exchange", () -> connection.createChannel().queueBind(queue(), "", "k"));
    String queue = queue();
    channel.basicConsume(queue, true, "one", false, true, null, (tag, message) -> { }, tag -> { });
    assertRefused(403, "ACCESS_REFUSED - queue '" + queue + "' in vhost '/' in exclusive use",
        () -> connection.createChannel().basicConsume(queue, (tag, message) -> { }, tag -> { }));
  }

  @Test
  void anotherConnectionsExclusiveQueueIs405() throws Exception {
    String queue = queue();
    Connection other = connect(factory());
    assertRefused(405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '" + queue + "' in vhost '/'. It could be originally"
        + " declared on another connection or the exclusive property value does not match that of the original declaration.",
        () -> other.createChannel().basicGet(queue, true));
  }

  @Test
  void otherPropertiesAre406() throws Exception {
    String queue = queue(Map.of("x-message-ttl", 1000));
    assertRefused(406, "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '" + queue + "' in vhost '/': received '2000' but current is '1000'",
        () -> connection.createChannel().queueDeclare(queue, false, true, false, Map.of("x-message-ttl", 2000)));
    assertRefused(406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.fanout' in vhost '/': received 'topic' but current is 'fanout'",
        () -> connection.createChannel().exchangeDeclare("amq.fanout", BuiltinExchangeType.TOPIC, true));
  }

  @Test
  void anUnknownDeliveryTagIs406() throws Exception {
    assertClosed(406, "PRECONDITION_FAILED - unknown delivery tag 42", closed(channel, () -> channel.basicAck(42, false)));
  }

  @Test
  void transactionsAndConfirmsExcludeEachOther() throws Exception {
    Channel transactional = connection.createChannel();
    transactional.txSelect();
    assertRefused(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode", transactional::confirmSelect);
    assertRefused(406, "PRECONDITION_FAILED - channel is not transactional", () -> connection.createChannel().txCommit());
  }

  @Test
  void aConsumerTagUsedTwiceIs530AndEndsTheConnection() throws Exception {
    ConnectionFactory factory = factory();
    factory.setAutomaticRecoveryEnabled(false);
    Channel own = connect(factory).createChannel();
    String queue = own.queueDeclare().getQueue();
    own.basicConsume(queue, true, "tag", (tag, message) -> { }, tag -> { });
    assertRefused(530, "NOT_ALLOWED - attempt to reuse consumer tag 'tag'",
        () -> own.rpc(new AMQP.Basic.Consume.Builder().queue(queue).consumerTag("tag").build())); // past the client's own check
  }

  @Test
  void aPrefetchSizeIs540AndEndsTheConnection() throws Exception {
    ConnectionFactory factory = factory();
    factory.setAutomaticRecoveryEnabled(false);
    Channel own = connect(factory).createChannel();
    assertRefused(540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)", () -> own.basicQos(10, 0, false));
    assertRefused(540, "NOT_IMPLEMENTED - immediate=true", () -> {
      Channel another = connect(factory).createChannel();
      throw closed(another, () -> another.basicPublish("", "k", false, true, null, bytes("m")));
    });
  }
}
