"""The rule that decides about a lookup also says what keeps it from the express way."""

from __future__ import annotations

import pytest

from router.choice.candidates import Suspicion
from router.choice.express import (
    Decided,
    ExpressCompiler,
    ExpressLimits,
    Obstacle,
    ObstacleKind,
    decided,
    first_asked,
    obstacle_to,
    standing_obstacle,
)
from router.fleet.table import RoutingTable, compile_table
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import GlobalReport, Member, NodeState, StorePosition, TaskState
from statehouse.contract.topology import StoreSpec
from statehouse.control.v1.express_pb2 import ExpressSnapshot
from statehouse.errors import Reason
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from tests.unit.router.fleets import STORE, assignment, member, members, report

WELL = members(member("a", {0: report()}), member("b", {0: report()}))
HOLDERS = [TaskAssignment("a", ("b",))]
PLAIN = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="7"))


def table(key_serde: str = "string", known: dict[str, Member] = WELL) -> RoutingTable:
    return compile_table(assignment(HOLDERS, key_serde=key_serde), known)


def told(
    table: RoutingTable,
    request: query_service_pb2.GetRequest = PLAIN,
    suspects: dict[str, Suspicion] | None = None,
    snapshot: ExpressSnapshot | None = None,
) -> Obstacle | None:
    """Return what keeps a request from the express way, by the snapshot of this moment or by an older one."""
    suspects = suspects or {}
    if snapshot is None:
        snapshot = ExpressCompiler(lambda _store: 0.05, ExpressLimits(9, 1_000, 0.25, needs_permits=False)).changed(
            table, suspects
        )
        assert snapshot is not None
    data = request.SerializeToString()
    found = obstacle_to(snapshot, data, table.store(request.store).partition(0), suspects)
    assert (found is None) == isinstance(decided(snapshot, data), Decided)
    return found


def kind_of(found: Obstacle | None) -> ObstacleKind | None:
    return None if found is None else found.kind


def test_nothing_keeps_a_plain_lookup() -> None:
    assert told(table()) is None
    assert told(table("long")) is None


@pytest.mark.parametrize(
    ("fields", "serde", "kind"),
    [
        ({"freshness": types_pb2.Freshness()}, "string", None),
        ({"freshness": types_pb2.Freshness(max_lag=3)}, "string", None),
        ({"freshness": types_pb2.Freshness(max_lag=3, active_only=True)}, "string", None),
        ({"freshness": types_pb2.Freshness(active_only=True)}, "string", None),
        ({"freshness": types_pb2.Freshness(at_least=types_pb2.Positions())}, "string", None),
        ({"freshness": types_pb2.Freshness(at_least=types_pb2.Positions(), active_only=True)}, "string", None),
        (
            {"freshness": types_pb2.Freshness(at_least=types_pb2.Positions(), max_lag=3)},
            "string",
            ObstacleKind.NOT_PLAIN,
        ),
        ({"freshness": types_pb2.Freshness(max_processor_age_ms=3)}, "string", ObstacleKind.NOT_PLAIN),
        ({"key": types_pb2.Key(text="7")}, "json", ObstacleKind.KEY_SERDE),
        ({"key": types_pb2.Key(text=" 7")}, "long", ObstacleKind.KEY_TEXT),
        ({"key": types_pb2.Key(raw=b"7")}, "json", None),
    ],
)
def test_what_the_request_has_may_keep_it(fields: dict[str, object], serde: str, kind: ObstacleKind | None) -> None:
    request = query_service_pb2.GetRequest(**{"store": STORE, "key": PLAIN.key, **fields})  # type: ignore[arg-type]
    assert kind_of(told(table(serde), request)) is kind


def test_suspected_nodes_keep_it_if_no_other_is_well_and_the_first_is_named() -> None:
    refused = Suspicion(Reason.UNREACHABLE, "refused")
    assert told(table(), suspects={"b": refused}) is None
    assert told(table(), suspects={"a": refused}) is None, "the standby is asked"
    found = told(table(), suspects={"a": refused, "b": refused})
    assert found == Obstacle(ObstacleKind.SUSPECTED, "a is asked last: refused")


