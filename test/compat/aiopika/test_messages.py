"""Publishing and consuming: confirms, returns, settlement, prefetch, transactions, replies."""
import asyncio
import datetime

import aio_pika
import pytest
from aio_pika.exceptions import DeliveryError, PublishError, QueueEmpty

from conftest import Inbox, eventually, numbers, ready


async def test_publishes_without_waiting_are_all_confirmed(channel, queue, publish):
    confirms = await asyncio.gather(*(publish(str(n).encode()) for n in range(500)))
    assert all(confirm is not None for confirm in confirms)
    assert await ready(channel, queue.name) == 500


async def test_persistent_messages_are_confirmed(channel, name, publish):
    queue = await channel.declare_queue(name + "-durable", durable=True)
    await asyncio.gather(*(publish(b"m", queue.name, delivery_mode=aio_pika.DeliveryMode.PERSISTENT) for _ in range(50)))
    assert (await queue.delete(if_unused=False, if_empty=False)).message_count == 50


async def test_an_unroutable_message_comes_back(connection):
    channel = await connection.channel(on_return_raises=True)
    with pytest.raises(PublishError) as returned:
        await channel.default_exchange.publish(aio_pika.Message(b"back", message_id="m"), "nowhere", mandatory=True)
    message = returned.value.message
    assert (message.delivery.reply_code, message.delivery.reply_text) == (312, "NO_ROUTE")
    assert (message.body, message.header.properties.message_id) == (b"back", "m")


async def test_an_unroutable_message_is_the_result_of_its_publish(channel):
    returned = await channel.default_exchange.publish(aio_pika.Message(b"back"), "nowhere", mandatory=True)
    assert (returned.delivery.reply_code, returned.body) == (312, b"back")


