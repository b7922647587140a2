"""A bound on how long a process may take to stop, whatever a store, a disk or a thread does."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)

EXIT_CODE: Final = 1
"""The exit code of a process that has ended so: an error, as commands have it."""
CLOSE_S: Final = 30.0
"""How long a server's closing may take on top of its calls' grace: large stores write for seconds what they hold."""
_THREADS_END_S: Final = 5.0


class StopDeadline:
    """Ends the process when a stop takes too long, and says what is left to do.

    It has a thread of its own: what hangs may be the event loop, or a thread that the interpreter would wait for.
    State that isn't closed is as after a crash: the next start reads on from its last checkpoint.
    """

    def __init__(self, seconds: float, left: Callable[[], str]) -> None:
        """Begin to count. `left()` says what is being done."""
        self._seconds, self._left = seconds, left
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        """The stop has ended."""
        self._timer.cancel()

    def _end(self) -> None:
        log.error("the stop takes too long, the process ends as it is", seconds=self._seconds, left=self._left())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_CODE)


async def end_threads() -> None:
    """Wait until asyncio's threads have ended, within a bound: the last thing that a process does on its event loop.

    One that waits for a disk would be waited for without end, by asyncio and then by the interpreter.
    """
    bound = StopDeadline(_THREADS_END_S, lambda: "work on threads")
    await asyncio.get_running_loop().shutdown_default_executor()
    bound.close()
