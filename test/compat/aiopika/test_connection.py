"""Connections: login, heartbeats, alarms, and coming back after a restart."""
import asyncio
import logging

import aio_pika
import pytest
from aio_pika.exceptions import AMQPConnectionError, InvalidFrameError, ProbableAuthenticationError

import control
from conftest import LIMIT, URL, Inbox, eventually, ready


async def test_a_wrong_password_is_named_as_such():
    with pytest.raises(ProbableAuthenticationError) as refused:
        await aio_pika.connect(URL.with_password("wrong"))
    assert "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN" in str(refused.value)


async def test_an_unknown_vhost_is_refused():
    with pytest.raises(InvalidFrameError) as refused:
        await aio_pika.connect(URL.with_path("/nowhere"))
    assert "Expected one of ['Connection.OpenOk'], got <Connection.Close" in str(refused.value)  # all that aio-pika tells


async def test_a_port_where_nobody_listens_is_an_error():
    with pytest.raises((AMQPConnectionError, OSError)):
        await aio_pika.connect(URL.with_host("127.0.0.1").with_port(1), timeout=LIMIT)


async def test_heartbeats_keep_an_idle_connection(connect):
    connection = await connect(query={"heartbeat": "1"})
    closed = asyncio.ensure_future(connection.closed())
    done, _ = await asyncio.wait({closed}, timeout=4)
    closed.cancel()
    assert not done
    await connection.channel()


async def test_many_channels_work_side_by_side(connection, queue, publish):
    channels = await asyncio.gather(*(connection.channel() for _ in range(100)))
    await asyncio.gather(*(channel.default_exchange.publish(aio_pika.Message(b"m"), queue.name) for channel in channels))
    assert await ready(channels[0], queue.name) == 100


@control.needed
async def test_publishers_wait_for_the_end_of_an_alarm(connect, name, caplog):
    caplog.set_level(logging.WARNING, "aiormq")
    connection = await connect()
    channel = await connection.channel()
    queue = await channel.declare_queue(name, exclusive=True)

    def publish():
        return asyncio.ensure_future(channel.default_exchange.publish(aio_pika.Message(b"m"), queue.name))

    await publish()
    with control.alarm():
        meets_it = publish()
        await eventually(lambda: "was blocked by" in caplog.text)
        later = publish()
        done, _ = await asyncio.wait({later}, timeout=0.3)
        assert not done
    async with asyncio.timeout(LIMIT):
        await meets_it
        await later
    assert "was unblocked" in caplog.text


@control.needed
async def test_a_plain_connection_is_told_of_the_shutdown(connect):
    connection = await connect()
    reasons = []
    connection.close_callbacks.add(lambda _, reason: reasons.append(reason))
    await asyncio.to_thread(control.restart)
    await eventually(lambda: reasons)
    assert "CONNECTION_FORCED" in str(reasons[0])


@control.needed
async def test_a_robust_connection_brings_its_topology_back(connect, name):
    connection = await connect(aio_pika.connect_robust, reconnect_interval=0.1)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=5)
    exchange = await channel.declare_exchange(name, "topic", auto_delete=True)
    queue = await channel.declare_queue(name, exclusive=True)
    await queue.bind(exchange, "order.*")
    durable = await channel.declare_queue(name + "-durable", durable=True)
    inbox, backlog = Inbox(ack=True), Inbox(ack=True)
    await queue.consume(inbox)
    await channel.default_exchange.publish(aio_pika.Message(b"kept", delivery_mode=aio_pika.DeliveryMode.PERSISTENT), durable.name)
    await exchange.publish(aio_pika.Message(b"before"), "order.paid")
    await inbox.wait(1)

    for n in range(2):
        back = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_, back=back: back.set())
        await asyncio.to_thread(control.restart)
        async with asyncio.timeout(LIMIT):
            await back.wait()
            await exchange.publish(aio_pika.Message(b"after"), "order.paid")
        await inbox.wait(2 + n)
    assert inbox.bodies() == [b"before", b"after", b"after"]

    await durable.consume(backlog)
    await backlog.wait(1)
    assert backlog.bodies() == [b"kept"]
    await durable.delete(if_unused=False, if_empty=False)


@control.needed
async def test_an_unacked_message_comes_again_after_a_restart(connect, name):
    connection = await connect(aio_pika.connect_robust, reconnect_interval=0.1)
    channel = await connection.channel()
    queue = await channel.declare_queue(name, durable=True)
    inbox = Inbox()
    await channel.default_exchange.publish(aio_pika.Message(b"m", delivery_mode=2), name)
    await queue.consume(inbox)
    await inbox.wait(1)
    await asyncio.to_thread(control.restart)
    first, second = await inbox.wait(2)
    assert (first.body, first.redelivered, second.body) == (b"m", False, b"m")
    await second.ack()
    await queue.delete(if_unused=False, if_empty=False)
