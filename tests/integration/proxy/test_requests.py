"""How much of large requests the real proxy holds at the same time."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.link.proxy import ProxyLimits
from statehouse.rpc.channels import channel
from tests.integration.proxy.served import BATCH_GET, GET, TWICE, call, served

MIB = 1024 * 1024
LARGE = 4 * MIB
HELD = 4 * LARGE
CALLERS = 60
# The program itself, what it has of each connection, answers on their way, and what Go has not collected yet. Without a
# bound it takes more than 400 MiB.
REST = 240 * MIB


def most_memory(pid: int) -> int:
    """Return the most bytes of memory that a process has had so far."""
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found) * 1024


@pytest.mark.parametrize("path", [BATCH_GET, TWICE])
async def test_large_requests_of_many_connections_take_bounded_memory(path: str) -> None:
    bounds = ProxyLimits(LARGE, 100, 100, HELD)
    request = b"x" * (LARGE - 100)
    async with served(bounds=bounds) as it, AsyncExitStack() as stack:
        it.may_go_on.set()
        at = [await stack.enter_async_context(channel(it.target, LARGE)) for _ in range(CALLERS)]
        large = [asyncio.ensure_future(call(each, path, request, timeout_s=100)) for each in at]
        other = await stack.enter_async_context(channel(it.target, LARGE))
        small = 0
        while not all(each.done() for each in large):
            assert await call(other, GET, b"ab") == [b"ba"]
            small += 1
        assert small > 1
        outcomes = await asyncio.gather(*large)
        told = {each.reason if isinstance(each, LookupFailure) else len(each[0]) for each in outcomes}
        # The server takes no large request but a batch. The proxy carries all.
        assert told == {len(request) if path == BATCH_GET else Reason.INVALID_REQUEST}
        assert await asyncio.to_thread(most_memory, it.proxy.pid) < HELD + REST
