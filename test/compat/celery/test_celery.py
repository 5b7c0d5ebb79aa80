"""Celery: tasks, results over rpc://, retries, control, events, and a broker that restarts."""
import time
import uuid

import pytest
from celery import chain, group
from celery.exceptions import TaskRevokedError
from kombu import pools

import control
import tasks
from conftest import LIMIT, Worker, eventually


@pytest.fixture(scope="module")
def queue():
    return f"celery-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def app(queue):
    """The tests' side of the application."""
    made = tasks.application(queue)
    yield made
    with made.connection_for_write() as connection:
        connection.default_channel.queue_delete(queue)
    made.close()


@pytest.fixture(scope="module")
def worker(app, queue):
    running = Worker(app, CELERY_QUEUE=queue)
    yield running
    running.kill()


@pytest.fixture
def call(app, worker):
    """Sends a task by its name and gives its result's handle."""
    return lambda name, *args, **options: app.send_task("tasks." + name, args, **options)


def test_a_task_gives_its_result(call):
    assert call("add", 2, 3).get(timeout=LIMIT) == 5


def test_many_tasks_at_once(call):
    results = [call("add", n, n) for n in range(100)]
    assert [result.get(timeout=LIMIT) for result in results] == [2 * n for n in range(100)]


def test_an_exception_comes_back(call):
    with pytest.raises(ValueError, match="boom"):
        call("fail", "boom").get(timeout=LIMIT)


def test_a_task_is_tried_again(call):
    assert call("flaky", 3).get(timeout=LIMIT) == 3


def test_a_task_is_not_tried_for_ever(call):
    result = call("flaky", 4)
    with pytest.raises(Exception, match="Can't retry"):
        result.get(timeout=LIMIT)


def test_a_countdown(call):
    start = time.monotonic()
    assert call("add", 1, 1, countdown=0.5).get(timeout=LIMIT) == 2
    assert time.monotonic() - start >= 0.45


def test_an_expired_task_is_revoked(call):
    with pytest.raises(TaskRevokedError):
        call("add", 1, 1, countdown=0.2, expires=0.1).get(timeout=LIMIT)


def test_groups_and_chains(app, worker):
    add = app.signature
    assert group(add("tasks.add", (n, 1)) for n in range(10))().get(timeout=LIMIT) == list(range(1, 11))
    assert chain(add("tasks.add", (1, 1)), add("tasks.add", (10,)), add("tasks.add", (100,)))().get(timeout=LIMIT) == 112


def test_a_large_argument(call):
    text = "0123456789abcdef" * 50_000
    assert call("add", text, text).get(timeout=LIMIT) == text + text


def test_inspection(app, worker, queue, tmp_path):
    inspect = app.control.inspect([worker.node], timeout=LIMIT)
    assert inspect.ping() == {worker.node: {"ok": "pong"}}
    assert "tasks.add" in inspect.registered()[worker.node]
    assert [q["name"] for q in inspect.active_queues()[worker.node]] == [queue]
    assert inspect.stats()[worker.node]["broker"]["transport"] == "amqp"
    end = tmp_path / "end"
    result = app.send_task("tasks.held", (str(end),))
    eventually(lambda: [task["id"] for task in inspect.active()[worker.node]] == [result.id])
    end.touch()
    assert result.get(timeout=LIMIT) is None


def test_a_task_is_revoked_by_the_control_command(app, call, worker):
    result = call("add", 1, 1, countdown=60)
    inspect = app.control.inspect([worker.node], timeout=LIMIT)
    eventually(lambda: inspect.scheduled()[worker.node])
    app.control.revoke(result.id)
    eventually(lambda: result.id in inspect.revoked()[worker.node])
    app.control.broadcast("revoke", arguments={"task_id": result.id, "terminate": True}, destination=[worker.node], reply=True, timeout=LIMIT)


def test_a_worker_is_told_to_consume_another_queue(app, call, worker, queue):
    other = queue + "-other"
    (answer,) = app.control.add_consumer(other, reply=True, destination=[worker.node], timeout=LIMIT)
    assert "ok" in answer[worker.node]
    assert call("add", 3, 4, queue=other).get(timeout=LIMIT) == 7
    (answer,) = app.control.cancel_consumer(other, reply=True, destination=[worker.node], timeout=LIMIT)
    assert "ok" in answer[worker.node]
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete(other)


def test_events_tell_a_tasks_life(app, call, worker):
    seen = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        with receiver.consumer_context() as (consuming, _, _):
            result = call("add", 5, 6)

            def succeeded():
                try:
                    consuming.drain_events(timeout=0.1)
                except TimeoutError:
                    pass
                return [event["type"] for event in seen if event.get("uuid") == result.id][-1:] == ["task-succeeded"]

            eventually(succeeded)
    assert [event["type"] for event in seen if event.get("uuid") == result.id] == ["task-received", "task-started", "task-succeeded"]
    assert result.get(timeout=LIMIT) == 11


def test_a_late_acked_task_survives_its_worker(app, call, worker, tmp_path):
    path = tmp_path / "tries"
    result = call("once_more", str(path))
    eventually(lambda: path.exists() and path.read_text())
    worker.kill()
    worker.start()
    assert result.get(timeout=LIMIT) == 2


def test_a_worker_is_told_to_stop(app, worker):
    app.control.shutdown([worker.node])
    assert worker.process.wait(LIMIT) == 0


def test_quorum_queues_with_celerys_own_delayed_delivery():
    queue = f"celery-quorum-{uuid.uuid4().hex[:8]}"
    app = tasks.application(queue, task_default_queue_type="quorum")
    worker = Worker(app, CELERY_QUEUE=queue, CELERY_QUORUM="1")
    try:
        results = [app.send_task("tasks.add", (n, 1)) for n in range(10)]
        assert [result.get(timeout=LIMIT) for result in results] == list(range(1, 11))
        start = time.monotonic()
        assert app.send_task("tasks.add", (1, 1), countdown=2).get(timeout=LIMIT) == 2
        assert time.monotonic() - start >= 1
    finally:
        worker.kill()
        with app.connection_for_write() as connection:
            connection.default_channel.queue_delete(queue)
        app.close()


@control.needed
def test_a_worker_comes_back_after_a_restart():
    queue = f"celery-restart-{uuid.uuid4().hex[:8]}"
    app = tasks.application(queue)
    worker = Worker(app, CELERY_QUEUE=queue)
    try:
        assert app.send_task("tasks.add", (1, 1)).get(timeout=LIMIT) == 2
        for n in range(2):
            app.close()
            pools.reset()  # the pooled connections are those of before
            control.restart()
            worker.app = app = tasks.application(queue)
            eventually(worker.answers)
            assert app.send_task("tasks.add", (2, n)).get(timeout=LIMIT) == 2 + n
    finally:
        worker.kill()
        with app.connection_for_write() as connection:
            connection.default_channel.queue_delete(queue)
        app.close()
