"""Errors: the code, the text and what is closed, as applications match on them."""
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from conftest import VHOST, product


def refused(call, *args, **kwargs):
    """Calls what the broker answers with a channel.close and gives its code and text."""
    with pytest.raises(ChannelClosedByBroker) as closed:
        call(*args, **kwargs)
    return closed.value.reply_code, closed.value.reply_text


def inequivalent(arg, kind, name, received, current):
    return f"PRECONDITION_FAILED - inequivalent arg '{arg}' for {kind} '{name}' in vhost '{VHOST}': received {received} but current is {current}"


def no_queue(name):
    return (404, f"NOT_FOUND - no queue '{name}' in vhost '{VHOST}'")


def no_exchange(name):
    return (404, f"NOT_FOUND - no exchange '{name}' in vhost '{VHOST}'")


@pytest.fixture
def durable(connection, name):
    """A durable queue, deleted after the test."""
    connection.channel().queue_declare(name, durable=True)
    yield name
    connection.channel().queue_delete(name)


@pytest.fixture
def exchange(connection, name):
    """A durable direct exchange, deleted after the test."""
    connection.channel().exchange_declare(name, "direct", durable=True)
    yield name
    connection.channel().exchange_delete(name)


def test_declaring_again_with_equal_properties_succeeds(channel, durable, exchange):
    channel.queue_declare(durable, durable=True)
    channel.exchange_declare(exchange, "direct", durable=True)


def test_passive_declare_looks_at_existence_only(channel, durable, exchange):
    channel.queue_declare(durable, passive=True, durable=False, auto_delete=True)
    channel.exchange_declare(exchange, "topic", passive=True)


@pytest.mark.parametrize(
    "operation",
    [
        lambda channel, name: channel.queue_declare(name, passive=True),
        lambda channel, name: channel.basic_get(name),
        lambda channel, name: channel.basic_consume(name, lambda *_: None),
        lambda channel, name: channel.queue_purge(name),
        lambda channel, name: channel.queue_bind(name, "amq.direct"),
    ],
    ids=["declare", "get", "consume", "purge", "bind"],
)
def test_a_missing_queue_is_404(channel, name, operation):
    assert refused(operation, channel, name) == no_queue(name)


def test_a_missing_exchange_is_404(connection, queue, name):
    assert refused(connection.channel().exchange_declare, name, passive=True) == no_exchange(name)
    assert refused(connection.channel().queue_bind, queue, "nowhere") == no_exchange("nowhere")
    assert refused(connection.channel().exchange_bind, "nowhere", "amq.fanout") == no_exchange("nowhere")


def test_publishing_to_a_missing_exchange_closes_the_channel(connection, channel):
    channel.basic_publish("nowhere", "", b"")
    assert refused(channel.queue_declare, "", exclusive=True) == no_exchange("nowhere")
    assert connection.is_open


def test_deleting_what_is_missing_succeeds(channel, name):
    assert channel.queue_delete(name).method.message_count == 0
    channel.exchange_delete(name)


def test_queue_properties_must_be_equal(connection, durable):
    assert refused(connection.channel().queue_declare, durable) == (406, inequivalent("durable", "queue", durable, "'false'", "'true'"))
    assert refused(connection.channel().queue_declare, durable, durable=True, auto_delete=True) == (
        406,
        inequivalent("auto_delete", "queue", durable, "'true'", "'false'"),
    )
    assert refused(connection.channel().queue_declare, durable, durable=True, arguments={"x-message-ttl": 60000}) == (
        406,
        inequivalent("x-message-ttl", "queue", durable, "the value '60000' of type 'signedint'", "none"),
    )