async def test_a_full_queue_that_rejects_nacks(channel, name, publish):
    await channel.declare_queue(name + "-full", exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await publish(b"fits", name + "-full")
    with pytest.raises(DeliveryError):
        await publish(b"too many", name + "-full")


async def test_get_and_what_is_not_there(queue, publish):
    with pytest.raises(QueueEmpty):
        await queue.get()
    assert await queue.get(fail=False) is None
    await publish(b"1")
    await publish(b"2")
    message = await queue.get()
    assert (message.body, message.message_count, message.redelivered, message.routing_key) == (b"1", 1, False, queue.name)
    await message.ack()
    assert (await queue.get(no_ack=True)).body == b"2"


async def test_messages_arrive_in_order(queue, publish):
    for n in range(200):
        await publish(str(n).encode())
    inbox = Inbox()
    await queue.consume(inbox, no_ack=True)
    await inbox.wait(200)
    assert inbox.bodies() == numbers(*range(200))
    assert [message.delivery_tag for message in inbox.got] == list(range(1, 201))


async def test_process_acks_what_succeeds_and_rejects_what_raises(channel, name, publish):
    dead = await channel.declare_queue(name + "-dead", exclusive=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
    work = await channel.declare_queue(name + "-work", exclusive=True, arguments=arguments)
    for body in (b"good", b"bad"):
        await publish(body, work.name)
    async with (await work.get()).process():
        pass
    with pytest.raises(ValueError):
        async with (await work.get()).process():
            raise ValueError
    assert await ready(channel, work.name) == 0
    await eventually(lambda: ready(channel, dead.name))
    message = await dead.get()
    assert (message.body, message.headers["x-death"][0]["reason"], message.headers["x-first-death-queue"]) == (b"bad", "rejected", work.name)


async def test_requeued_messages_return_to_their_place(queue, publish):
    for n in range(4):
        await publish(str(n).encode())
    one, two, three = [await queue.get() for _ in range(3)]
    await three.nack(requeue=True)
    await one.reject(requeue=True)
    await two.nack(requeue=True)
    got = [await queue.get() for _ in range(4)]
    assert [(message.body, message.redelivered) for message in got] == list(zip(numbers(0, 1, 2, 3), (True, True, True, False)))


async def test_prefetch_holds_deliveries_back(connection, channel, queue, publish):
    for n in range(10):
        await publish(str(n).encode())
    await channel.set_qos(prefetch_count=3)
    inbox = Inbox()
    await queue.consume(inbox)
    await inbox.wait(3)
    other = await connection.channel()
    assert await ready(channel, queue.name) == 7
    await inbox.got[2].ack(multiple=True)
    await inbox.wait(6)
    assert await ready(channel, queue.name) == 4
    await other.close()


async def test_a_prefetch_for_the_whole_channel(channel, queue, publish):
    for n in range(10):
        await publish(str(n).encode())
    await channel.set_qos(prefetch_count=4, global_=True)
    inbox = Inbox()
    await queue.consume(inbox)
    await queue.consume(inbox)
    await inbox.wait(4)
    assert await ready(channel, queue.name) == 6


async def test_the_client_is_told_when_its_queue_is_deleted(connection, channel, queue):
    cancelled = []
    (await channel.get_underlay_channel()).on_consumer_cancel_callbacks.add(cancelled.append)
    tag = await queue.consume(lambda _: None)
    await (await connection.channel()).queue_delete(queue.name)
    await eventually(lambda: cancelled)
    assert cancelled[0].consumer_tag == tag


async def test_the_iterator_gives_what_arrives(queue, publish):
    for n in range(10):
        await publish(str(n).encode())
    got = []
    async with queue.iterator() as messages:
        async for message in messages:
            async with message.process():
                got.append(message.body)
            if len(got) == 10:
                break
    assert got == numbers(*range(10))


async def test_cancel_stops_deliveries(channel, queue, publish):
    inbox = Inbox()
    tag = await queue.consume(inbox)
    await queue.cancel(tag)
    await publish(b"later")
    assert await ready(channel, queue.name) == 1
    assert not inbox.got


async def test_a_transaction_publishes_at_commit(connection, channel, queue):
    transactional = await connection.channel(publisher_confirms=False)
    async with transactional.transaction():
        for _ in range(3):
            await transactional.default_exchange.publish(aio_pika.Message(b"m"), queue.name)
        assert await ready(channel, queue.name) == 0
    assert await ready(channel, queue.name) == 3
    with pytest.raises(ValueError):
        async with transactional.transaction():
            await transactional.default_exchange.publish(aio_pika.Message(b"m"), queue.name)
            raise ValueError
    assert await ready(channel, queue.name) == 3


async def test_rpc_by_the_librarys_own_pattern(connect, name):
    from aio_pika.patterns import RPC

    server = await RPC.create(await (await connect()).channel())
    client = await RPC.create(await (await connect()).channel())

    async def multiply(*, x, y):
        return x * y

    await server.register(name, multiply, auto_delete=True)
    assert await asyncio.gather(*(client.call(name, {"x": n, "y": 2}) for n in range(20))) == [2 * n for n in range(20)]
    await client.close()
    await server.close()


async def test_direct_reply_to(connection, queue):
    client = await connection.channel()
    answers = asyncio.get_running_loop().create_future()
    replies = await client.get_queue("amq.rabbitmq.reply-to", ensure=False)
    await replies.consume(answers.set_result, no_ack=True)
    await client.default_exchange.publish(aio_pika.Message(b"7", reply_to="amq.rabbitmq.reply-to", correlation_id="c"), queue.name)
    request = await queue.get(no_ack=True)
    assert request.reply_to.startswith("amq.rabbitmq.reply-to.")
    server = await connection.channel()
    await server.default_exchange.publish(aio_pika.Message(b"49", correlation_id=request.correlation_id), request.reply_to)
    answer = await asyncio.wait_for(answers, 20)
    assert (answer.body, answer.correlation_id) == (b"49", "c")


@pytest.mark.parametrize("size", [0, 1, 131064, 131065, 5_000_000])
async def test_bodies_come_back_equal(queue, publish, size):
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    await publish(body)
    assert (await queue.get(no_ack=True)).body == body


async def test_properties_and_headers_come_back(queue, publish):
    at = datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    properties = {
        "headers": {"text": "grüße", "yes": True, "n": -7, "long": 1 << 40, "none": None, "list": [1, "two"], "table": {"deep": 1}, "float": 0.5},
        "content_type": "text/plain",
        "content_encoding": "identity",
        "delivery_mode": aio_pika.DeliveryMode.PERSISTENT,
        "priority": 7,
        "correlation_id": "c-1",
        "reply_to": "answers",
        "expiration": 60.0,
        "message_id": "m-1",
        "timestamp": at,
        "type": "greeting",
        "user_id": "guest",
        "app_id": "suite",
    }
    await publish(b"", **properties)
    message = await queue.get(no_ack=True)
    for key, value in properties.items():
        assert getattr(message, key) == value, key
