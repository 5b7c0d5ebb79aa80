"""Restarts the broker under test and raises its alarm, where what runs the suite offers it."""
import contextlib
import os
import urllib.request

import pytest

CONTROL = os.environ.get("BROKER_CONTROL", "")

needed = pytest.mark.skipif(not CONTROL, reason="nothing here restarts the broker or raises its alarm")


def _post(what):
    urllib.request.urlopen(urllib.request.Request(f"{CONTROL}/{what}", method="POST"), timeout=90).close()


def restart():
    """Stops the broker in good order and starts it again; it is ready when this returns."""
    _post("restart")


@contextlib.contextmanager
def alarm():
    """Publishers are paused inside the with statement."""
    _post("alarm")
    try:
        yield
    finally:
        _post("clear")
