"""Follows streams of the page, as browsers do, until it is ended: `python -m bench.page.reader URL PATH…`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import httpx


async def follow(base: str, paths: Sequence[str]) -> None:
    """Read the streams of pages, and say when each has begun."""
    begun = [asyncio.Event() for _ in paths]

    async def read(client: httpx.AsyncClient, path: str, event: asyncio.Event) -> None:
        async with client.stream("GET", f"{base}/live/{path}") as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_bytes():
                event.set()

    async with httpx.AsyncClient(timeout=None) as client, asyncio.TaskGroup() as tasks:  # noqa: S113 - streams have none
        for path, event in zip(paths, begun, strict=True):
            tasks.create_task(read(client, path, event))
        await asyncio.gather(*(event.wait() for event in begun))
        print("follows", flush=True)  # noqa: T201 - for the process that started it
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(follow(sys.argv[1], sys.argv[2:]))
