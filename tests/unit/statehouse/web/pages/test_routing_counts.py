"""What the routers' workers have counted, put together."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from router.telemetry.metrics import RouterMetrics
from statehouse.contract.topology import Role
from statehouse.web.pages.recorder import Recorder
from statehouse.web.pages.routing_counts import WINDOW_S, RoutingCounts
from statehouse.web.pages.views.routing import routing_view


def text(metrics: RouterMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def counted(lookups: int, *, seconds: float = 0.004) -> RouterMetrics:
    metrics = RouterMetrics()
    for _ in range(lookups):
        metrics.lookup("counts", "OK", Role.ACTIVE, seconds)
    metrics.lookup("counts", "NO_REPLICA", None, seconds)
    metrics.suspicion("silent")
    metrics.hedge("won")
    return metrics


@pytest.mark.feature("restores-their-share")
def test_totals_and_rates_are_of_all_workers():
    counts = RoutingCounts()
    for worker, first, second in (("a:1", 10, 30), ("b:2", 0, 10)):
        counts.take(worker, text(counted(first)), 0.0)
        counts.take(worker, text(counted(second)), 10.0)
    assert counts.workers == ("a:1", "b:2")
    assert counts.totals("lookups_total", "outcome") == {("OK",): 40, ("NO_REPLICA",): 2}
    assert counts.lately("lookups_total", "outcome") == {("OK",): 3.0, ("NO_REPLICA",): 0.0}
    assert counts.totals("suspicions_total", "state") == {("silent",): 2}


def test_a_worker_that_was_replaced_counts_from_zero():
    counts = RoutingCounts()
    counts.take("a:1", text(counted(100)), 0.0)
    counts.take("a:1", text(counted(20)), 10.0)
    assert counts.lately("lookups_total", "outcome")["OK",] == 2.0


def test_a_latency_is_the_bound_of_its_step():
    counts = RoutingCounts()
    counts.take("a:1", text(counted(0)), 0.0)
    assert "counts" not in counts.latencies()
    mixed = counted(98)
    mixed.lookup("counts", "OK", Role.ACTIVE, 0.2)
    mixed.lookup("counts", "OK", Role.ACTIVE, 60.0)
    counts.take("a:1", text(mixed), 5.0)
    found = counts.latencies()["counts"]
    assert (found.p50_ms, found.p99_ms) == (5.0, 250.0)


def test_only_the_last_seconds_count_and_a_worker_that_is_gone_does_not():
    counts = RoutingCounts()
    for second in range(0, 40, 5):
        counts.take("a:1", text(counted(second * 10)), float(second))
    assert counts.lately("lookups_total", "outcome")["OK",] == pytest.approx(10.0)
    counts.take("a:1", text(counted(350)), 35.0 + WINDOW_S)
    assert counts.lately("lookups_total", "outcome")["OK",] == 0.0
    counts.failed("a:1", "refused")
    assert (counts.workers, counts.failures, counts.lately("lookups_total", "outcome")) == ((), {"a:1": "refused"}, {})
    assert counts.totals("lookups_total", "outcome")["OK",] == 350


def test_the_page_has_a_line_for_each_store():
    found = Recorder()
    found.routing.take("a:1", text(counted(0)), 0.0)
    found.routing.take("a:1", text(counted(50)), 10.0)
    shown = routing_view(found, is_measured=True)
    (only,) = shown.stores
    assert (only.store, only.per_s, only.total, only.failed) == ("counts", 5.0, 50, 1)
    assert only.by_role == (("ACTIVE", 5.0),)
    assert [(each.name, each.total) for each in shown.exclusions] == [("silent", 1)]


def test_what_is_no_metrics_is_refused():
    with pytest.raises(ValueError, match=r"\w"):
        RoutingCounts().take("a:1", "<html>\n{", 0.0)
