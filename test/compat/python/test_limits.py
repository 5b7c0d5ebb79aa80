"""Limits of messages and queues: expiry, length, priorities, dead letters, a single active consumer."""
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from conftest import Inbox, poll, ready


def declare(channel, **arguments):
    """An exclusive queue with arguments: x_message_ttl=5 stands for x-message-ttl."""
    arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
    return channel.queue_declare("", exclusive=True, arguments=arguments).method.queue


def drain(channel, queue):
    """Takes all messages that are ready."""
    got = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return got
        got.append((method, properties, body))


def bodies(got):
    return [body for _, _, body in got]


@pytest.fixture(autouse=True)
def confirms(channel):
    channel.confirm_delivery()


def test_a_queues_ttl_removes_messages(channel):
    queue = declare(channel, x_message_ttl=50)
    channel.basic_publish("", queue, b"m")
    poll(channel, lambda: ready(channel, queue) == 0)


def test_a_messages_expiration_removes_it(channel, queue):
    channel.basic_publish("", queue, b"short", pika.BasicProperties(expiration="50"))
    channel.basic_publish("", queue, b"long", pika.BasicProperties(expiration="60000"))
    poll(channel, lambda: ready(channel, queue) == 1)
    assert bodies(drain(channel, queue)) == [b"long"]


def test_the_shorter_of_both_counts(channel):
    queue = declare(channel, x_message_ttl=60000)
    channel.basic_publish("", queue, b"m", pika.BasicProperties(expiration="50"))
    poll(channel, lambda: ready(channel, queue) == 0)


def test_an_expired_message_behind_one_that_is_not_stays(channel, queue):
    channel.basic_publish("", queue, b"1")
    channel.basic_publish("", queue, b"2", pika.BasicProperties(expiration="1"))
    assert ready(channel, queue) == 2
    assert channel.basic_get(queue, auto_ack=True)[2] == b"1"
    poll(channel, lambda: ready(channel, queue) == 0)


def test_an_unused_queue_expires(connection, channel):
    queue = channel.queue_declare("", arguments={"x-expires": 200}).method.queue
    connection.process_data_events(time_limit=1)  # any question would start the lease again
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare(queue, passive=True)
    assert closed.value.reply_code == 404


def test_a_full_queue_drops_its_head(channel):
    queue = declare(channel, x_max_length=3)
    for n in range(5):
        channel.basic_publish("", queue, str(n).encode())
    assert bodies(drain(channel, queue)) == [b"2", b"3", b"4"]


def test_a_queue_full_of_bytes_drops_its_head(channel):
    queue = declare(channel, x_max_length_bytes=10)
    for body in (b"12345", b"67890", b"abc"):
        channel.basic_publish("", queue, body)
    assert bodies(drain(channel, queue)) == [b"67890", b"abc"]


def test_unacked_messages_do_not_count_towards_the_length(channel):
    queue = declare(channel, x_max_length=1)
    channel.basic_publish("", queue, b"1")
    method, _, _ = channel.basic_get(queue)
    channel.basic_publish("", queue, b"2")
    assert ready(channel, queue) == 1
    channel.basic_ack(method.delivery_tag)


def test_higher_priorities_come_first_and_equal_ones_in_order(channel):
    queue = declare(channel, x_max_priority=5)
    for body, priority in ((b"1", 1), (b"5", 5), (b"none", None), (b"1 again", 1), (b"9 is 5", 9)):
        channel.basic_publish("", queue, body, pika.BasicProperties(priority=priority))
    assert bodies(drain(channel, queue)) == [b"5", b"9 is 5", b"1", b"1 again", b"none"]


DEATHS = {
    "rejected": lambda channel, queue: channel.basic_reject(channel.basic_get(queue)[0].delivery_tag, requeue=False),
    "expired": lambda channel, queue: None,
    "maxlen": lambda channel, queue: channel.basic_publish("", queue, b"younger"),
}


