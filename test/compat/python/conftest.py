"""The pika suite: what a Python application sees of an AMQP 0-9-1 broker.

It runs against any broker: set AMQP_URL, or nothing for one on localhost. Names are unique to a
test, so a run leaves nothing that disturbs the next.
"""
import os
import time
import urllib.parse
import uuid

import pika
import pytest

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672")
VHOST = urllib.parse.unquote(urllib.parse.urlparse(URL).path[1:]) or "/"


def parameters(**changes):
    """The URL's connection parameters with some changed."""
    p = pika.URLParameters(URL)
    for name, value in changes.items():
        setattr(p, name, value)
    return p


def product(connection):
    """The broker's name: "FireMQ" or "RabbitMQ"."""
    return connection._impl.server_properties["product"]


def ready(channel, queue):
    """How many messages are ready in the queue."""
    return channel.queue_declare(queue, passive=True).method.message_count


def consumers(channel, queue):
    return channel.queue_declare(queue, passive=True).method.consumer_count


def poll(channel, condition, seconds=20):
    """Serves the connection until the condition holds; it fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        channel.connection.process_data_events(time_limit=0.01)
    pytest.fail(f"not within {seconds} s")


class Inbox:
    """Collects the deliveries of consumers in the order of their arrival."""

    def __init__(self, channel):
        self.channel = channel
        self.got = []

    def __call__(self, channel, method, properties, body):
        self.got.append((method, properties, body))

    def wait(self, n):
        """Waits for n deliveries in all and gives them back."""
        poll(self.channel, lambda: len(self.got) >= n)
        return self.got

    def bodies(self):
        return [body for _, _, body in self.got]


@pytest.fixture
def connect():
    """Opens connections that are closed after the test."""
    opened = []

    def open_connection(**changes):
        connection = pika.BlockingConnection(parameters(**changes))
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def connection(connect):
    return connect()


@pytest.fixture
def channel(connection):
    return connection.channel()


@pytest.fixture
def name(request):
    """A name that no other test uses."""
    return f"{request.node.name[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def queue(channel, name):
    """An empty queue, deleted after the test with its connection."""
    channel.queue_declare(name, exclusive=True)
    return name
