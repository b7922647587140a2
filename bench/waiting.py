"""Waiting for processes, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from bench.failure import BenchFailure

T = TypeVar("T")

_POLL_S: Final = 0.05


def wait_for(predicate: Callable[[], T], timeout_s: float, what: str, *, for_s: float = 0.0) -> T:
    """Call `predicate` until it has returned something truthy for `for_s` without a break; return its last value.

    Raises:
        BenchFailure: that took longer than `timeout_s`; the message names `what`.

    """
    deadline = time.monotonic() + timeout_s
    since: float | None = None
    while True:
        answer, now = predicate(), time.monotonic()
        since = (since or now) if answer else None
        if since is not None and now - since >= for_s:
            return answer
        if now > deadline:
            raise BenchFailure(f"waited {timeout_s:g} s for {what}")
        time.sleep(_POLL_S)