@pytest.mark.parametrize("reason", DEATHS)
def test_dead_letters_say_why_and_where(channel, queue, reason):
    arguments = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": queue, "x_max_length": 1}
    if reason == "expired":
        arguments["x_message_ttl"] = 50
    source = declare(channel, **arguments)
    sent = pika.BasicProperties(message_id="m-1", headers={"k": "v"}, expiration="60000")
    channel.basic_publish("amq.direct", "unbound", b"not this one")
    channel.basic_publish("", source, b"dead", sent)
    DEATHS[reason](channel, source)
    poll(channel, lambda: ready(channel, queue) == 1)
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (body, method.exchange, method.routing_key, properties.message_id) == (b"dead", "", queue, "m-1")
    assert properties.expiration is None, "or it would expire again"
    headers = properties.headers
    assert headers["k"] == "v"
    assert (headers["x-first-death-reason"], headers["x-first-death-queue"], headers["x-first-death-exchange"]) == (reason, source, "")
    (death,) = headers["x-death"]
    assert (death["reason"], death["queue"], death["exchange"], death["routing-keys"], death["count"]) == (reason, source, "", [source], 1)
    assert death["original-expiration"] == "60000"
    assert death["time"].year >= 2024


def test_a_dead_letter_keeps_its_key_unless_the_queue_names_one(channel, name):
    exchange = name + "-dlx"
    channel.exchange_declare(exchange, "topic", auto_delete=True)
    graveyard = declare(channel)
    channel.queue_bind(graveyard, exchange, "#")
    source = declare(channel, x_dead_letter_exchange=exchange)
    channel.queue_bind(source, "amq.direct", name)
    channel.basic_publish("amq.direct", name, b"m")
    channel.basic_nack(channel.basic_get(source)[0].delivery_tag, requeue=False)
    poll(channel, lambda: ready(channel, graveyard) == 1)
    ((method, properties, _),) = drain(channel, graveyard)
    assert (method.exchange, method.routing_key) == (exchange, name)
    assert properties.headers["x-death"][0]["exchange"] == "amq.direct"


def test_repeated_deaths_are_counted(channel, name):
    retry = name + "-retry"
    work = declare(channel, x_dead_letter_exchange="", x_dead_letter_routing_key=retry)
    channel.queue_declare(retry, exclusive=True, arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work})
    channel.basic_publish("", work, b"m")
    for _ in range(3):
        poll(channel, lambda: ready(channel, work) == 1)
        method, _, _ = channel.basic_get(work)
        channel.basic_reject(method.delivery_tag, requeue=False)
    poll(channel, lambda: ready(channel, work) == 1)
    _, properties, _ = channel.basic_get(work, auto_ack=True)
    deaths = {(death["queue"], death["reason"]): death["count"] for death in properties.headers["x-death"]}
    assert deaths == {(work, "rejected"): 3, (retry, "expired"): 3}
    assert properties.headers["x-first-death-queue"] == work


def test_a_refused_publish_can_be_dead_lettered(channel, queue):
    full = declare(channel, x_max_length=1, x_overflow="reject-publish-dlx", x_dead_letter_exchange="", x_dead_letter_routing_key=queue)
    channel.basic_publish("", full, b"fits")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", full, b"refused")
    poll(channel, lambda: ready(channel, queue) == 1)
    ((_, properties, body),) = drain(channel, queue)
    assert (body, properties.headers["x-death"][0]["reason"]) == (b"refused", "maxlen")


def test_deleting_and_purging_dead_letters_nothing(channel, queue):
    source = declare(channel, x_dead_letter_exchange="", x_dead_letter_routing_key=queue)
    channel.basic_publish("", source, b"1")
    channel.queue_purge(source)
    channel.basic_publish("", source, b"2")
    channel.queue_delete(source)
    assert ready(channel, queue) == 0


def test_one_active_consumer_at_a_time(connection, channel):
    queue = declare(channel, x_single_active_consumer=True)
    active, waiting = Inbox(channel), Inbox(channel)
    tag = channel.basic_consume(queue, active, auto_ack=True)
    channel.basic_consume(queue, waiting, auto_ack=True)
    for n in range(4):
        channel.basic_publish("", queue, str(n).encode())
    active.wait(4)
    channel.basic_cancel(tag)
    channel.basic_publish("", queue, b"4")
    waiting.wait(1)
    assert (active.bodies(), waiting.bodies()) == ([b"0", b"1", b"2", b"3"], [b"4"])
