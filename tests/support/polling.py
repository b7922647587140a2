"""The one place where tests wait.

A fixed sleep is too short on a busy machine or too long on a quiet one. Tests wait for the state that they mean.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

from statehouse.runtime.backoff import Backoff, BackoffPolicy

T = TypeVar("T")

_PAUSES: Final = BackoffPolicy("poll", first_s=0.005, longest_s=0.1)


def poll_until(predicate: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Call `predicate` until it returns something truthy, and return that.

    Asks once more after the deadline, so a long pause of this process alone fails nothing. Raises AssertionError,
    naming `what` and the last answer; what `predicate` raises is not caught, as it would hide a broken predicate.
    """
    deadline = time.monotonic() + timeout_s
    backoff = Backoff(_PAUSES)
    while True:
        is_last = time.monotonic() >= deadline
        answer = predicate()
        if answer:
            return answer
        if is_last:
            raise AssertionError(f"waited {timeout_s:g} s for {what}; the last answer was {answer!r}")
        time.sleep(backoff.failed())


async def poll_until_async(predicate: Callable[[], object], timeout_s: float, what: str) -> None:
    """Like `poll_until`, for what this event loop has to do meanwhile."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout_s
    while not predicate():
        if loop.time() > give_up_at:
            poll_until(predicate, 0.0, what)
        await asyncio.sleep(0.005)
