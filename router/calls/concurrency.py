"""Bounded fan-out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def map_bounded(
    work: Callable[[Item], Awaitable[Result]], items: Iterable[Item], *, at_once: int
) -> list[Result]:
    """Return `work(item)` of each item, in order; at most `at_once` run at a time.

    The first failure is raised and the rest is cancelled, because no caller would use its results.
    """
    room = asyncio.Semaphore(at_once)

    async def bounded(item: Item) -> Result:
        async with room:
            return await work(item)

    tasks: list[asyncio.Task[Result]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(bounded(item)) for item in items]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
