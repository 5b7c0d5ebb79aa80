"""Consuming: order, settlement, prefetch, get, cancel."""
import pathlib
import subprocess
import sys
import threading

import pika
import pytest

from conftest import Inbox, consumers, parameters, poll, ready


def fill(channel, queue, n):
    channel.confirm_delivery()
    for i in range(n):
        channel.basic_publish("", queue, str(i).encode())


def numbers(*wanted):
    return [str(n).encode() for n in wanted]


def test_messages_arrive_in_order_with_rising_tags(channel, queue):
    fill(channel, queue, 200)
    inbox = Inbox(channel)
    tag = channel.basic_consume(queue, inbox, auto_ack=True)
    got = inbox.wait(200)
    assert inbox.bodies() == numbers(*range(200))
    assert [method.delivery_tag for method, _, _ in got] == list(range(1, 201))
    first = got[0][0]
    assert (first.consumer_tag, first.exchange, first.routing_key, first.redelivered) == (tag, "", queue, False)


def test_the_broker_names_a_consumer_that_has_no_tag(connection, queue):
    answers = []
    channel = connection.channel()
    channel._impl.basic_consume(queue, lambda *_: None, callback=lambda frame: answers.append(frame.method.consumer_tag))
    poll(channel, lambda: answers)
    assert answers[0]


def test_a_consumers_own_tag_is_kept(channel, queue):
    assert channel.basic_consume(queue, lambda *_: None, consumer_tag="mine") == "mine"


def test_get_reports_what_remains(channel, queue):
    assert channel.basic_get(queue) == (None, None, None)
    fill(channel, queue, 3)
    method, _, body = channel.basic_get(queue)
    assert (body, method.message_count, method.redelivered, method.exchange, method.routing_key) == (b"0", 2, False, "", queue)
    assert channel.basic_get(queue, auto_ack=True)[0].message_count == 1
    channel.basic_ack(method.delivery_tag)
    assert channel.basic_get(queue)[0].message_count == 0


def test_ack_takes_messages_out(connection, channel, queue):
    fill(channel, queue, 3)
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(3)]
    channel.basic_ack(tags[1])
    channel.close()
    channel = connection.channel()
    assert [channel.basic_get(queue)[2] for _ in range(2)] == numbers(0, 2)
    assert channel.basic_get(queue)[0] is None


def test_ack_multiple_takes_all_up_to_the_tag(connection, channel, queue):
    fill(channel, queue, 5)
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(5)]
    channel.basic_ack(tags[2], multiple=True)
    channel.close()
    channel = connection.channel()
    assert [channel.basic_get(queue)[2] for _ in range(2)] == numbers(3, 4)


def test_ack_multiple_with_tag_0_takes_all(connection, channel, queue):
    fill(channel, queue, 5)
    for _ in range(5):
        channel.basic_get(queue)
    channel.basic_ack(0, multiple=True)
    channel.close()
    assert ready(connection.channel(), queue) == 0


@pytest.mark.parametrize("settle", ["basic_nack", "basic_reject"])
def test_requeued_messages_return_to_their_place_as_redelivered(channel, queue, settle):
    fill(channel, queue, 5)
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(3)]
    for tag in (tags[2], tags[0], tags[1]):
        getattr(channel, settle)(tag, requeue=True)
    got = [channel.basic_get(queue) for _ in range(5)]
    assert [body for _, _, body in got] == numbers(0, 1, 2, 3, 4)
    assert [method.redelivered for method, _, _ in got] == [True, True, True, False, False]


def test_nack_multiple_requeues_in_order(channel, queue):
    fill(channel, queue, 6)
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(5)]
    channel.basic_nack(tags[3], multiple=True, requeue=True)
    assert [channel.basic_get(queue)[2] for _ in range(5)] == numbers(0, 1, 2, 3, 5)


@pytest.mark.parametrize("settle", ["basic_nack", "basic_reject"])
def test_rejected_messages_are_gone(channel, queue, settle):
    fill(channel, queue, 2)
    getattr(channel, settle)(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    assert channel.basic_get(queue)[2] == b"1"
    assert channel.basic_get(queue)[0] is None


def test_recover_requeues_all_that_is_unacked(channel, queue):
    fill(channel, queue, 3)
    for _ in range(2):
        channel.basic_get(queue)
    channel.basic_recover(requeue=True)
    got = [channel.basic_get(queue) for _ in range(3)]
    assert [(method.redelivered, body) for method, _, body in got] == [(True, b"0"), (True, b"1"), (False, b"2")]


def test_a_closed_channel_gives_its_messages_back_in_place(connection, channel, queue):
    fill(channel, queue, 4)
    taker = connection.channel()
    inbox = Inbox(taker)
    taker.basic_qos(prefetch_count=2)
    taker.basic_consume(queue, inbox)
    inbox.wait(2)
    taker.close()
    got = [channel.basic_get(queue) for _ in range(4)]
    assert [(method.redelivered, body) for method, _, body in got] == [(True, b"0"), (True, b"1"), (False, b"2"), (False, b"3")]


def test_prefetch_limits_each_consumer(channel, queue):
    fill(channel, queue, 10)
    first, second = Inbox(channel), Inbox(channel)
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(queue, first)
    channel.basic_qos(prefetch_count=3)
    channel.basic_consume(queue, second)
    first.wait(2)
    second.wait(3)
    poll(channel, lambda: ready(channel, queue) == 5)
    channel.basic_ack(first.got[0][0].delivery_tag)
    first.wait(3)
    poll(channel, lambda: ready(channel, queue) == 4)
    assert (len(first.got), len(second.got)) == (3, 3)


def test_a_global_prefetch_limits_the_channel(channel, queue):
    fill(channel, queue, 10)
    inboxes = [Inbox(channel), Inbox(channel)]
    channel.basic_qos(prefetch_count=3, global_qos=True)
    for inbox in inboxes:
        channel.basic_consume(queue, inbox)
    poll(channel, lambda: sum(len(inbox.got) for inbox in inboxes) == 3)
    assert ready(channel, queue) == 7
    tags = sorted(method.delivery_tag for inbox in inboxes for method, _, _ in inbox.got)
    channel.basic_ack(tags[-1], multiple=True)
    poll(channel, lambda: sum(len(inbox.got) for inbox in inboxes) == 6)
    assert ready(channel, queue) == 4


def test_prefetch_does_not_hold_back_auto_ack(channel, queue):
    fill(channel, queue, 50)
    inbox = Inbox(channel)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, inbox, auto_ack=True)
    inbox.wait(50)
    assert inbox.bodies() == numbers(*range(50))


