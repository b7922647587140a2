"""The bound of a stop, in a process of its own, which it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from statehouse.cli.exits import ExitCode
from statehouse.runtime.stop_deadline import StopDeadline

_HANGS = """
import threading
from statehouse.runtime.stop_deadline import StopDeadline
StopDeadline(0.2, lambda: "a store")
threading.Event().wait()
"""


def test_a_stop_that_hangs_ends_and_says_what_it_left() -> None:
    ended = subprocess.run([sys.executable, "-c", _HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == ExitCode.ERROR
    assert "a store" in ended.stdout + ended.stderr


def test_a_stop_in_time_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = StopDeadline(60.0, lambda: "nothing")
    bound.close()
    bound._timer.join(10.0)
    assert not bound._timer.is_alive()
