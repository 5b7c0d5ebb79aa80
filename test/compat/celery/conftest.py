"""The Celery and kombu suite: what applications with Celery's defaults see of an AMQP 0-9-1 broker.

It runs against any broker: set AMQP_URL, or nothing for one on localhost. The workers are processes
of their own, as "celery worker" starts them.
"""
import os
import subprocess
import sys
import time
import uuid

import kombu
import pytest

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672")
LIMIT = 60  # seconds for any single answer, the first one of a worker too: a busy machine takes many to start one


def eventually(condition, seconds=LIMIT):
    """Polls a condition of another process until it holds, and gives its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s")
        time.sleep(0.02)
    return value


@pytest.fixture
def name(request):
    """A name that no other test uses."""
    return f"{request.node.name[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def connect():
    """Opens kombu connections that are closed after the test."""
    opened = []

    def open_connection(url=URL, **options):
        connection = kombu.Connection(url, **options)
        opened.append(connection)
        connection.connect()
        return connection

    yield open_connection
    for connection in opened:
        connection.release()


@pytest.fixture
def connection(connect):
    return connect(transport_options={"confirm_publish": True})


@pytest.fixture
def channel(connection):
    return connection.channel()


class Worker:
    """A "celery worker" of its own process, with Celery's default pool."""

    def __init__(self, app, **environment):
        self.app = app
        self.node = f"worker-{uuid.uuid4().hex[:8]}@localhost"
        self.environment = environment
        self.start()

    def start(self):
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-E", "-c", "2", "-n", self.node, "-l", "WARNING"]
        self.process = subprocess.Popen(
            command,
            cwd=os.path.dirname(__file__),
            env={**os.environ, "AMQP_URL": URL, **self.environment},
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # so that killing it takes its pool along
        )
        eventually(self.answers)

    def answers(self):
        assert self.process.poll() is None, "the worker has ended"
        return self.app.control.ping([self.node], timeout=2)  # one that comes before its queue is there has no answer

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
