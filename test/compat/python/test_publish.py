"""Publishing: confirms, returns, bodies, properties."""
import datetime
import decimal

import pika
import pytest
from pika.exceptions import NackError, UnroutableError

from conftest import ready


def test_a_confirmed_publish_is_in_the_queue(channel, queue):
    channel.confirm_delivery()
    for n in range(100):
        channel.basic_publish("", queue, str(n).encode())
    assert ready(channel, queue) == 100


def test_a_persistent_publish_to_a_durable_queue_is_confirmed(channel, name):
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for n in range(20):
        channel.basic_publish("", name, str(n).encode(), pika.BasicProperties(delivery_mode=2))
    assert channel.queue_delete(name).method.message_count == 20


def test_an_unroutable_publish_is_confirmed(channel, name):
    channel.confirm_delivery()
    channel.basic_publish("", name, b"into the void")
    channel.basic_publish("amq.fanout", name, b"into the void")


def test_a_mandatory_unroutable_publish_comes_back_whole(channel, name):
    channel.confirm_delivery()
    properties = pika.BasicProperties(message_id="m-1", headers={"k": "v"})
    with pytest.raises(UnroutableError) as unroutable:
        channel.basic_publish("amq.direct", name, b"come back", properties, mandatory=True)
    (returned,) = unroutable.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("amq.direct", name)
    assert (returned.properties.message_id, returned.properties.headers) == ("m-1", {"k": "v"})
    assert returned.body == b"come back"


def test_a_return_without_confirms(channel, name):
    returned = []
    channel.add_on_return_callback(lambda _, method, properties, body: returned.append((method.reply_code, body)))
    channel.basic_publish("", name, b"x", mandatory=True)
    channel.queue_declare("", exclusive=True)
    channel.connection.process_data_events()
    assert returned == [(312, b"x")]


def test_a_mandatory_routable_publish_does_not_come_back(channel, queue):
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"m", mandatory=True)
    assert ready(channel, queue) == 1


def test_a_full_queue_that_rejects_nacks(channel, name):
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"fits")
    with pytest.raises(NackError):
        channel.basic_publish("", name, b"too many")
    assert channel.basic_get(name)[2] == b"fits"


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 131064, 131065, 1_000_000, 5_000_000])
def test_bodies_of_every_size_come_back_equal(channel, queue, size):
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    channel.confirm_delivery()
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body


PROPERTIES = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "headers": {"a": 1},
    "delivery_mode": 2,
    "priority": 9,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "order.created",
    "user_id": "guest",
    "app_id": "suite",
    "cluster_id": "c",
}


def test_every_property_comes_back(channel, queue):
    channel.basic_publish("", queue, b"", pika.BasicProperties(**PROPERTIES))
    _, properties, _ = channel.basic_get(queue)
    assert {key: getattr(properties, key) for key in PROPERTIES} == PROPERTIES


@pytest.mark.parametrize("key", [*PROPERTIES, None])
def test_each_property_alone_comes_back(channel, queue, key):
    sent = {key: PROPERTIES[key]} if key else {}
    channel.basic_publish("", queue, b"x", pika.BasicProperties(**sent))
    _, properties, body = channel.basic_get(queue)
    assert {k: getattr(properties, k) for k in PROPERTIES} == {**dict.fromkeys(PROPERTIES), **sent}
    assert body == b"x"


HEADERS = {
    "true": True,
    "false": False,
    "small": 7,
    "negative": -7,
    "int": 2**31 - 1,
    "long": 2**40,
    "least": -(2**63),
    "string": "grüße",
    "empty": "",
    "bytes": b"\x00\xff",
    "decimal": decimal.Decimal("12.34"),
    "time": datetime.datetime(2024, 2, 29, 12, 0, 0, tzinfo=datetime.timezone.utc),
    "none": None,
    "list": [1, "two", [3, None], {"four": 4}],
    "table": {"inner": {"deep": [True]}, "n": 1},
    "long string": "x" * 20_000,
}


def test_headers_of_every_type_come_back(channel, queue):
    channel.basic_publish("", queue, b"", pika.BasicProperties(headers=HEADERS))
    _, properties, _ = channel.basic_get(queue)
    assert properties.headers == HEADERS
    assert [key for key, value in properties.headers.items() if isinstance(value, bool)] == ["true", "false"]
    assert isinstance(properties.headers["bytes"], bytes)


def test_many_headers_come_back(channel, queue):
    headers = {f"key-{n}": n for n in range(2000)}
    channel.basic_publish("", queue, b"", pika.BasicProperties(headers=headers))
    assert channel.basic_get(queue)[1].headers == headers


def test_a_transaction_publishes_at_commit(connection, channel, queue):
    channel.tx_select()
    channel.basic_publish("", queue, b"1")
    channel.basic_publish("", queue, b"2")
    assert ready(connection.channel(), queue) == 0
    channel.tx_commit()
    assert ready(connection.channel(), queue) == 2
    channel.basic_publish("", queue, b"3")
    channel.tx_rollback()
    assert ready(connection.channel(), queue) == 2
