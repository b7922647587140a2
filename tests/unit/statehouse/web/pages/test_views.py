"""What pages show, made of what is known of a fleet."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from statehouse.client import Controller, ProcessorQuery, QueryFailure, QueryStatus
from statehouse.client.answers import ChangelogSetting, ChangelogSettings
from statehouse.client.node_readings import TransferReading
from statehouse.web.pages.blocks import Span
from statehouse.web.pages.contacts import Contact
from statehouse.web.pages.pages import LIVE_PAGES, BadQuery, Group, Seen, menu, number, text
from statehouse.web.pages.partitions import Condition
from statehouse.web.pages.recorder import Recorder
from statehouse.web.pages.rendering import as_json, breakable, html, link
from statehouse.web.pages.views.attention import Health, health_of
from statehouse.web.pages.views.changelogs import CHANGELOGS_A_PAGE, changelogs_view
from statehouse.web.pages.views.frame import frame_of
from statehouse.web.pages.views.heat import MOVED, HeatOf, HeatRow, drawn, heat_view, level_of
from statehouse.web.pages.views.map import CELLS_MAX, map_view
from statehouse.web.pages.views.nodes import NODES_A_PAGE, node_view, nodes_view
from statehouse.web.pages.views.overview import Overview, overview
from statehouse.web.pages.views.queries import queries_view
from statehouse.web.pages.views.reads import oldest_kept
from statehouse.web.pages.views.restores import restores_view
from statehouse.web.pages.views.routing import routing_view
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

HOSTILE = "\"><script>alert(1)</script>&'`{{ 7 * 7 }}"
NOW_MS = at(1).epoch_ms


def shown_of(found: Recorder) -> Overview:
    return overview(found, at(0), is_measured=True)


def test_the_overview_counts_and_names_what_needs_attention():
    silent_query = ProcessorQuery(
        "scores", ("counts",), False, False, 90_000, 1, 10, None, state="SILENT", heard_age_ms=90_000
    )
    stopped = replace(silent_query, name="alarms", stopped=True, state="STOPPED")
    died = QueryFailure(5, "ZeroDivisionError at topology.py:19, record orders/3/812", given_up=False)
    dying = replace(silent_query, name="walks", state="RESTARTING", failure=died)
    found = recorder(
        fleet(
            tasks=(with_reports(task(0), "restoring", "running"), task(1, None, ())),
            queries=(silent_query, stopped, dying),
            controller=Controller("driver", False, True, 5),
        )
    )
    found.note_contact("n2", Contact.SILENT, "refused", 0.0)
    shown = shown_of(found)
    assert (shown.nodes, shown.silent, shown.partitions, shown.well) == (2, 1, 2, 0)
    assert [notice.words for notice in shown.notices] == [
        "○ 1 partition: no active",
        "◐ 1 partition: active restores",
        "Node silent: n2",
        "No controller acts: who holds what stays as it is until one does",
        "Query scores: SILENT 90 s",
        "Query alarms has stopped",
        "Query walks: RESTARTING (5 times: ZeroDivisionError at topology.py:19, record orders/3/812)",
    ]
    assert (shown.ill, shown.is_silent) == ((("RESTARTING", 1), ("SILENT", 1)), True)
    well = shown_of(recorder(fleet()))
    assert (well.notices, well.ill, well.is_silent) == ((), (), False)


def test_what_is_wrong_with_stores_topics_needs_attention() -> None:
    stores = tuple(store(f"s{number}", warnings=("has 4 partitions",)) for number in range(7))
    words = [notice.words for notice in shown_of(recorder(fleet(stores=stores))).notices]
    assert [each for each in words if "4 partitions" in each] == [f"Store s{n}: has 4 partitions" for n in range(5)]
    assert any(each.startswith("2 more stores") for each in words)


def test_the_map_shows_who_is_active_and_what_the_last_epoch_moved():
    found = recorder(fleet(), fleet(2, tasks=(task(0, "n2", ("n1",)), task(1, "n2", ("n1",)))))
    (shown,) = map_view(found, NOW_MS, None, None, None, None).maps
    assert [(cell.active, cell.was, cell.moved) for cell in shown.cells] == [("n2", "n1", 1), ("n2", None, 0)]
    later = map_view(found, NOW_MS + 60_000, None, None, None, None)
    assert [cell.was for cell in later.maps[0].cells] == [None, None], "a move is news for a while only"
    replayed = map_view(found, NOW_MS, None, None, None, 1)
    assert [cell.active for cell in replayed.maps[0].cells] == ["n1", "n2"]
    assert (replayed.epoch, replayed.earlier, replayed.later) == (1, None, 2)


@pytest.mark.feature("ten-thousand-partitions")
def test_a_large_store_is_shown_in_blocks_that_tell_the_worst():
    tasks = [task(each) for each in range(1_000)]
    tasks[42] = task(42, None, ())
    found = recorder(fleet(stores=(store(partitions=1_000),), tasks=tuple(tasks)))
    (shown,) = map_view(found, NOW_MS, "counts", None, None, None).maps
    assert len(shown.cells) <= CELLS_MAX
    block = next(cell for cell in shown.cells if 42 in cell.span.places)
    assert (block.condition, dict(block.counts)) == (Condition.NOBODY, {Condition.WELL: 4, Condition.NOBODY: 1})
    (opened,) = map_view(found, NOW_MS, "counts", 40, 44, None).maps
    assert [cell.span.first for cell in opened.cells] == [40, 41, 42, 43, 44]


@pytest.mark.feature("heat-map-partitions")
def test_a_heat_map_sums_lookups_and_takes_the_largest_lag():
    found = recorder(fleet())
    found.sample(at(0))
    found.take_node(reading("n1", 0.0, replica(lookups=0), replica(1, lookups=0)))
    found.take_node(reading("n1", 2.0, replica(lookups=40, lag=5), replica(1, lookups=10, lag=500)))
    found.sample(at(2))
    rows = heat_view(found, HeatOf.LOOKUPS, None, None, None).rows
    assert [row.values for row in rows] == [(None, 20.0), (None, 5.0)]
    assert [row.levels for row in rows] == [(-1, 3), (-1, 2)]
    assert [row.latest for row in heat_view(found, HeatOf.LAG, None, None, None).rows] == [5.0, 500.0]
    assert heat_view(recorder(), HeatOf.LAG, None, None, None).rows == ()


def test_a_heat_map_of_roles_shows_moves():
    found = recorder(fleet())
    found.sample(at(0))
    found.take_fleet(fleet(2, tasks=(task(0, "n2", ("n1",)), task(1, "n2", ("n1",)))), at(2))
    found.sample(at(2))
    rows = heat_view(found, HeatOf.ROLE, "counts", None, None).rows
    assert [(row.levels, row.moves) for row in rows] == [((1, MOVED), 1), ((1, 1), 0)]


def test_colours_are_steps_of_ten():
    assert [level_of(value) for value in (0, 0.5, 1, 9.9, 10, 99, 100, 999, 1_000, 9_999, 10_000)] == [
        0,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        5,
        5,
        6,
    ]


def test_a_map_is_drawn_as_a_path_for_each_colour():
    rows = (HeatRow(Span(0, 0), (), (1, 1, 2)), HeatRow(Span(1, 1), (), (-1, 2, 2)))
    assert drawn(rows, 7, 12) == {1: "M0 0h14v11h-14z", 2: "M14 0h7v11h-7zM7 12h14v11h-14z"}


def test_nodes_are_paged_and_say_how_long_they_are_silent():
    names = [f"m{number:03}" for number in range(NODES_A_PAGE + 3)]
    found = recorder(fleet(nodes=tuple(map(node, names))))
    found.note_contact(names[-1], Contact.SILENT, "refused", 1.0)
    last = nodes_view(found, at(4), 99)
    assert (last.total, last.silent, last.page, last.pages, len(last.rows)) == (len(names), 1, 2, 2, 3)
    assert (last.rows[-1].silent_ms, last.rows[-1].heartbeat_age_ms, last.rows[-1].can_drain) == (3_000, 4_100, False)
    assert last.rows[-1].silence == "silent 3 s", "its session goes on"
    assert last.rows[0].can_drain


def test_a_node_past_its_session_is_silent_though_it_answers():
    found = recorder(fleet(nodes=(node("n1", state="SILENT", heartbeat_age_ms=53_000), node("n2"))))
    found.take_node(reading("n1", 0.0))
    shown = nodes_view(found, at(0), 1)
    cut_off, well = shown.rows
    assert (shown.silent, cut_off.state, cut_off.silent_ms, cut_off.can_drain) == (1, "SILENT", 53_000, False)
    assert cut_off.silence == "SILENT 53 s"
    assert (well.state, well.silent_ms, well.is_silent) == ("RUNNING", None, False)
    assert [notice.words for notice in shown_of(found).notices] == ["Node silent: n1"]
    assert health_of(found) is Health.ATTENTION


def test_a_drain_s_preview_tells_who_can_take_each_task_over():
    behind = with_reports(task(1, "n1", ("n2",)), "running", "restoring")
    found = recorder(fleet(tasks=(task(0, "n1", ("n2", "n3")), behind), nodes=(node("n1"), node("n2"), node("n3"))))
    found.note_contact("n3", Contact.SILENT, "refused", 0.0)
    shown = node_view(found, at(1), "n1")
    assert shown is not None
    assert [(each.task, each.to, each.behind) for each in shown.hand_overs] == [
        ("0_0", ("n2",), ("n3",)),
        ("0_1", (), ("n2",)),
    ]
    assert (shown.ready, shown.others, shown.takers) == (1, 1, (("n2", 1),))
    assert node_view(found, at(1), "nobody") is None


@pytest.mark.feature("restores-their-share")
def test_restores_have_a_share_a_rate_and_an_end():
    found = recorder(fleet())
    for second, position in ((0.0, 200), (2.0, 600)):
        found.take_node(
            reading("n1", second, replica(state="restoring", position=position, end=1_000, restored_from=100))
        )
    found.take_node(reading("n2", 2.0, replica(1, state="error", error="disk full", position=None, end=None)))
    shown = restores_view(found, 1)
    assert (shown.total, shown.failed, shown.left, shown.per_s, shown.eta_ms) == (2, 1, 400, 200.0, 2_000)
    restoring, failed = shown.rows
    assert (restoring.done, restoring.left, restoring.per_s, restoring.eta_ms) == (0.5556, 400, 200.0, 2_000)
    assert (failed.error, failed.done, failed.eta_ms) == ("disk full", None, None)
    again = replica(state="restoring", position=700, end=1_000, restored_from=100)
    found.take_node(reading("n1", 3.0, again, incarnation="next"))
    assert [row.per_s for row in restores_view(found, 1).rows if not row.error] == [None], "its process began anew"
    found.note_contact("n1", Contact.SILENT, "refused", 4.0)
    quiet, failed = restores_view(found, 1).rows
    assert (quiet.state, quiet.left, quiet.eta_ms, failed.error) == ("silent", None, None, "disk full")


@pytest.mark.feature("restores-their-share")
def test_files_that_are_fetched_are_restores_too():
    found = recorder(fleet())
    for second, done in ((0.0, 0), (2.0, 600)):
        files = TransferReading("0_0", "STANDBY", "counts", 0, "n2", 1_000, done)
        found.take_node(replace(reading("n1", second), transfers=(files,)))
    shown = restores_view(found, 1)
    assert (shown.total, shown.left, shown.left_bytes, shown.per_s, shown.eta_ms) == (1, 0, 400, 0.0, 1_333)
    (row,) = shown.rows
    assert (row.peer, row.state, row.done, row.left, row.per_s) == ("n2", "created", 0.6, 400, 300.0)


@pytest.mark.feature("restores-their-share")
def test_a_query_that_is_silent_or_dies_is_ill():
    status = QueryStatus(12.0, 5, None, NOW_MS - 4_000, 7, 8, 0, 640)
    query = ProcessorQuery("scores", ("counts",), False, False, 59_500, 1, 10, status, 5, "RUNNING", None, 500)
    silent = replace(query, state="SILENT")
    found = recorder(fleet(queries=(query, silent)))
    well, ill = queries_view(found, at(1)).rows
    assert (well.is_ill, ill.is_ill, ill.watermark_lag_ms) == (False, True, 4_000)


def test_a_controller_that_has_ended_or_is_quiet_does_not_act():
    def acts(**changes: Any) -> bool:
        given = replace(Controller("driver", standby=False, stopped=False, record_age_ms=300), **changes)
        return not queries_view(recorder(fleet(controller=given)), at(2)).is_unassigned

    assert acts()
    assert acts(record_age_ms=8_000)
    assert not acts(record_age_ms=8_001), "two seconds have passed since"
    assert not acts(stopped=True)


def test_names_go_on_in_another_line_where_a_word_ends_and_stay_text():
    assert breakable("NO_REPLICA.x") == "NO_<wbr>REPLICA.<wbr>x"
    assert breakable("<b>_</b>") == "&lt;b&gt;_<wbr>&lt;/<wbr>b&gt;"


AS_WANTED = ChangelogSetting("cleanup.policy", "compact", "compact")


@pytest.mark.feature("settings-changelogs-wanted")
def test_changelogs_that_are_not_as_they_are_wanted_come_first():
    found = recorder(fleet(stores=(store("boards"), store("counts"), store("rates", is_global=True))))
    assert not changelogs_view(found, at(0), 1).is_known
    changed = ChangelogSetting("min.compaction.lag.ms", "600000", "5")
    fixed = ChangelogSetting("partitions", "3", "2", "reset it")
    found.take_changelogs(
        (
            ChangelogSettings("boards", "app-boards", 2_000, (AS_WANTED,)),
            ChangelogSettings("counts", "app-counts", 2_000, (AS_WANTED, changed, fixed)),
            ChangelogSettings("gone", "app-gone", 2_000, (ChangelogSetting("cleanup.policy", "compact", None),)),
            ChangelogSettings("rates", "rates", None, ()),
        ),
        at(1),
    )
    shown = changelogs_view(found, at(4), 99)
    assert (shown.total, shown.differing, shown.compared, shown.page, shown.pages) == (4, 3, 3, 1, 1)
    assert [row.store for row in shown.rows] == ["counts", "gone", "boards", "rates"]
    counts, gone, boards, rates = shown.rows
    assert [(each.differs, each.remedy) for each in counts.settings] == [
        (False, ""),
        (True, "`statehouse topics apply` changes it, and so does the next start of the processor"),
        (True, "reset it"),
    ]
    assert "creates the topic" in gone.settings[0].remedy
    assert (boards.compared_age_ms, rates.compared_age_ms, rates.is_global) == (5_000, None, True)
    assert [notice.words for notice in shown_of(found).notices][-1] == (
        "Changelogs not as the application wants them: counts, gone"
    )


def test_changelogs_come_in_pages():
    found = recorder(fleet())
    names = [f"s{number:03}" for number in range(CHANGELOGS_A_PAGE + 2)]
    found.take_changelogs(tuple(ChangelogSettings(name, name, 1, (AS_WANTED,)) for name in names), at(0))
    last = changelogs_view(found, at(0), 2)
    assert (last.pages, [row.store for row in last.rows]) == (2, names[-2:])


def test_what_is_known_of_nothing_is_shown_as_nothing():
    for page in LIVE_PAGES.values():
        view = page.view(Seen(Recorder(), at(0), QueryParams()))
        json.dumps(as_json(view), allow_nan=False)
    assert not routing_view(Recorder(), is_measured=False).is_measured


@pytest.mark.parametrize(
    ("told", "newest", "oldest"),
    [
        ((("running", 3), ("running", 17), ("running", 0)), 42, 17),
        ((("running", 3), ("restoring", None)), 42, 3),
        ((("running", 3), ("running", None)), 42, None),  # it keeps none, or is of an earlier version
        ((("running", 43),), 42, None),  # the batches' ids have begun anew
        ((("running", 42),), 42, 42),
        ((("running", 3),), None, None),
        ((), 42, None),
    ],
)
def test_a_store_serves_from_the_largest_of_its_replicas_oldest_batches(
    told: tuple[tuple[str, int | None], ...], newest: int | None, oldest: int | None
) -> None:
    replicas = [replica(number, state=state, oldest_batch=batch) for number, (state, batch) in enumerate(told)]
    readings = [reading(f"n{number}", 0.0, each) for number, each in enumerate(replicas)]
    readings.append(reading("n9", 0.0, replica(store="other", oldest_batch=99)))
    assert oldest_kept((store(newest_batch=newest), store("none")), iter(readings)) == (oldest, None)


def test_the_table_of_stores_shows_the_oldest_kept_batch_by_the_nodes_that_answer() -> None:
    found = recorder(fleet(stores=(store("boards"), store(newest_batch=42))))
    found.take_node(reading("n1", 0.0, replica(oldest_batch=17)))
    found.take_node(reading("n2", 0.0, replica(1, oldest_batch=20)))
    page = LIVE_PAGES["stores"]

    def shown() -> str:
        return html(page.template, page=page.view(Seen(found, at(1), QueryParams())))

    assert "<td>newest batch 42, oldest kept 20</td>" in shown()
    assert "<td>not known</td>" in shown()
    found.note_contact("n2", Contact.SILENT, "refused", 1.0)
    assert "<td>newest batch 42, oldest kept 17</td>" in shown()


@pytest.mark.feature("lookups-their-explanation")
@pytest.mark.parametrize("page", LIVE_PAGES.values(), ids=LIVE_PAGES)
def test_hostile_names_stay_text(page):
    hostile = replace(store(HOSTILE), changelog_topic=HOSTILE)
    bad = task(0, HOSTILE, ("n2",), reason=HOSTILE)
    query = ProcessorQuery(HOSTILE, (HOSTILE,), False, False, 10, 1, 10, None)
    given = fleet(
        stores=(hostile,),
        tasks=(bad, task(1)),
        nodes=(node(HOSTILE, rack=HOSTILE, version=HOSTILE),),
        queries=(query,),
        controller=Controller(HOSTILE, False, False, 5),
        reason=HOSTILE,
    )
    found = recorder(replace(given, application_id=HOSTILE))
    found.take_node(reading(HOSTILE, 0.0, replica(store=HOSTILE, state="error", error=HOSTILE)))
    setting = ChangelogSetting(HOSTILE, HOSTILE, "", HOSTILE)
    found.take_changelogs((ChangelogSettings(HOSTILE, HOSTILE, 1, (setting,)),), at(0))
    found.sample(at(0))
    found.routers_failed(HOSTILE, at(1))
    view = page.view(Seen(found, at(1), QueryParams()))
    text = html(
        "main.html",
        needs_fleet=True,
        note=None,
        watching=None,
        csrf_token="",
        title="Title",
        content=page.template,
        page=view,
        frame=frame_of(found, at(1)),
        query=QueryParams({"store": HOSTILE}),
    )
    assert "<script" not in text
    assert "49" not in text.replace(str(at(1).epoch_ms), "")
    assert "&lt;script&gt;" in text
    json.dumps(as_json(view), allow_nan=False)


def test_nodes_that_are_asked_last_are_named():
    found = recorder(fleet(nodes=(node("n1", reachable=False), node("n2"))))
    text = html(
        "main.html",
        needs_fleet=True,
        note=None,
        title="Routing",
        content="routing.html",
        page=routing_view(found, is_measured=False),
        frame=frame_of(found, at(0)),
    )
    assert "Asked last now: <b>n1</b>" in text


def test_the_menu_has_every_page_once_by_what_it_is_about():
    assert [group for group, _ in menu()] == list(Group)
    paths = [page.path for _, pages in menu() for page in pages]
    assert sorted(paths) == sorted({*(page.path for page in LIVE_PAGES.values()), "lookup"})


def test_parameters_are_checked():
    assert number(QueryParams("page=3"), "page") == 3
    for given in ("page=-1", "page=x", "page=1.5", "page=٣", "page=1&page=2", f"page={'9' * 40}"):
        with pytest.raises(BadQuery):
            number(QueryParams(given), "page")
    with pytest.raises(BadQuery, match="longer"):
        text(QueryParams({"key": "k" * 400}), "key")
    found = recorder(fleet())
    for given in ("store=nobody", "epoch=99", "from=x"):
        with pytest.raises(BadQuery):
            LIVE_PAGES["map"].view(Seen(found, at(0), QueryParams(given)))
    with pytest.raises(BadQuery, match="lookups, lag, role"):
        LIVE_PAGES["heat"].view(Seen(found, at(0), QueryParams("of=love")))


def test_links_keep_what_was_given_and_encode_it():
    assert link("/map", QueryParams("store=a&epoch=3"), epoch=None, page=2) == "/map?store=a&page=2"
    assert link("/map", {}, store="a&b=<c>") == "/map?store=a%26b%3D%3Cc%3E"
    assert link("/map", {}, page=None) == "/map"