def test_queue_arguments_must_be_equal(connection, channel, name):
    channel.queue_declare(name, auto_delete=True, arguments={"x-message-ttl": 1000})
    assert refused(connection.channel().queue_declare, name, auto_delete=True, arguments={"x-message-ttl": 2000}) == (
        406,
        inequivalent("x-message-ttl", "queue", name, "'2000'", "'1000'"),
    )
    assert refused(connection.channel().queue_declare, name, auto_delete=True) == (
        406,
        inequivalent("x-message-ttl", "queue", name, "none", "the value '1000' of type 'signedint'"),
    )
    channel.queue_delete(name)


def test_exchange_properties_must_be_equal(connection, exchange):
    assert refused(connection.channel().exchange_declare, exchange, "topic", durable=True) == (
        406,
        inequivalent("type", "exchange", exchange, "'topic'", "'direct'"),
    )
    assert refused(connection.channel().exchange_declare, exchange, "direct") == (406, inequivalent("durable", "exchange", exchange, "'false'", "'true'"))
    assert refused(connection.channel().exchange_declare, exchange, "direct", durable=True, internal=True) == (
        406,
        inequivalent("internal", "exchange", exchange, "'true'", "'false'"),
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-message-ttl": "soon"}, '"expected integer, got longstr"'),
        ({"x-message-ttl": -1}, "{value_negative,-1}"),
        ({"x-expires": 0}, "{value_zero,0}"),
        ({"x-max-length": -5}, "{value_negative,-5}"),
        ({"x-max-priority": 256}, "{max_value_exceeded,256}"),
        ({"x-overflow": "explode"}, "invalid_overflow"),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
        ({"x-single-active-consumer": "yes"}, "{unacceptable_type,longstr}"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_invalid_queue_arguments_are_406(channel, name, arguments, reason):
    key = next(iter(arguments))
    assert refused(channel.queue_declare, name, arguments=arguments) == (
        406,
        f"PRECONDITION_FAILED - invalid arg '{key}' for queue '{name}' in vhost '{VHOST}': {reason}",
    )


def test_an_unknown_exchange_type_is_406(connection, channel, name):
    if product(connection) == "RabbitMQ":
        pytest.skip("before 3.13 RabbitMQ closes the connection with 503 instead")
    assert refused(channel.exchange_declare, name, "x-unheard-of") == (406, "PRECONDITION_FAILED - unknown exchange type 'x-unheard-of'")


def test_reserved_names_are_403(connection):
    assert refused(connection.channel().queue_declare, "amq.mine") == (403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'")
    assert refused(connection.channel().exchange_declare, "amq.mine") == (403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'")


def test_the_predeclared_exchanges_are_protected(connection, queue):
    connection.channel().exchange_declare("amq.direct", "direct", durable=True)
    assert refused(connection.channel().exchange_delete, "amq.direct") == (
        403,
        f"ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '{VHOST}' not allowed",
    )
    default = (403, "ACCESS_REFUSED - operation not permitted on the default exchange")
    assert refused(connection.channel().queue_bind, queue, "", "k") == default
    assert refused(connection.channel().queue_unbind, queue, "", "k") == default
    assert refused(connection.channel().exchange_declare, "", "direct") == default
    assert refused(connection.channel().exchange_delete, "") == default


def test_an_internal_exchange_takes_no_publish(connection, channel, name):
    channel.exchange_declare(name, "fanout", internal=True)
    publisher = connection.channel()
    publisher.basic_publish(name, "", b"")
    assert refused(publisher.queue_declare, "", exclusive=True) == (
        403,
        f"ACCESS_REFUSED - cannot publish to internal exchange '{name}' in vhost '{VHOST}'",
    )
    channel.exchange_delete(name)


def test_an_exclusive_queue_is_locked_for_other_connections(connect, queue):
    text = (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '{VHOST}'. It could be originally declared"
        " on another connection or the exclusive property value does not match that of the original declaration."
    )
    if len(text) > 255:  # a short string's limit
        text = text[:252] + "..."
    other = connect()
    for operation in (
        lambda channel: channel.queue_declare(queue, passive=True),
        lambda channel: channel.queue_declare(queue, exclusive=True),
        lambda channel: channel.basic_get(queue),
        lambda channel: channel.basic_consume(queue, lambda *_: None),
        lambda channel: channel.queue_bind(queue, "amq.fanout"),
        lambda channel: channel.queue_purge(queue),
        lambda channel: channel.queue_delete(queue),
    ):
        assert refused(operation, other.channel()) == (405, text)


def test_an_exclusive_consumer_shuts_others_out(connection, queue):
    exclusive = connection.channel()
    exclusive.basic_consume(queue, lambda *_: None, exclusive=True)
    in_use = (403, f"ACCESS_REFUSED - queue '{queue}' in vhost '{VHOST}' in exclusive use")
    assert refused(connection.channel().basic_consume, queue, lambda *_: None) == in_use
    exclusive.close()
    shared = connection.channel()
    shared.basic_consume(queue, lambda *_: None)
    assert refused(connection.channel().basic_consume, queue, lambda *_: None, exclusive=True) == in_use


def test_delete_if_unused_and_if_empty(connection, channel, queue, name):
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"m")
    assert refused(connection.channel().queue_delete, queue, if_empty=True) == (
        406,
        f"PRECONDITION_FAILED - queue '{queue}' in vhost '{VHOST}' not empty",
    )
    channel.queue_purge(queue)
    channel.basic_consume(queue, lambda *_: None)
    assert refused(connection.channel().queue_delete, queue, if_unused=True) == (
        406,
        f"PRECONDITION_FAILED - queue '{queue}' in vhost '{VHOST}' in use",
    )
    exchange = name + "-x"
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    channel.queue_bind(queue, exchange)
    assert refused(connection.channel().exchange_delete, exchange, if_unused=True) == (
        406,
        f"PRECONDITION_FAILED - exchange '{exchange}' in vhost '{VHOST}' in use",
    )
    channel.queue_delete(queue)


@pytest.mark.parametrize("settle", ["basic_ack", "basic_nack", "basic_reject"])
def test_an_unknown_delivery_tag_is_406(channel, settle):
    getattr(channel, settle)(42)
    assert refused(channel.queue_declare, "", exclusive=True) == (406, "PRECONDITION_FAILED - unknown delivery tag 42")


def test_a_second_ack_of_a_delivery_is_406(channel, queue):
    channel.basic_publish("", queue, b"m")
    method, _, _ = channel.basic_get(queue)
    channel.basic_ack(method.delivery_tag)
    channel.basic_ack(method.delivery_tag)
    assert refused(channel.queue_declare, queue, passive=True) == (406, f"PRECONDITION_FAILED - unknown delivery tag {method.delivery_tag}")


def test_an_invalid_expiration_is_406(connection, queue):
    for expiration, reason in (("abc", "no_integer"), ("10s", '{leftover_string,"s"}'), ("-1", "{value_negative,-1}")):
        channel = connection.channel()
        channel.basic_publish("", queue, b"", pika.BasicProperties(expiration=expiration))
        assert refused(channel.queue_declare, queue, passive=True) == (406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {reason}")


def test_a_foreign_user_id_is_406(channel, queue):
    channel.basic_publish("", queue, b"", pika.BasicProperties(user_id="somebody"))
    assert refused(channel.queue_declare, queue, passive=True) == (
        406,
        "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'",
    )


def test_a_prefetch_size_is_540_and_closes_the_connection(connection, channel):
    with pytest.raises(ConnectionClosedByBroker) as closed:
        channel.basic_qos(prefetch_size=10)
    assert (closed.value.reply_code, closed.value.reply_text) == (540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)")


def test_confirm_and_tx_exclude_each_other(connection):
    channel = connection.channel()
    channel.confirm_delivery()
    assert refused(channel.tx_select) == (406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode")
    channel = connection.channel()
    channel.tx_select()
    assert refused(channel.confirm_delivery) == (406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode")
    assert refused(connection.channel().tx_commit) == (406, "PRECONDITION_FAILED - channel is not transactional")
