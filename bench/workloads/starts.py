"""Starts of the servers: the first one, one from disks that have everything, and one from empty disks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from bench.failure import BenchFailure
from bench.measure import Result, Stage
from bench.records import record_count
from bench.sides.servers import Copy, Servers, is_settled
from bench.usage import cpu_seconds
from bench.waiting import wait_for
from statehouse.local.process import ManagedProcess

_START_S: Final = 900.0
# The shortest time to compute a rate over: copies are looked at this often.
_RESOLUTION_S: Final = 0.05

Sample = tuple[float, list[Copy]]
"""The copies at a time, in seconds after the start."""


def start(stage: Stage) -> Iterator[Result]:
    """Start the servers without measuring; at the first start they build their stores. Yield nothing."""
    stage.servers.start()
    yield from ()


def restart(stage: Stage) -> Iterator[Result]:
    """Measure a start from disks that have everything, after a graceful stop."""
    stage.servers.stop()
    samples = _started(stage.servers, stage.servers.processes())
    stage.servers.wait_settled()
    yield Result(f"Restart with {stage.shape.keys} keys on disk", _times(stage, samples))


def restore(stage: Stage) -> Iterator[Result]:
    """Measure a start of all that holds the store from empty disks. What holds none of it goes on meanwhile.

    `records_per_s` counts the records that all copies, active and standby, read, from the first record to the last.
    The processor time of all processes is counted until all copies are there, starts of what holds the store included.
    """
    servers, shape = stage.servers, stage.shape
    servers.start()
    servers.stop(servers.nodes.values())
    servers.wipe()
    records = record_count(servers.bootstrap, servers.changelog, shape.partitions) * min(2, shape.nodes)
    before_s = cpu_seconds(servers.pids.values())
    samples = _started(servers, servers.nodes.values())
    cpu_s = cpu_seconds(servers.pids.values()) - before_s
    servers.wait_settled()
    times = _times(stage, samples)
    first_s = first(samples, lambda copies: any(copy.position > 0 for copy in copies))
    rates = {
        "records_per_s": records / max(times["until_all_s"] - first_s, _RESOLUTION_S),
        "records_per_cpu_s": records / cpu_s,
    }
    yield Result(f"Restore of {shape.keys} keys from the changelog, active and standby", rates | times)


def _started(servers: Servers, processes: Iterable[ManagedProcess]) -> list[Sample]:
    begin = time.monotonic()
    servers.spawn(processes)
    samples: list[Sample] = []

    def is_complete() -> bool:
        servers.check()
        samples.append((time.monotonic() - begin, servers.copies()))
        return is_settled(samples[-1][1], servers.shape)

    wait_for(is_complete, _START_S, f"{servers.side} to have all copies")
    return samples


def _times(stage: Stage, samples: Collection[Sample]) -> dict[str, float]:
    return {
        "until_active_s": first(samples, lambda copies: _all_serve(copies, stage.shape.partitions)),
        "until_all_s": first(samples, lambda copies: is_settled(copies, stage.shape)),
    }


def first(samples: Collection[Sample], predicate: Callable[[list[Copy]], bool]) -> float:
    """Return when `predicate` first held.

    Raises:
        BenchFailure: it never did.

    """
    for at_s, copies in samples:
        if predicate(copies):
            return at_s
    raise BenchFailure(f"none of {len(samples)} samples of the copies shows what it must")


def _all_serve(copies: Collection[Copy], partitions: int) -> bool:
    return len({copy.partition for copy in copies if copy.active and copy.caught_up}) == partitions
