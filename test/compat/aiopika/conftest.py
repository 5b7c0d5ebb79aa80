"""The aio-pika suite: what a Python application on asyncio sees of an AMQP 0-9-1 broker.

It runs against any broker: set AMQP_URL, or nothing for one on localhost. Names are unique to a
test, so a run leaves nothing that disturbs the next.
"""
import asyncio
import os
import uuid

import aio_pika
import pytest
from yarl import URL as Address

URL = Address(os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672"))
if URL.path in ("", "/"):
    URL = URL.with_path("//")  # aio-pika's way to write the vhost "/"
VHOST = URL.path[1:]

LIMIT = 20  # seconds for any single answer


async def eventually(condition):
    """Polls a condition of the broker, a plain or an async function, until it holds."""
    async with asyncio.timeout(LIMIT):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.01)


class Inbox:
    """Collects the deliveries of a consumer in the order of their arrival."""

    def __init__(self, *, ack=False):
        self.ack = ack
        self.got = []

    async def __call__(self, message):
        self.got.append(message)
        if self.ack:
            await message.ack()

    async def wait(self, n):
        await eventually(lambda: len(self.got) >= n)
        return self.got

    def bodies(self):
        return [message.body for message in self.got]


async def ready(channel, queue):
    """How many messages are ready in the queue of that name."""
    return (await channel.declare_queue(queue, passive=True)).declaration_result.message_count


def numbers(*wanted):
    return [str(n).encode() for n in wanted]


@pytest.fixture
async def connect():
    """Opens connections that are closed after the test."""
    opened = []

    async def open_connection(how=aio_pika.connect, query=None, **changes):
        connection = await how(URL.update_query(query or {}), timeout=LIMIT, **changes)
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        await connection.close()


@pytest.fixture
async def connection(connect):
    return await connect()


@pytest.fixture
async def channel(connection):
    return await connection.channel()


@pytest.fixture
def name(request):
    """A name that no other test uses."""
    return f"{request.node.originalname[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def queue(channel, name):
    """An empty queue, deleted after the test with its connection."""
    return await channel.declare_queue(name, exclusive=True)


@pytest.fixture
def publish(channel, queue):
    """Publishes to the queue and waits for the confirm."""

    async def to_queue(body, to=None, **properties):
        return await channel.default_exchange.publish(aio_pika.Message(body, **properties), to or queue.name)

    return to_queue
