"""Exchanges, queues and bindings: how they live and die."""
import uuid

import pytest
from pika.exceptions import ChannelClosedByBroker

from conftest import consumers, poll, ready


def exists(connection, queue):
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except ChannelClosedByBroker as closed:
        assert closed.reply_code == 404
        return False
    channel.close()
    return True


def exchange_exists(connection, exchange):
    channel = connection.channel()
    try:
        channel.exchange_declare(exchange, passive=True)
    except ChannelClosedByBroker as closed:
        assert closed.reply_code == 404
        return False
    channel.close()
    return True


def test_the_broker_names_a_queue_that_has_no_name(channel):
    first = channel.queue_declare("", exclusive=True).method.queue
    second = channel.queue_declare("", exclusive=True).method.queue
    assert first.startswith("amq.gen-") and second.startswith("amq.gen-")
    assert len(first) == len("amq.gen-") + 22
    assert first != second


def test_an_empty_name_stands_for_the_channels_last_queue(channel):
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"m")
    assert channel.basic_get("")[2] == b"m"
    channel.queue_bind("", "amq.direct", "k")
    assert channel.queue_purge("").method.message_count == 0
    channel.queue_delete("")
    assert not exists(channel.connection, queue)


def test_declare_ok_counts_ready_messages_and_consumers(channel, queue):
    channel.confirm_delivery()
    for n in range(3):
        channel.basic_publish("", queue, str(n).encode())
    channel.basic_get(queue)
    assert ready(channel, queue) == 2
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, lambda *_: None)
    assert consumers(channel, queue) == 1


def test_purge_counts_and_leaves_unacked_alone(channel, queue):
    channel.confirm_delivery()
    for n in range(5):
        channel.basic_publish("", queue, str(n).encode())
    method, _, _ = channel.basic_get(queue)
    assert channel.queue_purge(queue).method.message_count == 4
    channel.basic_nack(method.delivery_tag)
    assert channel.basic_get(queue)[2] == b"0"


def test_delete_counts_messages(channel, queue):
    channel.confirm_delivery()
    for _ in range(4):
        channel.basic_publish("", queue, b"")
    assert channel.queue_delete(queue).method.message_count == 4


def test_an_exclusive_queue_dies_with_its_connection(connect, connection, name):
    owner = connect()
    owner.channel().queue_declare(name, exclusive=True)
    owner.close()
    assert not exists(connection, name)


def test_an_auto_delete_queue_dies_with_its_last_consumer(connection, channel, name):
    channel.queue_declare(name, auto_delete=True)
    assert exists(connection, name), "a queue that never had a consumer stays"
    first = channel.basic_consume(name, lambda *_: None)
    second = channel.basic_consume(name, lambda *_: None)
    channel.basic_cancel(first)
    assert exists(connection, name)
    channel.basic_cancel(second)
    assert not exists(connection, name)


def test_an_auto_delete_queue_dies_with_its_consumers_channel(connection, channel, name):
    channel.queue_declare(name, auto_delete=True)
    channel.basic_consume(name, lambda *_: None)
    channel.close()
    poll(connection.channel(), lambda: not exists(connection, name))


def test_an_auto_delete_exchange_dies_with_its_last_binding(connection, channel, queue, name):
    exchange = name + "-x"
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    assert exchange_exists(connection, exchange), "an exchange that never had a binding stays"
    channel.queue_bind(queue, exchange, "a")
    channel.queue_bind(queue, exchange, "b")
    channel.queue_unbind(queue, exchange, "a")
    assert exchange_exists(connection, exchange)
    channel.queue_unbind(queue, exchange, "b")
    assert not exchange_exists(connection, exchange)


def test_a_deleted_queue_takes_its_bindings_along(connection, channel, name):
    exchange = name + "-x"
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    channel.queue_declare(name)
    channel.queue_bind(name, exchange)
    channel.queue_delete(name)
    assert not exchange_exists(connection, exchange)


def test_binding_twice_delivers_once_and_unbinding_what_is_missing_succeeds(channel, queue):
    channel.confirm_delivery()
    key = uuid.uuid4().hex
    channel.queue_bind(queue, "amq.direct", key)
    channel.queue_bind(queue, "amq.direct", key)
    channel.basic_publish("amq.direct", key, b"m")
    assert ready(channel, queue) == 1
    channel.queue_unbind(queue, "amq.direct", key)
    channel.queue_unbind(queue, "amq.direct", key)
    channel.basic_publish("amq.direct", key, b"m")
    assert ready(channel, queue) == 1


def test_the_predeclared_exchanges_are_there(channel):
    for exchange, kind in (("amq.direct", "direct"), ("amq.fanout", "fanout"), ("amq.topic", "topic"), ("amq.headers", "headers"), ("amq.match", "headers")):
        channel.exchange_declare(exchange, kind, durable=True)


@pytest.mark.parametrize("length", [1, 255])
def test_names_of_every_length(channel, length):
    queue = uuid.uuid4().hex[:1] if length == 1 else "q" * (length - 32) + uuid.uuid4().hex
    channel.queue_declare(queue, auto_delete=True)
    channel.basic_publish("", queue, b"m")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"m"
    channel.queue_delete(queue)


def test_names_are_utf8(channel):
    queue = "größe-消息-" + uuid.uuid4().hex
    assert channel.queue_declare(queue, exclusive=True).method.queue == queue
    channel.basic_publish("", queue, b"m")
    method, _, _ = channel.basic_get(queue)
    assert method.routing_key == queue
