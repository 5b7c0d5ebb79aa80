"""The Celery application that the workers run and the tests call."""
import os
import time

from celery import Celery

QUEUE = os.environ.get("CELERY_QUEUE", "celery")


def application(queue, **changes):
    """An application with Celery's defaults but for the name of its queue and quick retries."""
    made = Celery("tasks", broker=os.environ["AMQP_URL"], backend="rpc://")
    made.conf.update(
        task_default_queue=queue,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"interval_start": 0, "interval_step": 0.1, "interval_max": 0.2},
        broker_connection_timeout=5,
    )
    made.conf.update(changes)
    return made


changes = {}
if os.environ.get("CELERY_QUORUM"):
    changes["task_default_queue_type"] = "quorum"
app = application(QUEUE, **changes)


@app.task(name="tasks.add")
def add(x, y):
    return x + y


@app.task(name="tasks.fail")
def fail(text):
    raise ValueError(text)


@app.task(name="tasks.flaky", bind=True, max_retries=3)
def flaky(self, failures):
    """Fails so many times, then says how often it was tried again."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.05)
    return self.request.retries


@app.task(name="tasks.held")
def held(path):
    """Ends when there is a file."""
    while not os.path.exists(path):
        time.sleep(0.02)


@app.task(name="tasks.once_more", acks_late=True)
def once_more(path):
    """Writes a line to the file, and ends only when there are two: the first try never ends."""
    with open(path, "a", encoding="utf-8") as file:
        file.write("try\n")
    with open(path, encoding="utf-8") as file:
        tries = len(file.readlines())
    while tries < 2:
        time.sleep(0.02)
    return tries