def test_consumers_take_turns(channel, queue):
    first, second = Inbox(channel), Inbox(channel)
    channel.basic_consume(queue, first)
    channel.basic_consume(queue, second)
    for n in range(10):
        channel.basic_publish("", queue, str(n).encode())
    poll(channel, lambda: len(first.got) + len(second.got) == 10)
    assert (len(first.got), len(second.got)) == (5, 5)


def test_a_consumer_of_higher_priority_goes_first(channel, queue):
    low, high = Inbox(channel), Inbox(channel)
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(queue, low, arguments={"x-priority": -1})
    channel.basic_consume(queue, high, arguments={"x-priority": 5})
    fill(channel, queue, 3)
    poll(channel, lambda: len(low.got) + len(high.got) == 3)
    assert (high.bodies(), low.bodies()) == (numbers(0, 1), numbers(2))


def test_cancel_stops_deliveries_and_keeps_what_is_unacked(channel, queue):
    fill(channel, queue, 1)
    inbox = Inbox(channel)
    tag = channel.basic_consume(queue, inbox)
    inbox.wait(1)
    assert channel.basic_cancel(tag) == []
    channel.basic_publish("", queue, b"after")
    assert (ready(channel, queue), consumers(channel, queue)) == (1, 0)
    channel.basic_ack(inbox.got[0][0].delivery_tag)
    assert channel.basic_get(queue)[2] == b"after"


def test_the_client_is_told_when_its_queue_is_deleted(connection, channel, queue):
    cancelled = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)
    connection.channel().queue_delete(queue)
    poll(channel, lambda: cancelled)
    assert cancelled == [tag]


def test_an_exclusive_auto_ack_consumer_gets_another_connections_messages(connect, name):
    publisher = connect().channel()
    publisher.queue_declare(name, auto_delete=True)
    consumer = connect().channel()
    inbox = Inbox(consumer)
    consumer.basic_consume(name, inbox, auto_ack=True, exclusive=True)
    for n in range(100):
        publisher.basic_publish("", name, str(n).encode())
    inbox.wait(100)
    assert inbox.bodies() == numbers(*range(100))


TAKE_AND_DIE = """
import os, sys
import pika
from conftest import parameters

channel = pika.BlockingConnection(parameters()).channel()
for _ in range(3):
    assert channel.basic_get(sys.argv[1])[0]
os._exit(0)
"""


def test_a_client_that_dies_gives_its_messages_back(channel, name):
    channel.queue_declare(name)
    fill(channel, name, 3)
    subprocess.run([sys.executable, "-c", TAKE_AND_DIE, name], cwd=pathlib.Path(__file__).parent, check=True)
    poll(channel, lambda: ready(channel, name) == 3)
    got = [channel.basic_get(name) for _ in range(3)]
    assert [(method.redelivered, body) for method, _, body in got] == [(True, b"0"), (True, b"1"), (True, b"2")]
    channel.queue_delete(name)


def test_work_is_shared_by_threads_with_their_own_connections(channel, name):
    shared = name
    channel.queue_declare(shared)
    done, lock = [], threading.Lock()
    total = 300

    def work():
        connection = pika.BlockingConnection(parameters())
        worker = connection.channel()
        worker.basic_qos(prefetch_count=10)
        for method, _, body in worker.consume(shared, inactivity_timeout=0.1):
            with lock:
                if method:
                    done.append(int(body))
                finished = len(done) >= total
            if method:
                worker.basic_ack(method.delivery_tag)
            if finished:
                break
        connection.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    fill(channel, shared, total)
    for thread in threads:
        thread.join(30)
    assert sorted(done) == list(range(total))
    assert channel.queue_delete(shared).method.message_count == 0


def test_direct_reply_to_answers_without_a_queue(connect, channel, queue):
    inbox = Inbox(channel)
    channel.basic_consume("amq.rabbitmq.reply-to", inbox, auto_ack=True)
    channel.basic_publish("", queue, b"7", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="c"))
    _, request, body = channel.basic_get(queue, auto_ack=True)
    assert request.reply_to.startswith("amq.rabbitmq.reply-to.")
    server = connect().channel()
    server.basic_publish("", request.reply_to, body + b" squared", pika.BasicProperties(correlation_id=request.correlation_id))
    ((method, properties, answer),) = inbox.wait(1)
    assert (method.exchange, properties.correlation_id, answer) == ("", "c", b"7 squared")
