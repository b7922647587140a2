"""How a benchmark that takes long tells its progress, and ends."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import Final

from bench.failure import BenchFailure
from statehouse.local.process import ProcessFailed

_BEGIN: Final = time.monotonic()


def say(text: str) -> None:
    """Print a line immediately, with the time since the start."""
    sys.stdout.write(f"{time.monotonic() - _BEGIN:7.1f} s  {text}\n")
    sys.stdout.flush()


def carried_out(work: Callable[[], None], left: str = "no results are written") -> int:
    """Carry out a benchmark; return the exit code: 0, 1 after saying why it failed, 130 if it was interrupted.

    `left` says what is left of an interrupted one.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers have their own sessions, so we must end them
    try:
        work()
    except (BenchFailure, ProcessFailed) as failure:
        say(f"error: {failure}")
        return 1
    except KeyboardInterrupt:
        say(f"interrupted: {left}")
        return 130
    return 0
