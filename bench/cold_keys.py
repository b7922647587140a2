"""Measures what keys on the disk cost keys in memory: `python -m bench.cold_keys`.

A node holds a million keys with values of 10 kB, which is far more than its cache of 64 MiB and than the memory that it
may take, the system's page cache included. Callers look up 500 of them at a steady rate: these are in the cache. Then
others look up any of the million as often, and of these nearly each is read from the disk.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench.generator import Report, running
from bench.memory_limit import MemoryLimit
from bench.records import create_topic, produce
from bench.reporting import carried_out, say
from bench.shape import Shape, Side
from bench.sides.ours import Fleet
from statehouse.contract.topology import members_topic
from statehouse.kafka.control_log import ControlLogReader
from statehouse.local.kafka import EmbeddedKafka

_MIB: Final = 1024 * 1024
_TAIL_BYTES: Final = 9_900
_RANDOM_BYTES: Final = 16 * _MIB
_WARM_KEYS: Final = 500
_RATE: Final = 300
_WARM_UP_S: Final = 5.0
_LOOKUP_MS: Final = 5_000
_MEMORY_BYTES: Final = 1024 * _MIB
_ENVIRONMENT: Final = {"STATEHOUSE_BLOCK_CACHE_BYTES": str(64 * _MIB)}


@dataclass(frozen=True, slots=True)
class Measured:
    """What callers of keys in memory had, and what the others had; milliseconds."""

    p50_ms: float
    p99_ms: float
    others_p50_ms: float
    others_p99_ms: float
    failed: int


def main() -> int:
    """Measure, report progress, print a table; the exit code is 1 if it failed, 130 if it was interrupted."""
    options = _parser().parse_args()
    return carried_out(lambda: _carry_out(options))


def _carry_out(options: argparse.Namespace) -> None:
    shape = Shape(keys=options.keys, partitions=8, nodes=1)
    with (
        tempfile.TemporaryDirectory(prefix="bench-cold-keys-", dir=options.directory) as name,
        EmbeddedKafka(Path(name) / "broker") as broker,
        closing(MemoryLimit(f"cold-keys-{os.getpid()}", _MEMORY_BYTES)) as limit,
        _fleet(broker.bootstrap, Path(name) / "fleet", shape, limit) as fleet,
    ):
        gaps = _HeartbeatGaps(broker.bootstrap, fleet.application_id)
        alone: list[Measured] = []
        beside: list[Measured] = []
        with closing(gaps):
            for number in range(options.rounds):
                # They take turns to be first.
                for found in (alone, beside)[:: -1 if number % 2 else 1]:
                    found.append(_measured(fleet, shape, options.seconds, cold=found is beside))
                    say(f"{'beside cold keys' if found is beside else 'alone'}: {found[-1]}")
        say(f"longest time between two heartbeats: {gaps.longest_ms} ms, {gaps.count} heartbeats")
        say(f"the node took {limit.most_used_bytes // _MIB} MiB of memory at most")
        sys.stdout.write("\n".join([*_HEADER, _row("alone", alone), _row("beside cold keys", beside), ""]))


@contextmanager
def _fleet(bootstrap: str, directory: Path, shape: Shape, limit: MemoryLimit) -> Iterator[Fleet]:
    say(f"writing {shape.keys} records of 10 kB")
    create_topic(bootstrap, "cold-keys", shape.partitions, {"cleanup.policy": "compact"})
    source = random.Random(1)  # noqa: S311 - values that don't compress
    pool = source.randbytes(_RANDOM_BYTES).hex().encode()

    def tail_of(_number: int) -> bytes:
        begin = source.randrange(len(pool) - _TAIL_BYTES)
        return pool[begin : begin + _TAIL_BYTES]

    produce(bootstrap, "cold-keys", shape.partitions, range(shape.keys), tail_of=tail_of)
    os.environ.update(_ENVIRONMENT)
    fleet = Fleet(Side.OURS, bootstrap, shape, directory, "cold-keys")
    try:
        say("restoring them")
        fleet.spawn()
        limit.hold(fleet.pids[name] for name in fleet.node_names)
        fleet.wait_settled()
        yield fleet
    finally:
        fleet.stop()


def _measured(fleet: Fleet, shape: Shape, seconds: float, *, cold: bool) -> Measured:
    shared = {**fleet.straight, "tail": True, "rate": _RATE, "timeout_ms": _LOOKUP_MS, "warmup_s": _WARM_UP_S}
    with ExitStack() as under_way:
        warm = under_way.enter_context(running({**shared, "keys": _WARM_KEYS, "duration_s": seconds}))
        others: Report | None = None
        if cold:
            others = under_way.enter_context(running({**shared, "keys": shape.keys, "duration_s": seconds})).report()
        report = warm.report()
    reports = [each for each in (report, others) if each is not None]
    return Measured(
        *_p50_and_p99_ms(report), *_p50_and_p99_ms(others), sum(each["lookups"]["failed"] for each in reports)
    )


def _p50_and_p99_ms(report: Report | None) -> tuple[float, float]:
    if report is None:
        return 0.0, 0.0
    latency = report["latency_us"]["ok"]
    return latency["p50"] / 1_000, latency["p99"] / 1_000


class _HeartbeatGaps:
    """The longest time between two heartbeats of the fleet's only node, by the times of their records."""

    def __init__(self, bootstrap: str, application_id: str) -> None:
        self.longest_ms, self.count = 0, 0
        self._last_ms: int | None = None
        topic = members_topic(application_id)
        self._reader = ControlLogReader(bootstrap, topic, self._on_record, client_id="bench", on_broken=self._broken)
        self._reader.start()

    def close(self) -> None:
        """Stop reading."""
        self._reader.stop()

    def _on_record(self, _key: bytes | None, _value: bytes | None, timestamp_ms: int) -> None:
        if self._last_ms is not None:
            self.longest_ms = max(self.longest_ms, timestamp_ms - self._last_ms)
        self._last_ms, self.count = timestamp_ms, self.count + 1

    def _broken(self, error: Exception) -> None:
        say(f"heartbeats can't be read: {error}")


_HEADER: Final = (
    "| keys in memory | p50, ms | p99, ms | the others' p50, ms | p99, ms | failed |",
    "|---|---|---|---|---|---|",
)


def _row(name: str, found: Sequence[Measured]) -> str:
    times = " | ".join(
        f"{median(getattr(each, field) for each in found):.2f}"
        for field in ("p50_ms", "p99_ms", "others_p50_ms", "others_p99_ms")
    )
    return f"| {name} | {times} | {sum(each.failed for each in found)} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.cold_keys", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000, help="how many keys (default: a million, 20 GB of disk)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which medians are printed (default: 3)")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each measurement (default: 20)")
    parser.add_argument("--directory", help="where data goes (default: the system's temporary one)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