def test_where_all_are_slow_or_silent_the_first_is_asked_as_ever() -> None:
    slow = Suspicion(Reason.ATTEMPT_TIMED_OUT, "slow", late_after_s=0.02)
    silent = Suspicion(Reason.ATTEMPT_TIMED_OUT, "silent")
    down = Suspicion(Reason.UNREACHABLE, "refused")
    for suspicions in ((slow, slow), (silent, silent), (slow, silent), (down, slow)):
        assert told(table(), suspects=dict(zip("ab", suspicions, strict=True))) is None
    asked = first_asked(table().store(STORE).partition(0), {"a": silent, "b": slow})
    assert not isinstance(asked, Obstacle)
    assert asked.instance_id == "b"


@pytest.mark.parametrize(
    "bound", [types_pb2.Freshness(active_only=True), types_pb2.Freshness(at_least=types_pb2.Positions())]
)
def test_a_lookup_for_the_active_goes_to_no_standby(bound: types_pb2.Freshness) -> None:
    refused = Suspicion(Reason.UNREACHABLE, "refused")
    request = query_service_pb2.GetRequest(store=STORE, key=PLAIN.key, freshness=bound)
    assert told(table(), request) is None
    assert kind_of(told(table(), request, suspects={"a": refused})) is ObstacleKind.UNDECIDED


def test_a_node_that_restores_or_has_no_address_keeps_it() -> None:
    restoring = members(*(member(name, {0: report(state=TaskState.RESTORING)}) for name in ("a", "b")))
    found = told(table(known=restoring))
    assert found == Obstacle(ObstacleKind.UNFIT, "a: it reported its task as restoring")
    assert kind_of(told(table(known={}))) is ObstacleKind.NO_ADDRESS


def test_copies_of_a_global_store_take_turns() -> None:
    copy = {STORE: GlobalReport(TaskState.RUNNING, {0: StorePosition(5, 5)})}
    copies = members(
        *(Member(name, "i", "127.0.0.1", 1, state=NodeState.RUNNING, global_replicas=copy) for name in ("a", "b"))
    )
    store = StoreSpec(STORE, "source", 1, 0, is_global=True)
    found = told(compile_table(Assignment(1, stores={STORE: store}), copies))
    assert kind_of(found) is ObstacleKind.TURNS
    one = {"a": copies["a"]}
    assert told(compile_table(Assignment(1, stores={STORE: store}), one)) is None


def test_what_an_older_snapshot_lacks_keeps_it_though_the_table_has_it() -> None:
    assert kind_of(told(table(), snapshot=ExpressSnapshot())) is ObstacleKind.NO_SNAPSHOT
    assert kind_of(told(table(), snapshot=ExpressSnapshot(number=1))) is ObstacleKind.UNKNOWN_STORE
    older = ExpressSnapshot(number=1)
    older.stores.add(name=STORE, first=[0])
    raw = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(raw=b"7"))
    assert kind_of(told(table(), raw, snapshot=older)) is ObstacleKind.UNDECIDED


@pytest.mark.parametrize(
    ("is_on", "has_proxy", "kind"),
    [(True, True, None), (False, True, ObstacleKind.OFF), (True, False, ObstacleKind.NO_PROXY)],
)
def test_settings_keep_all(*, is_on: bool, has_proxy: bool, kind: ObstacleKind | None) -> None:
    assert kind_of(standing_obstacle(is_on=is_on, has_proxy=has_proxy)) is kind


def test_the_contract_has_each_kind() -> None:
    others = {0, fleet_service_pb2.EXPRESS_OBSTACLE_SECURITY_RULES}  # of earlier versions
    assert {each.value for each in ObstacleKind} == set(fleet_service_pb2.ExpressObstacle.values()) - others
