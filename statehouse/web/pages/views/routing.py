"""What routers do with lookups: outcomes, hedges, nodes asked last, and how long it takes, over all workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from statehouse.web.pages.recorder import Recorder
from statehouse.web.pages.routing_counts import Latency


@dataclass(frozen=True, slots=True)
class StoreRouting:
    """A store's lookups. Rates are of the last seconds, totals since the workers started."""

    store: str
    per_s: float
    total: int
    failed_per_s: float
    failed: int
    by_role: tuple[tuple[str, float], ...]
    """Lookups a second by the role of the node that answered; "" for entries of batches."""
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How often something happened: a second lately, and since the workers started."""

    name: str
    per_s: float
    total: int


@dataclass(frozen=True, slots=True)
class RoutingView:
    """All workers together. `suspects`: nodes that are asked last now."""

    workers: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]
    is_measured: bool
    stores: tuple[StoreRouting, ...]
    attempts: tuple[Outcome, ...]
    hedges: tuple[Outcome, ...]
    retries: tuple[Outcome, ...]
    holds: tuple[Outcome, ...]
    exclusions: tuple[Outcome, ...]
    express: Outcome
    suspects: tuple[str, ...]
    served_by: str | None


def routing_view(recorder: Recorder, *, is_measured: bool) -> RoutingView:
    """Return what routers do. `is_measured`: whether this process knows where their metrics are."""
    counts, fleet = recorder.routing, recorder.fleet
    rates = counts.lately("lookups_total", "store", "outcome", "role")
    totals = counts.totals("lookups_total", "store", "outcome", "role")
    latencies = counts.latencies()
    names = sorted({store for store, _, _ in totals if store})
    stores = tuple(_store(name, rates, totals, latencies.get(name)) for name in names)
    express = sum(counts.lately("express_lookups_total").values())
    return RoutingView(
        counts.workers,
        tuple(sorted(counts.failures.items())),
        is_measured,
        stores,
        _outcomes(recorder, "attempts_total", "reason"),
        _outcomes(recorder, "hedges_total", "outcome"),
        _outcomes(recorder, "retries_total", "outcome"),
        _outcomes(recorder, "holds_total", "outcome"),
        _outcomes(recorder, "suspicions_total", "state"),
        Outcome("express way", express, int(sum(counts.totals("express_lookups_total").values()))),
        () if fleet is None else tuple(node.host.instance_id for node in fleet.nodes if not node.reachable),
        None if fleet is None else fleet.served_by,
    )


def _store(
    store: str,
    rates: dict[tuple[str, ...], float],
    totals: dict[tuple[str, ...], float],
    latency: Latency | None,
) -> StoreRouting:
    by_role: dict[str, float] = {}
    for (of, outcome, role), per_s in rates.items():
        if of == store and outcome == "OK":
            by_role[role] = by_role.get(role, 0.0) + per_s
    mine = {key: value for key, value in totals.items() if key[0] == store}
    return StoreRouting(
        store,
        sum(by_role.values()),
        int(sum(value for key, value in mine.items() if key[1] == "OK")),
        sum(per_s for (of, outcome, _), per_s in rates.items() if of == store and outcome != "OK"),
        int(sum(value for key, value in mine.items() if key[1] != "OK")),
        tuple(sorted(by_role.items())),
        None if latency is None else latency.p50_ms,
        None if latency is None else latency.p99_ms,
    )


def _outcomes(recorder: Recorder, name: str, label: str) -> tuple[Outcome, ...]:
    totals, rates = recorder.routing.totals(name, label), recorder.routing.lately(name, label)
    return tuple(Outcome(key[0], rates.get(key, 0.0), int(total)) for key, total in sorted(totals.items()) if total > 0)
