"""Queues and exchanges: errors, time to live, limits, priorities, a single active consumer, routing."""
import aio_pika
import pytest
from aio_pika.exceptions import ChannelClosed, ChannelNotFoundEntity, ChannelPreconditionFailed, ConnectionClosed, DuplicateConsumerTag
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource

from conftest import VHOST, Inbox, eventually, numbers, ready


async def test_a_missing_queue_or_exchange_is_404(connection, name):
    for call in ("get_queue", "get_exchange"):
        channel = await connection.channel()
        with pytest.raises(ChannelNotFoundEntity) as missing:
            await getattr(channel, call)(name)
        assert f"NOT_FOUND - no {call[4:]} '{name}' in vhost '{VHOST}'" in str(missing.value)


async def test_publishing_to_a_missing_exchange_closes_the_channel(connection):
    channel = await connection.channel()
    exchange = await channel.get_exchange("nowhere", ensure=False)
    with pytest.raises(ChannelNotFoundEntity):
        await exchange.publish(aio_pika.Message(b"m"), "k")
    assert not connection.is_closed


async def test_what_is_forbidden_is_403(connection):
    channel = await connection.channel()
    with pytest.raises(ChannelAccessRefused) as refused:
        await channel.declare_queue("amq.mine")
    assert "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'" in str(refused.value)


async def test_another_connections_exclusive_queue_is_405(connect, queue):
    channel = await (await connect()).channel()
    with pytest.raises(ChannelLockedResource) as refused:
        await channel.get_queue(queue.name)
    assert "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue" in str(refused.value)


async def test_other_properties_are_406(connection, queue):
    channel = await connection.channel()
    with pytest.raises(ChannelPreconditionFailed) as refused:
        await channel.declare_queue(queue.name, exclusive=True, auto_delete=True)
    assert f"inequivalent arg 'auto_delete' for queue '{queue.name}' in vhost '{VHOST}': received 'true' but current is 'false'" in str(refused.value)


async def test_a_consumer_tag_used_twice(connection, queue):
    await queue.consume(lambda _: None, consumer_tag="tag")
    with pytest.raises(DuplicateConsumerTag):  # the client's own check, before the broker's 530
        await queue.consume(lambda _: None, consumer_tag="tag")


async def test_a_prefetch_size_is_540_and_closes_the_connection(connection, channel):
    with pytest.raises((ConnectionClosed, ChannelClosed, NotImplementedError)) as refused:
        await channel.set_qos(prefetch_size=10)
    assert "NOT_IMPLEMENTED - prefetch_size!=0 (10)" in str(refused.value)
    await eventually(lambda: connection.is_closed or connection.transport.connection.is_closed)


async def test_expired_messages_are_dead_lettered(channel, name, publish):
    dead = await channel.declare_queue(name + "-dead", exclusive=True)
    arguments = {"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
    short = await channel.declare_queue(name + "-short", exclusive=True, arguments=arguments)
    await publish(b"m", short.name)
    await eventually(lambda: ready(channel, dead.name))
    message = await dead.get()
    (death,) = message.headers["x-death"]
    assert (death["reason"], death["queue"], death["count"], death["routing-keys"]) == ("expired", short.name, 1, [short.name])
    assert await ready(channel, short.name) == 0


async def test_a_messages_own_expiration(channel, queue, publish):
    await publish(b"m", expiration=0.02)

    async def gone():
        return await ready(channel, queue.name) == 0

    await eventually(gone)


async def test_a_full_queue_drops_its_head(channel, name, publish):
    queue = await channel.declare_queue(name + "-full", exclusive=True, arguments={"x-max-length": 3})
    for n in range(5):
        await publish(str(n).encode(), queue.name)
    assert [(await queue.get()).body for _ in range(3)] == numbers(2, 3, 4)


async def test_higher_priorities_come_first(channel, name, publish):
    queue = await channel.declare_queue(name + "-p", exclusive=True, arguments={"x-max-priority": 5})
    for n, priority in enumerate((1, 5, 0, 5, 3)):
        await publish(str(n).encode(), queue.name, priority=priority)
    assert [(await queue.get()).body for _ in range(5)] == numbers(1, 3, 4, 0, 2)


async def test_one_active_consumer_at_a_time(connection, channel, name, publish):
    queue = await channel.declare_queue(name + "-sac", exclusive=True, arguments={"x-single-active-consumer": True})
    first, second = Inbox(ack=True), Inbox(ack=True)
    tag = await queue.consume(first)
    standby = await connection.channel()
    await (await standby.get_queue(queue.name)).consume(second)
    for n in range(5):
        await publish(str(n).encode(), queue.name)
    await first.wait(5)
    assert not second.got
    await queue.cancel(tag)
    await publish(b"5", queue.name)
    await second.wait(1)
    assert second.bodies() == [b"5"]


async def test_consumer_priorities(channel, queue, publish):
    low, high = Inbox(ack=True), Inbox(ack=True)
    await queue.consume(low, arguments={"x-priority": -1})
    await queue.consume(high, arguments={"x-priority": 5})
    for n in range(5):
        await publish(str(n).encode())
    await high.wait(5)
    assert not low.got


async def test_exchanges_of_every_type_route(connection, name, queue):
    channel = await connection.channel()
    topic = await channel.declare_exchange(name + "-topic", aio_pika.ExchangeType.TOPIC, auto_delete=True)
    headers = await channel.declare_exchange(name + "-headers", aio_pika.ExchangeType.HEADERS, auto_delete=True)
    fanout = await channel.declare_exchange(name + "-fanout", aio_pika.ExchangeType.FANOUT, auto_delete=True)
    await headers.bind(topic, "order.#")
    await fanout.bind(headers, "", arguments={"x-match": "all", "region": "eu"})
    await queue.bind(fanout, "")
    for key, region in (("order.paid.now", "eu"), ("order.paid", "us"), ("invoice", "eu")):
        await topic.publish(aio_pika.Message(b"m", headers={"region": region}), key, mandatory=False)
    message = await queue.get()
    assert (message.exchange, message.routing_key, message.headers["region"]) == (topic.name, "order.paid.now", "eu")
    assert await queue.get(fail=False) is None
