"""Lookups without threads, for tests that have no event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from query_service.reads.disk_reads import DiskReads, HasLeft

T = TypeVar("T")


class _Inline:
    async def run(self, _request: object, read: Callable[[HasLeft], T]) -> T:
        return read(lambda: False)


INLINE = cast("DiskReads", _Inline())
"""Reads at once, as all is in memory."""


def ended(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("it waits")
