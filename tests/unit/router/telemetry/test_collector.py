"""How well a router knows its fleet, as metrics."""

from __future__ import annotations

import time

import pytest
from prometheus_client import CollectorRegistry

from router.choice.candidates import Suspicion
from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutingTable, compile_table
from router.telemetry.collector import TableCollector
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import Reason
from tests.support.metrics import Scrape, scrape_registry
from tests.unit.router.fleets import assignment, member, members, report


def table(epoch: int = 1) -> RoutingTable:
    return compile_table(assignment([TaskAssignment("a")], epoch), members(member("a", {0: report()})))


def shown(tables: CurrentTable, suspects: dict[str, Suspicion], silence_s: float | None) -> Scrape:
    registry = CollectorRegistry()
    registry.register(TableCollector(tables, suspects, lambda: silence_s))
    return scrape_registry(registry)


def test_before_the_first_table_the_epoch_is_0_and_no_age_is_known():
    scraped = shown(CurrentTable(), {}, None)
    assert scraped.families["statehouse_router_table_epoch"].samples[0].value == 0
    assert scraped.families["statehouse_router_table_age_seconds"].samples == []
    assert scraped.families["statehouse_router_kafka_silence_seconds"].samples == []


@pytest.mark.feature("proxy-routing-table")
def test_a_table_shows_its_epoch_its_age_and_its_nodes():
    tables = CurrentTable()
    tables.publish(table(7))
    tables.made_at = time.monotonic() - 30
    scraped = shown(tables, {}, 2.5)
    assert scraped.value("statehouse_router_table_epoch") == 7
    assert 30 <= scraped.value("statehouse_router_table_age_seconds") < 40
    assert scraped.value("statehouse_router_nodes") == 1
    assert scraped.value("statehouse_router_kafka_silence_seconds") == 2.5


def test_each_new_table_is_young():
    tables = CurrentTable()
    tables.publish(table())
    assert tables.made_at is not None
    tables.made_at -= 30
    tables.publish(table())
    assert shown(tables, {}, None).value("statehouse_router_table_age_seconds") < 10


def test_suspected_nodes_are_counted_by_state():
    suspects = {
        "a": Suspicion(Reason.UNREACHABLE, "no"),
        "b": Suspicion(Reason.ATTEMPT_TIMED_OUT, "no"),
        "c": Suspicion(Reason.ATTEMPT_TIMED_OUT, "late", 0.1),
        "d": Suspicion(Reason.UNREACHABLE, "no"),
    }
    scraped = shown(CurrentTable(), suspects, None)
    found = {
        state: scraped.value("statehouse_router_suspected_nodes", state=state) for state in ("slow", "silent", "down")
    }
    assert found == {"slow": 1, "silent": 1, "down": 2}
