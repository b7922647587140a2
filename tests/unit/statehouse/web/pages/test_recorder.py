"""What is known of the fleet, and its recent past."""

from __future__ import annotations

import math

import pytest

from statehouse.client import Controller, ProcessorQuery
from statehouse.web.pages.contacts import Contact
from statehouse.web.pages.partitions import BEHIND, Condition
from statehouse.web.pages.samples import CELLS_MAX, COLUMN_S, COLUMNS_MAX, SampleColumn, Samples, StoreColumn
from statehouse.web.pages.views.frame import View, frame_of
from tests.unit.statehouse.web.pages.fleets import (
    at,
    fleet,
    node,
    reading,
    recorder,
    replica,
    store,
    task,
    with_reports,
)


@pytest.mark.feature("router-gone-said")
def test_the_frame_says_what_there_is_to_show():
    empty = recorder()
    assert frame_of(empty, at(0)).view is View.LOADING
    empty.routers_failed("refused", at(1))
    empty.routers_failed("refused again", at(2))
    broken = frame_of(empty, at(4))
    assert (broken.view, broken.trouble, broken.trouble_age_ms) == (View.BROKEN, "refused again", 3_000)
    known = recorder(fleet())
    assert (frame_of(known, at(0.25)).view, frame_of(known, at(0.25)).fleet_age_ms) == (View.LIVE, 250)
    known.routers_failed("refused", at(1))
    assert frame_of(known, at(2)).view is View.STALE
    known.take_fleet(fleet(), at(3))
    assert frame_of(known, at(3)).view is View.LIVE


def test_a_fleet_without_the_processor_does_not_make_it_unknown():
    query = ProcessorQuery("scores", ("counts",), False, False, 10, 1, 10, None)
    found = recorder(fleet(1, queries=(query,), controller=Controller("driver", False, False, 5)), fleet(2))
    assert found.fleet is not None
    assert (found.fleet.epoch, found.fleet.queries, found.fleet.controller) == (
        2,
        (query,),
        Controller("driver", False, False, 5),
    )


def test_a_node_that_has_left_is_forgotten():
    found = recorder(fleet())
    found.take_node(reading("n2", 0.0, replica(1)))
    found.note_contact("n2", Contact.SILENT, "refused", 1.0)
    found.take_fleet(fleet(2, nodes=(node("n1"),)), at(2))
    assert (found.readings, found.contacts) == ({}, {})


def test_silence_begins_with_the_first_question_that_was_not_answered():
    found = recorder(fleet())
    for second in (1.0, 2.0):
        found.note_contact("n1", Contact.SILENT, "refused", second)
    assert (found.contacts["n1"].since_s, found.contacts["n1"].why) == (1.0, "refused")
    found.take_node(reading("n1", 3.0))
    assert found.contacts["n1"].contact is Contact.ANSWERS


@pytest.mark.feature("heat-map-partitions")
def test_a_column_has_lookups_lags_conditions_and_moves():
    found = recorder(fleet())
    assert found.sample(at(0))
    assert not found.sample(at(COLUMN_S / 2)), "it is too early"
    found.take_node(reading("n1", 0.0, replica(lookups=10)))
    found.take_node(reading("n2", 0.0, replica(1, lookups=10, lag=3)))
    found.take_node(reading("n1", 2.0, replica(lookups=30)))
    found.take_fleet(fleet(2, tasks=(task(0, "n2", ("n1",)), task(1, "n2", ("n1",)))), at(2))
    assert found.sample(at(2))
    first, second = found.samples.columns
    assert all(math.isnan(number) for number in first.stores["counts"].lookups), "nobody had counted"
    assert first.lookups is None
    column = second.stores["counts"]
    assert list(column.lookups) == [10.0, 0.0]
    assert list(column.lags) == [0.0, 3.0]
    assert (list(column.states), list(column.moved)) == ([Condition.WELL, Condition.WELL], [1, 0])
    assert (second.lookups, second.lag) == (10.0, 3.0)


def test_lookups_of_a_global_store_count_together():
    everywhere = store("rates", 2, is_global=True)
    found = recorder(fleet(stores=(everywhere,), tasks=()))
    found.sample(at(0))
    found.take_node(reading("n1", 0.0))
    found.take_node(reading("n1", 2.0, *(replica(each, store="rates", lookups=4) for each in (0, 1))))
    found.sample(at(2))
    assert list(found.samples.columns[-1].stores["rates"].lookups) == [4.0]


def conditions(given: object, *silent: str) -> Condition:
    found = recorder(fleet(tasks=(given,), stores=(store(partitions=1),)))
    for name in silent:
        found.note_contact(name, Contact.SILENT, "refused", 0.0)
    found.sample(at(0))
    return Condition(found.samples.columns[0].stores["counts"].states[0])


def test_how_a_partition_does():
    well = task(0)
    assert conditions(well) is Condition.WELL
    assert conditions(with_reports(well, "running", "restoring")) is Condition.THIN
    assert conditions(well, "n2") is Condition.THIN
    assert conditions(with_reports(well, "running", "running", lag=BEHIND)) is Condition.BEHIND
    assert conditions(with_reports(well, "restoring", "running")) is Condition.RESTORING
    assert conditions(task(0, replicas=())) is Condition.RESTORING, "its active has said nothing yet"
    assert conditions(well, "n1") is Condition.SILENT
    assert conditions(task(0, None, ())) is Condition.NOBODY
    assert conditions(with_reports(well, "error", "running")) is Condition.FAILED
    assert len({condition.glyph for condition in Condition}) == len(Condition)


def test_the_past_is_bounded_by_columns_and_by_cells():
    samples = Samples()
    for number in range(COLUMNS_MAX + 5):
        samples.add(SampleColumn.of(number, {}))
    assert (len(samples.columns), samples.columns[-1].at_ms) == (COLUMNS_MAX, COLUMNS_MAX + 4)
    large = StoreColumn(*recorder_column(CELLS_MAX // 3))
    samples = Samples()
    for number in range(5):
        samples.add(SampleColumn(number, {"counts": large}, None, None))
    assert len(samples.columns) == 3


def recorder_column(cells: int) -> tuple[object, object, bytes, bytes]:
    from array import array  # noqa: PLC0415

    return array("f", [0.0]) * cells, array("f", [0.0]) * cells, bytes(cells), bytes(cells)
