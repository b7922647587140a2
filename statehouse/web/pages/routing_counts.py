"""What routers did with lookups lately, from the metrics of all their workers. Pure.

Each worker counts for itself, and a call reaches only one of them. Their metrics are the one place that has them all.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from statehouse.errors import Reason
from statehouse.observability.counter_rates import grown

WINDOW_S: Final = 15.0
"""Rates and latencies are of so long."""
FAULTS_OF_ASKERS: Final = frozenset(
    {
        Reason.UNKNOWN_STORE,
        Reason.INVALID_KEY,
        Reason.INVALID_REQUEST,
        Reason.INVALID_PAGE_TOKEN,
        Reason.WRONG_STORE_KIND,
        Reason.HOP_LIMIT,
        Reason.BEFORE_HISTORY,
        Reason.MESSAGE_TOO_LARGE,
        Reason.SCAN_TOO_LONG,
        Reason.POSITION_NOT_REACHED,
        Reason.INPUT_NOT_PROCESSED,
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
    }
)
"""A lookup that fails with one of these has no error of the fleet: its caller asked for what can't be. The alerts leave
out the same ones."""
_NO_FAILURES: Final = frozenset({"OK", *(reason.name for reason in FAULTS_OF_ASKERS)})
_PREFIX: Final = "statehouse_router_"

Series = tuple[str, frozenset[tuple[str, str]]]
"""A sample's name without what all have in common, and its labels."""
_Counts = Mapping[Series, float]


@dataclass(frozen=True, slots=True)
class _Heard:
    at_s: float
    counts: _Counts


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of a histogram, in milliseconds; each is the upper bound of its bucket. None: beyond the last one."""

    p50_ms: float | None
    p99_ms: float | None


class RoutingCounts:
    """The counts of the routers' workers, by the address of their metrics."""

    def __init__(self) -> None:
        """Start without any."""
        self._heard: dict[str, deque[_Heard]] = {}
        self.failures: dict[str, str] = {}
        """Why a worker's metrics can't be had, by address."""

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that have answered at least once, and do so now."""
        return tuple(sorted(self._heard.keys() - self.failures.keys()))

    def take(self, worker: str, text: str, at_s: float) -> None:
        """Take a worker's metrics, in Prometheus' text form.

        Raises:
            ValueError: the text is none.

        """
        counts = dict(_counts(text))
        heard = self._heard.setdefault(worker, deque())
        heard.append(_Heard(at_s, counts))
        while len(heard) > 2 and at_s - heard[1].at_s >= WINDOW_S:
            heard.popleft()
        self.failures.pop(worker, None)

    def failed(self, worker: str, why: str) -> None:
        """Note that a worker's metrics can't be had. What it counted stays among the totals."""
        self.failures[worker] = why

    def totals(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return sums over all workers since they started, by the values of these labels."""
        found: dict[tuple[str, ...], float] = {}
        for heard in self._heard.values():
            _add(found, heard[-1].counts, name, labels)
        return found

    def lately(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return what was counted a second, lately, over all workers that answer; by the values of these labels."""
        found: dict[tuple[str, ...], float] = {}
        for worker in self.workers:
            first, last = self._heard[worker][0], self._heard[worker][-1]
            if last.at_s > first.at_s:
                span_s = last.at_s - first.at_s
                counts = {series: value for series, value in last.counts.items() if series[0] == name}
                rates = {series: value / span_s for series, value in grown(first.counts, counts).items()}
                _add(found, rates, name, labels)
        return found

    def failed_lately(self) -> dict[str, dict[str, float]]:
        """Return failed lookups a second, by store and reason, without those that are the callers' own fault."""
        found: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for (store, outcome), per_s in self.lately("lookups_total", "store", "outcome").items():
            if outcome not in _NO_FAILURES and per_s > 0:
                found[store][outcome] = per_s
        return found

    @property
    def failed_per_s(self) -> float | None:
        """Failed lookups a second, of all stores; None if no router's metrics can be read."""
        if not self.workers:
            return None
        return sum(per_s for by_reason in self.failed_lately().values() for per_s in by_reason.values())

    def latencies(self) -> dict[str, Latency]:
        """Return how long lookups took lately, by store; only of stores that had any."""
        by_store: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for (store, bound), count in self.lately("lookup_duration_seconds_bucket", "store", "le").items():
            by_store[store].append((float(bound), count))
        ordered = {store: sorted(bounds) for store, bounds in by_store.items()}
        return {
            store: Latency(_quantile(bounds, 0.5), _quantile(bounds, 0.99))
            for store, bounds in ordered.items()
            if bounds[-1][1] > 0
        }


def _counts(text: str) -> Iterator[tuple[Series, float]]:
    for family in text_string_to_metric_families(text):
        if family.name.startswith(_PREFIX):
            for sample in family.samples:
                yield (sample.name.removeprefix(_PREFIX), frozenset(sample.labels.items())), sample.value


def _add(into: dict[tuple[str, ...], float], counts: _Counts, name: str, labels: tuple[str, ...]) -> None:
    for (sample, given), value in counts.items():
        if sample == name:
            by_label = dict(given)
            key = tuple(by_label.get(label, "") for label in labels)
            into[key] = into.get(key, 0.0) + value


def _quantile(bounds: list[tuple[float, float]], share: float) -> float | None:
    """Return the bound of the bucket that has this share of all; `bounds` are cumulative."""
    wanted = share * bounds[-1][1]
    bound = next(bound for bound, count in bounds if count >= wanted)
    return None if bound == float("inf") else bound * 1_000
