"""The processor's queries, as its commit records tell of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from google.protobuf.message import Message

from router.fleet_api.queries import ControllerReport, ProcessorQueries
from statehouse.contract.topology import StoreSpec
from statehouse.control.v1 import assignment_pb2, commits_pb2
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]
FIGURES = {
    "input_rows_per_second": 12.5,
    "backlog": 300,
    "state_rows": 7,
    "state_bytes": 4_000,
    "dead_letters": 2,
    "batch_ms": 640,
}
KNOWN = {"boards", "ranks", "alerts"}


def commit(store: str, **fields: object) -> commits_pb2.Commit:
    given: dict[str, object] = {"query": "scores", "batch_id": 4} | fields
    return commits_pb2.Commit(store=store, **given)  # type: ignore[arg-type]


def described(queries: ProcessorQueries, now_s: float = 10.0) -> list[fleet_service_pb2.QueryInfo]:
    return list(queries.describe(KNOWN, now_s))


def test_stores_of_a_query_are_told_of_together() -> None:
    queries = ProcessorQueries()
    figures = commits_pb2.QueryFigures(**FIGURES, backlog_eta_ms=24_000, watermark_ms=-1)
    for store in ("ranks", "boards"):
        queries.on_commit(commit(store, committed_at_ms=3_500, figures=figures, input_backlog=12), 8.0, 4_000)
    queries.on_commit(commit("alerts", query="alarms", batch_id=9, idle=True, stopped=True), 9.0, 4_000)
    alarms, scores = described(queries)
    assert alarms == fleet_service_pb2.QueryInfo(
        name="alarms",
        stores=["alerts"],
        idle=True,
        stopped=True,
        record_age_ms=1_000,
        batch_id=9,
        state="STOPPED",
        heard_age_ms=1_000,
    )
    assert scores == fleet_service_pb2.QueryInfo(
        name="scores",
        stores=["boards", "ranks"],
        record_age_ms=2_000,
        batch_id=4,
        batch_age_ms=2_500,
        input_backlog=12,
        status=fleet_service_pb2.QueryStatus(**FIGURES, backlog_eta_ms=24_000, watermark_ms=-1),
        state="RUNNING",
        heard_age_ms=2_000,
    )


DIED = commits_pb2.QueryFailure(restarts=5, reason="ZeroDivisionError at topology.py:19, record orders/3/812")
GIVEN_UP = commits_pb2.QueryFailure(reason="KeyError", given_up=True)


@pytest.mark.feature("failures-are-seen")
@pytest.mark.parametrize(
    ("fields", "heard_s_ago", "state"),
    [
        ({}, 3.0, "RUNNING"),
        ({"idle": True}, 3.0, "IDLE"),
        ({"idle": True, "busy": True}, 3.0, "RUNNING"),
        ({"idle": True}, 3.25, "SILENT"),
        ({"heartbeat_interval_ms": 0}, 60.0, "RUNNING"),
        ({"heartbeat_interval_ms": 0}, 60.25, "SILENT"),
        ({"idle": True, "failure": DIED}, 0.0, "RESTARTING"),
        ({"idle": True, "failure": GIVEN_UP}, 0.0, "FAILED"),
        ({"idle": True, "failure": DIED}, 9.0, "SILENT"),
        ({"stopped": True, "failure": GIVEN_UP}, 90.0, "FAILED"),
        ({"stopped": True, "failure": DIED}, 90.0, "STOPPED"),
    ],
)
def test_how_a_query_does_follows_from_its_last_record(
    fields: dict[str, object], heard_s_ago: float, state: str
) -> None:
    queries, figures = ProcessorQueries(), commits_pb2.QueryFigures(input_rows_per_second=45.5, backlog_eta_ms=9)
    said = commit("boards", **{"heartbeat_interval_ms": 1_000, "figures": figures, "age_ms": 60_000} | fields)
    queries.on_commit(said, 100.0 - heard_s_ago - 60, 4_000)
    (boards,) = described(queries, 100.0)
    assert (boards.state, boards.heard_age_ms) == (state, heard_s_ago * 1_000)
    assert boards.record_age_ms == heard_s_ago * 1_000 + 60_000, "what it says is as old as it was"
    assert boards.HasField("failure") == ("failure" in fields)
    assert (boards.status.input_rows_per_second > 0) == (state in {"RUNNING", "IDLE"})


def test_what_isn_t_known_stays_unset() -> None:
    queries = ProcessorQueries()
    queries.on_commit(commit("boards", figures=commits_pb2.QueryFigures()), 8.0, 4_000)
    (scores,) = described(queries)
    assert not scores.HasField("batch_age_ms")
    assert not scores.HasField("input_backlog")
    assert not scores.status.HasField("backlog_eta_ms")
    assert not scores.status.HasField("watermark_ms")


@pytest.mark.feature("clocks-jump-staleness")
def test_the_newest_record_counts_and_ages_are_never_negative() -> None:
    queries = ProcessorQueries()
    queries.on_commit(commit("boards", batch_id=5, committed_at_ms=9_000), 11.0, 4_000)
    queries.on_commit(commit("ranks", batch_id=4), 8.0, 4_000)
    (scores,) = described(queries)
    assert (scores.batch_id, scores.record_age_ms, scores.batch_age_ms) == (5, 0, 0)


def test_stores_that_are_gone_and_those_that_begin_anew_are_left_out() -> None:
    queries = ProcessorQueries()
    queries.on_commit(commit("dropped"), 8.0, 4_000)
    queries.on_commit(commit("boards"), 8.0, 4_000)
    queries.on_reset("boards")
    queries.on_reset("never heard of")
    assert described(queries) == []


def test_records_of_a_processor_that_does_not_name_the_query_are_its_store_s() -> None:
    queries = ProcessorQueries()
    queries.on_commit(commit("boards", query=""), 8.0, 4_000)
    assert [query.name for query in described(queries)] == ["boards"]


def test_changelogs_are_told_of_as_the_processor_compared_them() -> None:
    queries = ProcessorQueries()
    compared = commits_pb2.TopicComparison(compared_at_ms=3_000)
    compared.settings.add(name="partitions", wanted="3", found="2", remedy="reset it")
    compared.settings.add(name="cleanup.policy", wanted="compact")
    queries.on_commit(commit("boards", changelog=compared), 8.0, 4_000)
    queries.on_commit(commit("ranks"), 8.0, 4_000)
    stores = {name: StoreSpec(name, f"app-{name}-changelog", 1, 0) for name in ("ranks", "boards", "quiet")}
    boards, quiet, ranks = queries.changelogs(stores, 10.0)
    assert (boards.store, boards.topic, boards.compared_age_ms) == ("boards", stores["boards"].changelog_topic, 3_000)
    partitions, policy = boards.settings
    assert (partitions.name, partitions.wanted, partitions.found, partitions.remedy) == (
        "partitions",
        "3",
        "2",
        "reset it",
    )
    assert not policy.HasField("found"), "there is no topic"
    for unknown in (quiet, ranks):
        assert not unknown.HasField("compared_age_ms")
        assert not unknown.settings


def test_the_newest_batch_of_a_store_is_one_whose_end_was_told() -> None:
    queries, spec = ProcessorQueries(), StoreSpec("boards", "t", 1, 0, committed=True)
    assert queries.newest_batch(spec) is None
    queries.on_commit(commit("boards", query_id="q", is_moment=True), 8.0, 4_000)
    queries.on_commit(commit("boards", query_id="q", batch_id=5), 9.0, 4_000)
    assert queries.newest_batch(spec) == 4, "the end of 5 isn't known"
    assert queries.newest_batch(replace(spec, is_global=True)) is None
    queries.on_commit(commit("boards", query_id="another", batch_id=0), 9.0, 4_000)
    assert queries.newest_batch(spec) is None, "it began anew"
    queries.on_commit(commit("boards", query_id="another", batch_id=1, is_moment=True), 9.0, 4_000)
    assert queries.newest_batch(spec) == 1
    queries.on_reset("boards")
    assert queries.newest_batch(spec) is None


@pytest.mark.feature("clients-command-line")
async def test_the_fleet_tells_of_them(start: Start) -> None:
    fleet = await start("a")
    fleet.router.queries.on_commit(commit(STORE, batch_id=6), 0.0, 4_000)
    stub = fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)
    response = await stub.GetFleet(fleet_service_pb2.GetFleetRequest(), timeout=5.0)
    assert [(query.name, list(query.stores), query.batch_id) for query in response.queries] == [("scores", [STORE], 6)]
    assert [store.no_moments for store in response.stores] == ["no processor of ours writes it"]
    listed = await stub.ListChangelogs(fleet_service_pb2.ListChangelogsRequest(), timeout=5.0)
    assert [changelog.store for changelog in listed.changelogs] == [STORE]


@pytest.mark.feature("acts-told-getfleet")
def test_who_acts_is_told_with_the_age_of_its_record() -> None:
    report = ControllerReport()
    assert report.describe(10.0) is None
    report.on_record(assignment_pb2.Controller(host="h, process 7", is_standby=True), 8.5)
    told = report.describe(10.0)
    assert told is not None
    assert (told.host, told.standby, told.stopped, told.record_age_ms) == ("h, process 7", True, False, 1_500)
    report.on_record(assignment_pb2.Controller(host="h, process 9", has_stopped=True), 10.5)
    told = report.describe(10.0)
    assert told is not None
    assert (told.host, told.standby, told.stopped, told.record_age_ms) == ("h, process 9", False, True, 0)


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        (commits_pb2.QueryFigures, fleet_service_pb2.QueryStatus),
        (commits_pb2.ComparedSetting, fleet_service_pb2.ChangelogSetting),
    ],
)
def test_whatever_is_reported_has_a_place_where_it_is_shown(reported: type[Message], shown: type[Message]) -> None:
    assert reported.DESCRIPTOR.fields_by_name.keys() <= shown.DESCRIPTOR.fields_by_name.keys()
