"""The inputs and results of workloads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bench.failure import BenchFailure
from bench.generator import Report, load, running
from bench.shape import Load, Shape, Side
from bench.sides.servers import Options, Servers
from bench.usage import cpu_seconds


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure's meaning: its unit, and whether more or less is better."""

    unit: str
    better: Literal["more", "less"]


METRICS: Final = {
    "lookups_per_s": Metric("lookups/s", "more"),
    "requests_per_s": Metric("requests/s", "more"),
    "records_per_s": Metric("records/s", "more"),
    "records_per_cpu_s": Metric("records per CPU second", "more"),
    "lookups_per_cpu_s": Metric("lookups per CPU second", "more"),
    "cpu_s_per_100k": Metric("CPU seconds per 100k lookups", "less"),
    "p50_ms": Metric("ms, median", "less"),
    "p99_ms": Metric("ms, p99", "less"),
    "max_ms": Metric("ms, longest", "less"),
    "until_active_s": Metric("s from the start until all actives serve", "less"),
    "until_all_s": Metric("s from the start until all is complete", "less"),
    "failed": Metric("lookups failed", "less"),
    "failed_percent": Metric("% of lookups failed", "less"),
    "lost": Metric("keys lost: missing or old", "less"),
    "lost_percent": Metric("% of keys lost", "less"),
    "early_keys": Metric("keys shown of a batch that isn't committed", "less"),
    "torn_partitions": Metric("partitions that show a part of a batch", "less"),
    "torn_keys": Metric("keys that these show of it", "less"),
    "gap_ms": Metric("ms, longest gap", "less"),
    "partition_gap_ms": Metric("ms, longest gap of a partition", "less"),
    "pss_mib": Metric("MiB of memory (PSS)", "less"),
    "rss_mib": Metric("MiB of memory (RSS)", "less"),
    "pss_mib_per_million": Metric("MiB (PSS) per million keys", "less"),
}
"""The meaning of each figure that a workload may return."""


# The least processor time that is counted.
_TICK_S: Final = 0.01
# The timeout of requests in closed loops. It is long, so that a slow server shows in latencies, not in failures.
_TIMEOUT_MS: Final = 10_000
# One of the first requests after a start may get no answer; with the peer it happened once in some hundred starts.
_WARM_UPS: Final = 3


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured on one side: `work` names it in the table, `figures` are by their names in METRICS."""

    work: str
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Stage:
    """One side, in the state that the previous workload left: not running, or running and settled."""

    servers: Servers
    shape: Shape
    load: Load

    @property
    def side(self) -> Side:
        """The side that is measured."""
        return self.servers.side

    def warm_up(self, options: Options, **more: object) -> None:
        """Load without measuring; repeat it if requests fail. No answer may be wrong.

        Raises:
            BenchFailure: it could not run, an answer was wrong, or requests failed in the last repetition, too.

        """
        for _ in range(_WARM_UPS - 1):
            with running(self._closed_loop(options, more)) as under_load:
                if under_load.report()["passed"]:
                    return
        load(self._closed_loop(options, more))

    def lookups(self, work: str, options: Options, **more: object) -> Result:
        """Measure a closed loop.

        Raises:
            BenchFailure: it could not run, an answer was wrong, or a request failed.

        """
        pids = self.servers.pids.values()
        before = cpu_seconds(pids)
        report = load(self._closed_loop(options, more))
        took = cpu_seconds(pids) - before
        done = report["lookups"]["ok"]
        figures = {
            "lookups_per_s": report["lookups_per_s"],
            "lookups_per_cpu_s": done / max(took, _TICK_S),
            "cpu_s_per_100k": 1e5 * took / max(1, done),
        }
        return Result(work, figures | latencies(report))

    def _closed_loop(self, options: Options, more: Mapping[str, object]) -> dict[str, object]:
        default = {"keys": self.shape.keys, "duration_s": self.load.seconds, "timeout_ms": _TIMEOUT_MS}
        return {**default, **options, **more}


def latencies(report: Report) -> dict[str, float]:
    """Return the median and p99 of a load's requests that succeeded."""
    ok = report["latency_us"]["ok"]
    return {"p50_ms": ok["p50"] / 1000, "p99_ms": ok["p99"] / 1000}


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, p99 and largest of times, by nearest rank."""
    ordered = sorted(seconds)
    if not ordered:
        raise BenchFailure("nothing was measured")

    def at(share: float) -> float:
        return 1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)}


Workload = Callable[[Stage], Iterator[Result]]
