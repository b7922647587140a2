"""A Python application that does lookups at the same time: `python -m bench.python_client ours TARGET …`.

On our side it uses the project's client; on the peer's side it uses grpcio. It checks every value and prints one JSON
document: lookups per second, and the median, p99 and longest latency in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import cycle

import grpc

from bench.data import key_of, value_of
from bench.failure import BenchFailure
from bench.measure import quantiles
from bench.sides.ours import STORE
from bench.sides.peer import call, messages
from statehouse.client import AsyncClient

Get = Callable[[str], Awaitable[bytes | str | None]]


async def ours(targets: list[str], resources: AsyncExitStack) -> Get:
    """Return a lookup by our client, through a router."""
    client = await resources.enter_async_context(AsyncClient(targets[0]))

    async def get(key: str) -> str | None:
        answer = await client.get(STORE, key)
        return str(answer.value) if answer.found else None

    return get


async def peer(targets: list[str], resources: AsyncExitStack) -> Get:
    """Return a lookup by grpcio, which asks the instances in turn."""
    channels = [await resources.enter_async_context(grpc.aio.insecure_channel(target)) for target in targets]
    calls = cycle([call(channel, "Get", "GetResponse") for channel in channels])
    request = messages().GetRequest

    async def get(key: str) -> bytes | None:
        answer = await next(calls)(request(key=key))
        return answer.value if answer.found else None

    return get


async def measure(kind: str, targets: list[str], keys: int, concurrency: int, seconds: float) -> dict[str, object]:
    """Do lookups for `seconds`, after a warm-up of a fifth of that.

    Raises:
        BenchFailure: a value was wrong or missing.

    """
    took_s: list[float] = []
    async with AsyncExitStack() as resources:
        get = await {"ours": ours, "peer": peer}[kind](targets, resources)

        async def ask(until: float, note: Callable[[float], None]) -> None:
            while (begin := time.monotonic()) < until:
                number = random.randrange(keys)  # noqa: S311 - which keys are asked for is no secret
                found = await get(key_of(number))
                note(time.monotonic() - begin)
                value = value_of(number)
                if found not in {value, value.encode()}:
                    raise BenchFailure(f"{key_of(number)} is {found!r} instead of {value!r}")

        for length, note in ((seconds / 5, lambda _: None), (seconds, took_s.append)):
            begin = time.monotonic()
            await asyncio.gather(*(ask(begin + length, note) for _ in range(concurrency)))
        passed = time.monotonic() - begin
    return {"lookups_per_s": len(took_s) / passed, **quantiles(took_s)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.python_client", description=__doc__)
    parser.add_argument("kind", choices=("ours", "peer"))
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    try:
        found = asyncio.run(measure(options.kind, options.targets, options.keys, options.concurrency, options.seconds))
    except BenchFailure as failure:
        sys.stderr.write(f"error: {failure}\n")
        return 1
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
