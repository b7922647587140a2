"""What a page says of dead letters and late rows: only what has grown while it looked, and for a while."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from statehouse.client import ProcessorQuery, QueryStatus
from statehouse.web.pages.refusals import LATELY_S, Refusals
from statehouse.web.pages.rendering import as_json, html
from statehouse.web.pages.views.frame import frame_of
from statehouse.web.pages.views.overview import overview
from statehouse.web.pages.views.queries import queries_view
from tests.unit.statehouse.web.pages.fleets import at, fleet, recorder


def query(dead_letters: int, late_rows: int | None = 0) -> ProcessorQuery:
    status = QueryStatus(1.0, 0, None, None, 0, 0, dead_letters, 10, {"not_json": dead_letters}, late_rows)
    return ProcessorQuery("totals", ("totals",), False, False, 10, 1, 10, status, 0, "RUNNING", None, 10)


def test_counts_from_before_the_first_look_are_not_told() -> None:
    refusals = Refusals()
    refusals.take([query(9, 4)], 0.0)
    refusals.take([query(9, 4)], 1.0)
    assert (refusals.recent_dead_letters(1.0), refusals.recent_late_rows(1.0)) == ({}, {})


def test_growth_adds_up_and_is_forgotten_after_a_while() -> None:
    refusals = Refusals()
    for now_s, count in ((0.0, 9), (1.0, 11), (2.0, 11), (3.0, 14)):
        refusals.take([query(count)], now_s)
    assert refusals.recent_dead_letters(3.0) == {"totals": 5}
    assert refusals.recent_dead_letters(3.0 + LATELY_S) == {}
    refusals.take([query(15)], 3.0 + LATELY_S)
    assert refusals.recent_dead_letters(3.0 + LATELY_S) == {"totals": 1}


def test_a_processor_that_begins_anew_counts_from_nothing() -> None:
    refusals = Refusals()
    refusals.take([query(9)], 0.0)
    refusals.take([query(0)], 1.0)
    assert refusals.recent_dead_letters(1.0) == {}
    refusals.take([query(2)], 2.0)
    assert refusals.recent_dead_letters(2.0) == {"totals": 2}


def test_a_processor_that_counts_no_late_rows_has_none() -> None:
    refusals = Refusals()
    for now_s in (0.0, 1.0):
        refusals.take([query(0, None), replace(query(0), name="new", status=None)], now_s)
    assert refusals.recent_late_rows(1.0) == {}


@pytest.mark.feature("dead-letters-by-reason")
def test_what_grows_needs_attention_and_leads_to_the_queries() -> None:
    found = recorder(fleet(queries=(query(9, 1),)))
    assert overview(found, at(0), is_measured=True).notices == ()
    found.take_fleet(fleet(queries=(query(10, 3),)), at(2))
    notices = overview(found, at(2), is_measured=True).notices
    assert [(notice.words, notice.page) for notice in notices] == [
        ("Query totals has refused 1 record lately", "queries"),
        ("Query totals has dropped 2 late rows lately", "queries"),
    ]


@pytest.mark.feature("dead-letters-by-reason")
def test_the_page_of_queries_has_reasons_and_late_rows() -> None:
    status = QueryStatus(1.0, 0, None, None, 0, 0, 5, 10, {"<b>mine": 2, "not_json": 3}, 41)
    found = recorder(fleet(queries=(replace(query(5), status=status),)))
    view = queries_view(found, at(1))
    text = html(
        "main.html",
        needs_fleet=True,
        note=None,
        watching=None,
        csrf_token="",
        title="Queries",
        content="queries.html",
        page=view,
        frame=frame_of(found, at(1)),
        query={},
    )
    assert text.index("not_json 3") < text.index("&lt;b&gt;mine 2"), "the most frequent first"
    assert '<td class="n">41</td>' in text
    shown = json.dumps(as_json(view))
    assert '"dead_letters_by_reason": {"<b>mine": 2, "not_json": 3}' in shown
    assert '"late_rows": 41' in shown
