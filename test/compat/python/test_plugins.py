"""What RabbitMQ's users have plugins or quorum queues for: hashing, de-duplication, delivery limits.

A RabbitMQ without those plugins skips the tests.
"""
import pika
import pytest

from conftest import Inbox, product, ready


@pytest.fixture(autouse=True)
def firemq(connection):
    if product(connection) != "FireMQ":
        pytest.skip("needs plugins")


@pytest.fixture
def hashing(channel, name):
    channel.exchange_declare(name, "x-consistent-hash", auto_delete=True)
    queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(3)]
    for queue in queues:
        channel.queue_bind(queue, name, routing_key="10")
    return name, queues


def test_equal_keys_meet_one_queue(channel, hashing):
    exchange, queues = hashing
    channel.confirm_delivery()
    for key in range(30):
        for n in range(3):
            channel.basic_publish(exchange, f"key-{key}", f"{key} {n}".encode())
    owners = {}
    total = 0
    for queue in queues:
        last = {}
        while True:
            method, _, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                break
            key, n = map(int, body.split())
            assert n == last.get(key, -1) + 1, "the order within a key"
            assert owners.setdefault(key, queue) == queue
            last[key] = n
            total += 1
    assert total == 90
    assert len(set(owners.values())) == 3


def test_hash_of_a_header(channel, name):
    channel.exchange_declare(name, "x-consistent-hash", auto_delete=True, arguments={"hash-header": "user"})
    queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(2)]
    for queue in queues:
        channel.queue_bind(queue, name, routing_key="1")
    channel.confirm_delivery()
    for key in range(20):
        channel.basic_publish(name, f"{key}", b"m", pika.BasicProperties(headers={"user": "same"}))
    assert sorted(ready(channel, queue) for queue in queues) == [0, 20]


def test_a_weight_that_is_no_number(connection, channel, hashing):
    exchange, queues = hashing
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_bind(queues[0], exchange, routing_key="heavy")
    assert closed.value.reply_code == 406
    assert "The binding key must be an integer" in closed.value.reply_text


def test_a_queue_takes_a_message_once(channel):
    queue = channel.queue_declare("", exclusive=True, arguments={"x-message-deduplication": True}).method.queue
    channel.confirm_delivery()
    properties = pika.BasicProperties(headers={"x-deduplication-header": "order-1"})
    for _ in range(3):
        channel.basic_publish("", queue, b"m", properties, mandatory=True)
    assert ready(channel, queue) == 1
    channel.basic_get(queue, auto_ack=True)
    channel.basic_publish("", queue, b"m", properties)
    assert ready(channel, queue) == 1


def test_a_window_of_message_ids(channel):
    queue = channel.queue_declare("", exclusive=True, arguments={
        "x-message-deduplication": True, "x-cache-size": 2, "x-deduplication-by": "message-id"}).method.queue
    channel.confirm_delivery()
    for key in ("a", "a", "b", "a", "c", "a"):
        channel.basic_publish("", queue, key.encode(), pika.BasicProperties(message_id=key))
    got = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(5)]
    assert got == [b"a", b"b", b"c", b"a", None]


def test_a_delivery_limit(channel, queue):
    limited = channel.queue_declare("", exclusive=True, arguments={
        "x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}).method.queue
    inbox, dead = Inbox(channel), Inbox(channel)
    channel.basic_consume(limited, lambda ch, method, properties, body: (
        inbox(ch, method, properties, body), ch.basic_nack(method.delivery_tag, requeue=True)))
    channel.basic_consume(queue, dead, auto_ack=True)
    channel.basic_publish("", limited, b"poison")
    dead.wait(1)
    counts = [(properties.headers or {}).get("x-delivery-count") for _, properties, _ in inbox.got]
    assert counts == [None, 1, 2]
    _, properties, _ = dead.got[0]
    assert properties.headers["x-first-death-reason"] == "delivery_limit"
