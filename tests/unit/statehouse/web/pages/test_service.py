"""The first screen: whether users get errors, and how fresh what they read is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from router.telemetry.metrics import RouterMetrics
from statehouse.client import ProcessorQuery
from statehouse.contract.topology import Role
from statehouse.web.pages.contacts import Contact
from statehouse.web.pages.recorder import Recorder
from statehouse.web.pages.rendering import html
from statehouse.web.pages.routing_counts import FAULTS_OF_ASKERS
from statehouse.web.pages.views.attention import Health, health_of
from statehouse.web.pages.views.frame import frame_of
from statehouse.web.pages.views.overview import overview
from statehouse.web.pages.views.service import STORES_SHOWN, service_view
from tests.unit.statehouse.web.pages.fleets import at, fleet, reading, recorder, replica, store

RULES = Path(__file__).parents[5] / "deploy/prometheus/rules.yaml"


def with_lookups(found: Recorder, *outcomes: str) -> Recorder:
    """Return what is known after one lookup of "counts" with each of these outcomes within ten seconds."""
    metrics = RouterMetrics()
    for at_s, given in ((-10.0, ()), (0.0, outcomes)):
        for outcome in given:
            metrics.lookup("counts", outcome, Role.ACTIVE if outcome == "OK" else None, 0.004)
        found.routing.take("a:1", generate_latest(metrics.registry).decode(), at_s)
    return found


def shown(found: Recorder, *, is_measured: bool = True) -> str:
    """Return the first screen as HTML."""
    view = overview(found, at(0), is_measured=is_measured)
    return html(
        "main.html",
        content="fleet.html",
        title="Overview",
        page=view,
        query={},
        frame=frame_of(found, at(0)),
        needs_fleet=True,
    )


@pytest.mark.feature("page-do-users-get-errors")
def test_failed_lookups_come_first_by_store_with_their_reasons():
    found = recorder(fleet(stores=(store("boards"), store("counts"))))
    with_lookups(found, "OK", "OK", "NO_REPLICA_AVAILABLE", "UNREACHABLE", "UNREACHABLE", "INVALID_KEY")
    view = service_view(found, at(0), is_measured=True)
    assert (view.failed_per_s, view.per_s, view.why_not, view.slowest_ms) == (pytest.approx(0.3), 0.2, "", 5.0)
    first, second = view.stores
    assert (first.store, second.store) == ("counts", "boards")
    assert first.failed_by == (("UNREACHABLE", 0.2), ("NO_REPLICA_AVAILABLE", 0.1))
    assert (second.failed_per_s, second.failed_by, second.p99_ms) == (0.0, (), None)
    assert health_of(found) is Health.ERRORS
    assert "users get errors" in shown(found)


@pytest.mark.feature("page-do-users-get-errors")
def test_the_questions_are_answered_in_the_order_in_which_they_are_asked():
    found = with_lookups(recorder(fleet()), "OK")
    found.note_contact("n2", Contact.SILENT, "refused", 0.0)
    text = shown(found)
    places = [text.index(words) for words in ("Do users get errors?", "Failed lookups", "99 % of lookups within",
              "Largest staleness", "What needs attention", "Node silent: n2", "The last hour")]  # fmt: skip
    assert places == sorted(places)
    assert 'href="/nodes">Node silent: n2' in text


def test_what_is_not_known_says_what_to_set():
    found = recorder(fleet())
    view = service_view(found, at(0), is_measured=False)
    assert (view.failed_per_s, view.stores[0].failed_per_s) == (None, None)
    assert "--metrics-port" in view.why_not
    assert "not known" in shown(found, is_measured=False)
    found.routing.failed("a:1", "refused")
    assert service_view(found, at(0), is_measured=True).why_not == "a:1: refused"
    assert health_of(found) is Health.OK
    assert health_of(Recorder()) is Health.UNKNOWN


def test_callers_who_ask_for_what_cannot_be_are_no_errors():
    found = with_lookups(recorder(fleet()), "OK", *(reason.name for reason in FAULTS_OF_ASKERS))
    assert found.routing.failed_per_s == 0.0
    assert health_of(found) is Health.OK


def test_the_alerts_leave_out_the_same_ones():
    (given,) = set(re.findall(r'lookups_total\{outcome!~"([A-Z_|]+)"', RULES.read_text()))
    assert set(given.split("|")) == {"OK", *(reason.name for reason in FAULTS_OF_ASKERS)}


def test_freshness_is_that_of_the_worst_active_and_of_the_slowest_query():
    query = ProcessorQuery("scores", ("counts",), False, False, 500, 1, 4_000, None)
    found = recorder(fleet(queries=(query,)))
    standby = replica(1, role="STANDBY", lag=900, staleness_ms=9_000)
    found.take_node(reading("n1", 0.0, replica(lag=3, staleness_ms=700), standby))
    found.take_node(reading("n2", 0.0, replica(1, lag=7, staleness_ms=20)))
    (only,) = service_view(found, at(1), is_measured=True).stores
    assert (only.lag, only.staleness_ms, only.batch_age_ms) == (7, 700, 5_000)
    (later,) = service_view(found, at(60), is_measured=True).stores
    assert (later.lag, later.staleness_ms) == (None, None), "its nodes have long been quiet"


def test_many_stores_are_counted():
    found = recorder(fleet(stores=tuple(store(f"s{number:03}") for number in range(STORES_SHOWN + 3))))
    view = service_view(found, at(0), is_measured=True)
    assert (len(view.stores), view.not_shown) == (STORES_SHOWN, 3)
