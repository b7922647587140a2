"""Lookups of random keys: one by one, in batches, and in ranges; straight to the owner, and from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench.measure import Result, Stage
from bench.sides.servers import Options

_UNDER_WAY_MAX: Final = 1_000
_STALENESS_MAX_MS: Final = 10_000
_HOT: Final = 10


def ways(stage: Stage) -> Iterator[tuple[str, Options]]:
    """Yield the two ways to send lookups, with their names in the table."""
    yield "straight to the owner", stage.servers.straight
    yield "through the router / any instance", stage.servers.anywhere()


def warm_up(stage: Stage) -> Iterator[Result]:
    """Load both ways without measuring; yield nothing."""
    straight, anywhere = stage.servers.straight, stage.servers.anywhere()
    calls = ((straight, "get"), (straight, "batch_get"), (anywhere, "get"), (anywhere, "batch_get"), (anywhere, "scan"))
    for options, method in calls:
        stage.warm_up(options, method=method, concurrency=16, duration_s=stage.load.warm_up_s / len(calls))
    yield from ()


def gets(stage: Stage) -> Iterator[Result]:
    """Measure single lookups."""
    for way, options in ways(stage):
        yield from _gets(stage, way, options)


def gets_straight(stage: Stage) -> Iterator[Result]:
    """Measure single lookups straight to the owners only."""
    yield from _gets(stage, *next(ways(stage)))


def _gets(stage: Stage, way: str, options: Options) -> Iterator[Result]:
    for concurrency in stage.load.concurrencies:
        yield stage.lookups(f"Get {way}, concurrency {concurrency}", options, concurrency=concurrency)


def hot_key(stage: Stage) -> Iterator[Result]:
    """Measure lookups with a bound, of random keys and then of one key ten times as often as of all others together."""
    concurrency = max(stage.load.concurrencies)
    options = {**stage.servers.anywhere(), "max_staleness_ms": _STALENESS_MAX_MS}
    for what, hot in (("any key", 0), ("one key at ten times all others", _HOT)):
        work = f"Get of {what} within {_STALENESS_MAX_MS // 1_000} s through the router, concurrency {concurrency}"
        yield stage.lookups(work, options, concurrency=concurrency, hot=hot)


def batches(stage: Stage) -> Iterator[Result]:
    """Measure batches, eight under way; fewer if they would have more keys than a router takes at a time."""
    for way, options in ways(stage):
        for keys in stage.load.batches:
            concurrency = max(1, min(8, _UNDER_WAY_MAX // keys))
            work = f"BatchGet of {keys} {way}, concurrency {concurrency}"
            yield stage.lookups(work, options, method="batch_get", batch=keys, concurrency=concurrency)


def scans(stage: Stage) -> Iterator[Result]:
    """Measure ranges of consecutive keys, which lie in all partitions."""
    work = f"Scan of {stage.load.span} keys through the router / any instance, concurrency 8"
    options = stage.servers.anywhere()
    yield stage.lookups(work, options, method="scan", span=stage.load.span, concurrency=8)
