"""Whether users get errors: failed lookups, how long lookups take, and how fresh what they read is, by store. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from statehouse.web.pages.contacts import QUIET_S
from statehouse.web.pages.figures import larger
from statehouse.web.pages.recorder import Moment, Recorder
from statehouse.web.pages.routing_counts import RoutingCounts

STORES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class StoreService:
    """What users of a store get. Rates and times are of the last seconds, None where they aren't known.

    Attributes:
        failed_by: failed lookups a second by reason, the most first.
        lag: the largest of an active, in records, as the nodes said it last.
        staleness_ms: the longest time since an active was last known to have read all of its changelog.
        batch_age_ms: time since the newest batch of the slowest query that feeds it.

    """

    store: str
    per_s: float | None
    failed_per_s: float | None
    failed_by: tuple[tuple[str, float], ...]
    p50_ms: float | None
    p99_ms: float | None
    lag: int | None
    staleness_ms: int | None
    batch_age_ms: int | None


@dataclass(frozen=True, slots=True)
class ServiceView:
    """The stores that fail come first, `not_shown` more are left out.

    `failed_per_s` is None if no router's metrics can be read; `why_not` says why.
    """

    failed_per_s: float | None
    per_s: float | None
    why_not: str
    stores: tuple[StoreService, ...]
    not_shown: int
    slowest_ms: float | None
    """The largest p99 of a store that had lookups."""
    stalest_ms: int | None
    """The largest staleness of a store's active."""


def service_view(recorder: Recorder, now: Moment, *, is_measured: bool) -> ServiceView:
    """Return what users get. `is_measured`: whether this process knows where routers' metrics are."""
    counts, fleet = recorder.routing, recorder.fleet
    failed, answered, latencies = counts.failed_lately(), _answered(counts), counts.latencies()
    freshness, batches = _freshness(recorder, now.at_s), _batch_ages(recorder, now)
    is_known = bool(counts.workers)
    rows = []
    for name in () if fleet is None else (store.name for store in fleet.stores):
        latency = latencies.get(name)
        by_reason = failed.get(name, {})
        lag, staleness_ms = freshness.get(name, (None, None))
        rows.append(
            StoreService(
                name,
                answered.get(name, 0.0) if is_known else None,
                sum(by_reason.values()) if is_known else None,
                tuple(sorted(by_reason.items(), key=lambda each: (-each[1], each[0]))),
                None if latency is None else latency.p50_ms,
                None if latency is None else latency.p99_ms,
                lag,
                staleness_ms,
                batches.get(name),
            )
        )
    rows.sort(key=lambda row: (-(row.failed_per_s or 0.0), row.store))
    return ServiceView(
        counts.failed_per_s,
        sum(answered.values()) if is_known else None,
        "" if is_known else _why_not(counts, is_measured=is_measured),
        tuple(rows[:STORES_SHOWN]),
        len(rows[STORES_SHOWN:]),
        max((row.p99_ms for row in rows if row.p99_ms is not None), default=None),
        max((row.staleness_ms for row in rows if row.staleness_ms is not None), default=None),
    )


def _answered(counts: RoutingCounts) -> dict[str, float]:
    rates = counts.lately("lookups_total", "store", "outcome")
    return {store: per_s for (store, outcome), per_s in rates.items() if outcome == "OK"}


def _why_not(counts: RoutingCounts, *, is_measured: bool) -> str:
    if not is_measured:
        return "Start the router with --metrics-port, or give a page of its own --router-metrics."
    failures = "; ".join(f"{worker}: {why}" for worker, why in sorted(counts.failures.items()))
    return failures or "The first figures come within seconds."


def _freshness(recorder: Recorder, now_s: float) -> dict[str, tuple[int | None, int | None]]:
    """Return the largest lag and staleness of a store's actives, as nodes that answer said them."""
    found: dict[str, tuple[int | None, int | None]] = {}
    for reading in recorder.readings.values():
        for each in reading.replicas if now_s - reading.at_s < QUIET_S else ():
            if each.role in {"ACTIVE", "GLOBAL"}:
                lag, staleness_ms = found.get(each.store, (None, None))
                found[each.store] = larger(lag, each.lag), larger(staleness_ms, each.staleness_ms)
    return found


def _batch_ages(recorder: Recorder, now: Moment) -> dict[str, int]:
    found: dict[str, int] = {}
    for query in () if recorder.fleet is None else recorder.fleet.queries:
        if query.batch_age_ms is not None:
            age_ms = query.batch_age_ms + now.ms_since(recorder.fleet_at.at_s)
            found |= {store: max(age_ms, found.get(store, 0)) for store in query.stores}
    return found
