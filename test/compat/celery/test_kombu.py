"""kombu: what Celery itself stands on."""
import socket

import kombu
import pytest
from amqp.exceptions import AccessRefused, ConnectionForced, MessageNacked, NotAllowed, NotFound, PreconditionFailed, ResourceLocked
from kombu.exceptions import OperationalError
from kombu.pools import producers

import control
from conftest import LIMIT, URL, eventually


def drain(connection, condition):
    """Serves the connection until the condition holds."""

    def served():
        try:
            connection.drain_events(timeout=0.05)
        except socket.timeout:
            pass
        return condition()

    eventually(served)


@pytest.fixture
def queue(channel, name):
    bound = kombu.Queue(name, channel=channel, durable=False)
    bound.declare()
    yield bound
    channel.connection.channel().queue_delete(name)


@pytest.fixture
def producer(channel):
    return kombu.Producer(channel)


def ready(queue):
    return queue.queue_declare(passive=True).message_count


def test_a_wrong_password_is_403():
    with pytest.raises(AccessRefused) as refused:
        kombu.Connection(URL.replace(":guest@", ":wrong@")).connect()
    assert (refused.value.code, "Login was refused" in str(refused.value)) == (403, True)


def test_an_unknown_vhost_is_530():
    with pytest.raises(NotAllowed) as refused:
        kombu.Connection(URL.rstrip("/") + "/nowhere").connect()
    assert refused.value.code == 530


def test_errors_by_their_class(connect, channel, queue):
    connection = channel.connection
    with pytest.raises(NotFound):
        kombu.Queue("missing", channel=connection.channel()).queue_declare(passive=True)
    with pytest.raises(AccessRefused):
        kombu.Queue("amq.mine", channel=connection.channel()).declare()
    with pytest.raises(PreconditionFailed):
        kombu.Queue(queue.name, channel=connection.channel(), durable=True).queue_declare()
    mine = kombu.Queue("", channel=channel, exclusive=True).queue_declare()
    with pytest.raises(ResourceLocked):
        kombu.Queue(mine.queue, channel=connect().channel()).queue_declare(passive=True)


def test_a_consumer_gets_what_a_producer_sends(connection, channel, queue, producer):
    got = []
    with kombu.Consumer(channel, [queue], callbacks=[lambda body, message: (got.append(body), message.ack())], prefetch_count=10):
        for n in range(50):
            producer.publish({"n": n}, routing_key=queue.name, serializer="json", compression="zlib")
        drain(connection, lambda: len(got) == 50)
    assert got == [{"n": n} for n in range(50)]
    assert ready(queue) == 0


def test_prefetch_reject_and_requeue(connection, channel, queue, producer):
    for n in range(5):
        producer.publish(n, routing_key=queue.name)
    got = []
    with kombu.Consumer(channel, [queue], callbacks=[lambda body, message: got.append((body, message))], prefetch_count=2):
        drain(connection, lambda: len(got) == 2)
        assert ready(queue) == 3
        got[1][1].requeue()
        got[0][1].reject()
        drain(connection, lambda: len(got) == 4)
    assert [(body, message.delivery_info["redelivered"]) for body, message in got] == [(0, False), (1, False), (1, True), (2, False)]


def test_a_nack_is_an_error(connection, channel, producer, name):
    full = kombu.Queue(name, channel=channel, exclusive=True, durable=False, max_length=1, queue_arguments={"x-overflow": "reject-publish"})
    full.declare()
    producer.publish("fits", routing_key=name)
    with pytest.raises(MessageNacked):
        producer.publish("too many", routing_key=name)


def test_a_mandatory_message_comes_back(connection, channel):
    returned = []
    producer = kombu.Producer(channel, on_return=lambda error, exchange, key, message: returned.append((error.reply_code, exchange, key, message.body)))
    producer.publish("back", routing_key="nowhere", mandatory=True)
    drain(connection, lambda: returned)
    assert returned == [(312, "", "nowhere", "back")]


