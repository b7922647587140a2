"""Callers that mean ill: `python -m bench.floods.flooder KIND TARGET STORE COUNT SECONDS`.

It prints as JSON what came of it, and how often. The kinds are the functions below. Each ends when it has its answers,
or has held what it took for so many seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from statehouse.rpc.channels import channel
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2

MIB: Final = 1024 * 1024
# Per connection; a client that opens more streams waits on its own.
_STREAMS_EACH: Final = 500
# What this process can hold.
_LARGE_AT_ONCE: Final = 200
_FAR_S: Final = 3_600.0
_CONNECTS_WITHIN_S: Final = 60.0

Outcomes = Counter[str]
# An aio channel's stub has the methods of the other one, which awaitables come of.
Stub: TypeAlias = "query_service_pb2_grpc.QueryServiceAsyncStub"


async def idle_connections(target: str, _store: str, count: int, seconds: float) -> Outcomes:
    """Connect and say nothing."""
    return await _connections(target, count, seconds, b"")


async def slow_headers(target: str, _store: str, count: int, seconds: float) -> Outcomes:
    """Begin to speak HTTP/2, and never finish."""
    return await _connections(target, count, seconds, b"PRI * HTTP/2.0\r\n")


async def large_messages(target: str, _store: str, count: int, seconds: float) -> Outcomes:
    """Send messages as large as they may be, all at the same time."""
    request = query_service_pb2.BatchGetRequest()
    request.requests.add(store="x" * (16 * MIB - 64))
    places = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def send(stub: Stub) -> None:
        async with places:
            await stub.BatchGet(request, timeout=seconds)

    return await _calls(target, count, send)


async def watches(target: str, store: str, count: int, seconds: float) -> Outcomes:
    """Open watches and keep them."""

    async def watch(stub: Stub) -> None:
        call = stub.Watch(query_service_pb2.WatchRequest(store=store, partition=0), timeout=_FAR_S)
        leave = asyncio.get_running_loop().call_later(seconds, call.cancel)
        try:
            async for _answer in call:
                pass
        except asyncio.CancelledError:
            pass  # we have left
        finally:
            leave.cancel()

    return await _calls(target, count, watch)


async def deep_scans(target: str, store: str, count: int, seconds: float) -> Outcomes:
    """Scan everything, all at the same time."""
    request = query_service_pb2.ScanRequest(store=store, page_size=10_000, partition=0)
    return await _calls(target, count, lambda stub: stub.Scan(request, timeout=seconds))


async def far_deadlines(target: str, store: str, count: int, _seconds: float) -> Outcomes:
    """Wait for positions that never come, for an hour."""
    request = query_service_pb2.GetRequest(store=store, key=types_pb2.Key(text="k0"))
    for partition in (0, 1):
        request.freshness.at_least.positions.add(store=store, partition=partition, position=2**40)
    return await _calls(target, count, lambda stub: stub.Get(request, timeout=_FAR_S))


async def long_batches(target: str, store: str, count: int, seconds: float) -> Outcomes:
    """Send batches of 500,000 lookups."""
    request = query_service_pb2.BatchGetRequest()
    request.requests.extend(
        query_service_pb2.GetRequest(store=store, key=types_pb2.Key(text=f"k{number}")) for number in range(500_000)
    )
    return await _calls(target, count, lambda stub: stub.BatchGet(request, timeout=seconds))


async def _connections(target: str, count: int, seconds: float, said: bytes) -> Outcomes:
    host, _, port = target.rpartition(":")
    outcomes: Outcomes = Counter()

    async def hold() -> None:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            outcomes["refused"] += 1
            return
        writer.write(said)
        try:
            async with asyncio.timeout(seconds):
                while await reader.read(1024):
                    pass
            outcomes["closed"] += 1
        except TimeoutError:
            outcomes["held"] += 1
        except OSError:
            outcomes["closed"] += 1
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    held: list[asyncio.Task[None]] = []
    for begun in range(0, count, _STREAMS_EACH):
        # At a pace that a listener's backlog takes.
        held += [asyncio.create_task(hold()) for _each in range(min(_STREAMS_EACH, count - begun))]
        await asyncio.sleep(0.05)
    await asyncio.gather(*held)
    return outcomes


async def _calls(target: str, count: int, make: Callable[[Stub], Awaitable[Any]]) -> Outcomes:
    outcomes: Outcomes = Counter()
    channels = [channel(target, 64 * MIB) for _each in range(-(-count // _STREAMS_EACH))]
    # With little processor time, one that connects while thousands of calls begin gives up, whatever the server does.
    async with asyncio.timeout(_CONNECTS_WITHIN_S):
        await asyncio.gather(*(each.channel_ready() for each in channels))

    async def one(stub: Stub) -> None:
        try:
            await make(stub)
        except grpc.RpcError as error:
            is_ours = error.code() is grpc.StatusCode.CANCELLED
            outcomes["left" if is_ours else from_rpc_error(error).reason.name] += 1
        else:
            outcomes["answered"] += 1

    stubs = [query_service_pb2_grpc.QueryServiceStub(each) for each in channels]
    await asyncio.gather(*(one(stubs[number % len(stubs)]) for number in range(count)))
    for each in channels:
        await each.close()
    return outcomes


KINDS: Final[dict[str, Callable[[str, str, int, float], Coroutine[Any, Any, Outcomes]]]] = {
    each.__name__: each
    for each in (idle_connections, slow_headers, large_messages, watches, deep_scans, far_deadlines, long_batches)
}


FULL: Final = {
    "idle_connections": 10_000,
    "slow_headers": 10_000,
    "large_messages": 1_000,
    "watches": 10_000,
    "deep_scans": 1_000,
    "far_deadlines": 5_000,
    "long_batches": 4,
}
"""How many there are of each kind at the full size."""


def main(kind: str, target: str, store: str, count: str, seconds: str) -> None:
    """Play a flood and print its outcomes."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.stdout.write(json.dumps(asyncio.run(KINDS[kind](target, store, int(count), float(seconds)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
