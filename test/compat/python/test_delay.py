"""Delayed messages in the words of RabbitMQ's delayed message plugin. RabbitMQ without it is skipped."""
import calendar
import time
from datetime import datetime, timedelta, timezone

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from conftest import Inbox, poll, product, ready


@pytest.fixture
def delayed(channel, name):
    """A delayed exchange that routes as a direct one."""
    if product(channel.connection) != "FireMQ":
        pytest.skip("needs the plugin")
    channel.exchange_declare(name, "x-delayed-message", arguments={"x-delayed-type": "direct"})
    yield name
    channel.connection.channel().exchange_delete(name)


def publish(channel, exchange, key, ms, **properties):
    properties = pika.BasicProperties(headers={"x-delay": ms}, **properties)
    channel.basic_publish(exchange, key, str(ms).encode(), properties)


def test_they_come_in_order_of_due_time(channel, queue, delayed):
    channel.queue_bind(queue, delayed, "k")
    channel.tx_select()  # so that all are published at one time
    for ms in (500, 100, 300, 200, 400):
        publish(channel, delayed, "k", ms)
    channel.tx_commit()
    inbox = Inbox(channel)
    channel.basic_consume(queue, inbox, auto_ack=True)
    inbox.wait(5)
    assert [body for _, _, body in inbox.got] == [b"100", b"200", b"300", b"400", b"500"]
    # Who passes the headers on does not delay the message again.
    assert [p.headers["x-delay"] for _, p, _ in inbox.got] == [-100, -200, -300, -400, -500]
    assert {m.exchange for m, _, _ in inbox.got} == {delayed}


def test_without_a_delay_it_is_an_ordinary_exchange(channel, queue, delayed):
    channel.confirm_delivery()
    channel.queue_bind(queue, delayed, "k")
    for ms in (0, -100):
        publish(channel, delayed, "k", ms)
    channel.basic_publish(delayed, "k", b"plain")
    channel.basic_publish(delayed, "other", b"unbound")
    assert ready(channel, queue) == 3


def test_a_string_is_a_delay_too(channel, queue, delayed):
    channel.confirm_delivery()
    channel.queue_bind(queue, delayed, "k")
    publish(channel, delayed, "k", "2000")
    assert ready(channel, queue) == 0
    poll(channel, lambda: ready(channel, queue) == 1)


@pytest.mark.parametrize("at", ["timestamp", "milliseconds"])
def test_until_a_time(channel, queue, delayed, at):
    channel.confirm_delivery()
    channel.queue_bind(queue, delayed, "k")
    due = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=3)  # pika sends a timestamp
    value = due if at == "timestamp" else calendar.timegm(due.timetuple()) * 1000
    for body, until in ((b"later", value), (b"past", value.replace(year=2020) if at == "timestamp" else 1)):
        channel.basic_publish(delayed, "k", body, pika.BasicProperties(headers={"x-delay-until": until}))
    inbox = Inbox(channel)
    channel.basic_consume(queue, inbox, auto_ack=True)
    inbox.wait(2)
    assert [body for _, _, body in inbox.got] == [b"past", b"later"]
    assert time.time() >= calendar.timegm(due.timetuple())
    assert inbox.got[1][1].headers == {"x-delay-until": value}


def test_any_exchange_delays(channel, queue, delayed):
    channel.confirm_delivery()
    publish(channel, "", queue, 2000)
    assert ready(channel, queue) == 0
    poll(channel, lambda: ready(channel, queue) == 1)


def test_the_time_to_live_begins_when_it_is_due(channel, queue, delayed):
    channel.queue_bind(queue, delayed, "k")
    publish(channel, delayed, "k", 300, expiration="60000")
    poll(channel, lambda: ready(channel, queue) == 1)


def test_mandatory_is_about_the_moment_of_publishing(channel, delayed):
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as unroutable:
        channel.basic_publish(delayed, "k", b"x", pika.BasicProperties(headers={"x-delay": 60000}), mandatory=True)
    assert unroutable.value.messages[0].properties.headers == {"x-delay": 60000}


def test_a_purge_takes_them(channel, queue, delayed):
    channel.confirm_delivery()
    publish(channel, "", queue, 600000)
    assert channel.queue_purge(queue).method.message_count == 1


@pytest.mark.parametrize("arguments, text", [
    (None, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
    ({"x-delayed-type": "x-delayed-message"}, "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'"),
    ({"x-delayed-type": "odd"}, "unknown exchange type 'odd'"),
])
def test_its_type_must_be_that_of_an_exchange(channel, delayed, arguments, text):
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.exchange_declare(delayed + ".odd", "x-delayed-message", arguments=arguments)
    assert closed.value.reply_code == 406
    assert closed.value.reply_text == "PRECONDITION_FAILED - " + text