def test_expired_messages_are_dead_lettered(channel, producer, queue, name):
    short = kombu.Queue(
        name + "-short",
        channel=channel,
        exclusive=True,
        durable=False,
        message_ttl=0.02,
        queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue.name},
    )
    short.declare()
    producer.publish("m", routing_key=short.name)
    message = eventually(queue.get)
    assert (message.payload, message.headers["x-death"][0]["reason"], message.headers["x-first-death-queue"]) == ("m", "expired", short.name)


def test_higher_priorities_come_first(channel, producer, name):
    queue = kombu.Queue(name, channel=channel, exclusive=True, durable=False, max_priority=10)
    queue.declare()
    for priority in (0, 9, 5):
        producer.publish(priority, routing_key=name, priority=priority)
    assert [queue.get(no_ack=True).payload for _ in range(3)] == [9, 5, 0]


def test_the_client_is_told_when_its_queue_is_deleted(connection, channel, queue):
    cancelled = []
    channel.basic_consume(queue.name, consumer_tag="tag", callback=lambda _: None, on_cancel=cancelled.append)
    kombu.Queue(queue.name, channel=connection.channel()).delete()
    drain(connection, lambda: cancelled)
    assert cancelled == ["tag"]


def test_a_simple_queue(connection, name):
    simple = connection.SimpleQueue(name, queue_opts={"exclusive": True, "durable": False})
    with pytest.raises(simple.Empty):
        simple.get(block=False)
    simple.put({"n": 1})
    assert simple.get(timeout=LIMIT).payload == {"n": 1}
    simple.close()


def test_a_large_message(producer, queue):
    body = "0123456789abcdef" * 200_000
    producer.publish(body, routing_key=queue.name)
    assert queue.get(no_ack=True).payload == body


def test_heartbeats_both_ways(connect):
    connection = connect(heartbeat=1)
    for _ in range(40):
        connection.heartbeat_check()
        try:
            connection.drain_events(timeout=0.1)
        except socket.timeout:
            pass
    kombu.Queue("", channel=connection.channel(), exclusive=True).declare()


@control.needed
def test_the_client_is_told_of_an_alarm(connect, name):
    told = []
    connection = connect(transport_options={"on_blocked": told.append, "on_unblocked": lambda: told.append("unblocked")})
    channel = connection.channel()
    kombu.Queue(name, channel=channel, exclusive=True, durable=False).declare()
    producer = kombu.Producer(channel)
    producer.publish("m", routing_key=name)
    with control.alarm():
        producer.publish("m", routing_key=name)
        drain(connection, lambda: told)
    drain(connection, lambda: len(told) == 2)
    assert told == ["connection blocked, see broker logs", "unblocked"]  # py-amqp's own words


@control.needed
def test_ensure_publishes_through_a_restart(connect, name):
    connection = connect(transport_options={"confirm_publish": True})
    queue = kombu.Queue(name, durable=True)
    producer = kombu.Producer(connection)
    policy = {"max_retries": 100, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.2}
    for n in range(3):
        producer.publish(n, routing_key=name, declare=[queue], retry=True, retry_policy=policy)
        control.restart()
    connection.close()
    bound = queue.bind(connect().channel())
    assert [bound.get(no_ack=True).payload for _ in range(3)] == [0, 1, 2]
    bound.delete()


@control.needed
def test_without_retry_a_restart_is_an_error(connect):
    connection = connect()
    control.restart()
    with pytest.raises((ConnectionForced, OperationalError, OSError)):
        while True:
            connection.drain_events(timeout=LIMIT)


def test_pooled_producers(name):
    connection = kombu.Connection(URL)
    queue = kombu.Queue(name, durable=False, auto_delete=True)
    for n in range(20):
        with producers[connection].acquire(block=True) as producer:
            producer.publish(n, routing_key=name, declare=[queue])
    bound = queue.bind(connection.default_channel)
    assert [bound.get(no_ack=True).payload for _ in range(20)] == list(range(20))
    bound.delete()
    producers[connection].force_close_all()
    connection.release()
