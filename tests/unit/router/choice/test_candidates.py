"""Verdicts and order: heartbeats put a replica last, and only what can't help is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.choice.candidates import Eligibility, Suspicion, ask_order, judge
from router.fleet.table import PartitionRoutes, compile_table
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.consistency import ANY, Freshness
from statehouse.contract.membership import LEAVING_STATES, GlobalReport, Member, StorePosition
from statehouse.contract.positions import Token
from statehouse.contract.topology import StoreSpec
from statehouse.errors import Reason
from statehouse.v1 import errors_pb2
from tests.unit.router.fleets import STORE, assignment, member, members, report

SLOW = Suspicion(Reason.ATTEMPT_TIMED_OUT, "no answer in 250 ms")
DOWN = Suspicion(Reason.UNREACHABLE, "connection refused")


def _routes(*items: Member) -> PartitionRoutes:
    fleet = assignment([TaskAssignment("a", ("b", "c"))])
    return compile_table(fleet, members(*items)).stores[STORE].partitions[0]


def _healthy() -> PartitionRoutes:
    return _routes(*(member(name, {0: report()}) for name in "abc"))


def _names(routes: PartitionRoutes, bound: Freshness = ANY, **suspects: Suspicion) -> str:
    order = "".join(replica.instance_id for replica in ask_order(routes, bound, suspects))
    judged = [
        v.replica.instance_id for v in judge(routes, bound, suspects) if v.eligibility is not Eligibility.EXCLUDED
    ]
    assert order == "".join(judged), "the quick way and the thorough one must agree"
    return order


def test_a_quiet_fleet_is_asked_by_preference() -> None:
    assert _names(_healthy()) == "abc"


@pytest.mark.feature("slow-dead-nodes")
@pytest.mark.parametrize("suspicion", [SLOW, DOWN])
def test_a_suspect_is_asked_last_and_not_left_out(suspicion: Suspicion) -> None:
    assert _names(_healthy(), a=suspicion) == "bca"


@pytest.mark.feature("slow-dead-nodes")
def test_a_node_that_is_down_comes_after_one_that_is_slow() -> None:
    assert _names(_healthy(), a=DOWN, b=SLOW) == "cba"


def test_a_fleet_all_of_suspects_is_still_asked() -> None:
    assert _names(_healthy(), a=SLOW, b=SLOW, c=SLOW) == "abc"


def test_who_has_not_reported_the_position_is_asked_after_those_who_have_and_before_suspects() -> None:
    positions = {"a": 10, "b": 12, "c": None}
    routes = _routes(*(member(name, {0: report(position, 12)}) for name, position in positions.items()))
    assert _names(routes, Freshness(at_least=Token({(STORE, 0): 11}))) == "bac"
    assert _names(routes, Freshness(at_least=Token({(STORE, 0): 13}))) == "abc"
    assert _names(routes, Freshness(at_least=Token({(STORE, 0): 11})), b=SLOW) == "acb"
    assert _names(routes, Freshness(at_least=Token({(STORE, 1): 99, ("other", 0): 99}))) == "abc"
    verdicts = judge(routes, Freshness(at_least=Token({(STORE, 0): 11})), {})
    assert {each.replica.instance_id: each.reason for each in verdicts} == {
        "a": Reason.POSITION_NOT_REACHED,
        "b": None,
        "c": Reason.POSITION_NOT_REACHED,
    }


@pytest.mark.parametrize("state", ["restoring", "created", "error"])
def test_a_replica_reported_unfit_is_asked_last(state: str) -> None:
    routes = _routes(member("a", {0: report(state=state)}), member("b", {0: report()}), member("c"))
    assert _names(routes)[0] == "b"
    assert set(_names(routes)) == {"a", "b", "c"}
    verdict = next(item for item in judge(routes, ANY, {}) if item.replica.instance_id == "a")
    expected = Reason.TASK_FAILED if state == "error" else Reason.PARTITION_RESTORING
    assert (verdict.eligibility, verdict.reason) == (Eligibility.LAST, expected)


def test_a_suspect_comes_after_a_replica_that_will_refuse_at_once() -> None:
    routes = _routes(member("a", {0: report()}), member("b", {0: report(state="restoring")}))
    assert _names(routes, a=SLOW) == "ba"


def test_active_only_leaves_standbys_out() -> None:
    verdicts = judge(_healthy(), Freshness(active_only=True), {})
    assert [(v.replica.instance_id, v.reason) for v in verdicts] == [
        ("a", None),
        ("b", Reason.NOT_ACTIVE),
        ("c", Reason.NOT_ACTIVE),
    ]
    assert _names(_healthy(), Freshness(active_only=True), a=DOWN) == "a"


def test_a_lag_beyond_the_bound_is_asked_last_because_it_may_have_caught_up() -> None:
    routes = _routes(member("a", {0: report(50, 90)}), member("b", {0: report(90, 90)}), member("c", {0: report(None)}))
    assert _names(routes, Freshness(max_lag=10)) == "bac"
    assert _names(routes, Freshness(max_lag=40)) == "abc"
    reasons = {v.replica.instance_id: v.reason for v in judge(routes, Freshness(max_lag=10), {})}
    assert reasons == {"a": Reason.LAG_EXCEEDS_BOUND, "b": None, "c": Reason.LAG_EXCEEDS_BOUND}


def test_a_replica_without_an_address_is_left_out_with_that_reason() -> None:
    routes = _routes(member("a", {0: report()}))
    assert _names(routes) == "a"
    assert [v.reason for v in judge(routes, ANY, {})] == [None, Reason.UNKNOWN_ADDRESS, Reason.UNKNOWN_ADDRESS]


def test_a_verdict_tells_people_what_it_means() -> None:
    routes = _routes(member("a", {0: report(50, 90)}), member("b", {0: report(90, 90)}))
    b, a, c = (v.to_proto() for v in judge(routes, Freshness(max_lag=10), {}))
    assert b.eligible
    assert b.reason == errors_pb2.ERROR_REASON_UNSPECIFIED
    assert (a.lag, a.position, a.eligible, a.reason) == (40, 50, False, errors_pb2.ERROR_REASON_LAG_EXCEEDS_BOUND)
    assert "asked last" in a.detail
    assert not c.HasField("lag")
    assert c.reason == errors_pb2.ERROR_REASON_UNKNOWN_ADDRESS


RACKS = {"a": "east", "b": "west", "c": "east"}


def _racked(rack: str, **lags: int) -> PartitionRoutes:
    items = [replace(member(name, {0: report(90 - lags.get(name, 0), 90)}), rack=of) for name, of in RACKS.items()]
    return (
        compile_table(assignment([TaskAssignment("a", ("b", "c"))]), members(*items), rack=rack)
        .stores[STORE]
        .partitions[0]
    )


@pytest.mark.feature("bounded-reads-replica")
@pytest.mark.parametrize(
    ("bound", "order"),
    [
        (ANY, "abc"),
        (Freshness(active_only=True, max_lag=5), "a"),
        (Freshness(max_staleness_ms=100), "bac"),
        (Freshness(max_lag=5), "bac"),
    ],
)
def test_who_may_be_answered_by_any_is_answered_in_the_routers_rack(bound: Freshness, order: str) -> None:
    assert _names(_racked("west"), bound) == order
    assert _names(_racked(""), bound) == order.replace("ba", "ab")
    assert _names(_racked("nowhere"), bound) == order.replace("ba", "ab")


def test_the_rack_is_no_excuse_for_a_replica_that_is_unfit() -> None:
    assert _names(_racked("west", b=50), Freshness(max_lag=5)) == "acb"
    assert _names(_racked("west"), Freshness(max_staleness_ms=100), b=SLOW) == "acb"


def _copy(name: str, *positions: int, state: str = "running", node_state: str = "RUNNING") -> Member:
    """A node with a copy of a global store whose partitions' ends are all at 10."""
    report = GlobalReport(state, {number: StorePosition(at, 10) for number, at in enumerate(positions)})
    return Member(name, "first", "127.0.0.1", 1, state=node_state, global_replicas={STORE: report})


def _copies(*items: Member) -> PartitionRoutes:
    spec = StoreSpec(STORE, "source", 2, 0, is_global=True)
    return compile_table(Assignment(1, stores={STORE: spec}), members(*items)).stores[STORE].partitions[0]


def _turns(routes: PartitionRoutes, bound: Freshness = ANY, **suspects: Suspicion) -> list[str]:
    orders = (ask_order(routes, bound, suspects, turn) for turn in range(3))
    return ["".join(replica.instance_id for replica in order) for order in orders]


def test_copies_of_a_global_store_are_asked_in_turn() -> None:
    routes = _copies(_copy("a", 10, 10), _copy("b", 10, 4), _copy("c", 10, 9))
    assert _turns(routes) == ["abc", "bca", "cab"], "lag is no preference"
    assert _turns(routes, Freshness(active_only=True)) == ["abc", "bca", "cab"], "each is as good as an active"
    assert _turns(routes, Freshness(max_lag=5)) == ["acb", "cab", "acb"], "but it is a bound, for every partition"
    assert _turns(routes, a=DOWN) == ["bca", "cba", "bca"]


@pytest.mark.feature("bounded-reads-replica")
def test_copies_in_the_routers_rack_come_first_and_in_turn() -> None:
    spec = StoreSpec(STORE, "source", 2, 0, is_global=True)
    items = [replace(_copy(name, 10, 10), rack=rack) for name, rack in RACKS.items()]
    table = compile_table(Assignment(1, stores={STORE: spec}), members(*items), rack="east")
    routes = table.stores[STORE].partitions[0]
    assert _turns(routes) == ["acb", "cab", "acb"]
    assert _turns(routes, a=DOWN) == ["cba"] * 3


@pytest.mark.parametrize("leaving", sorted(LEAVING_STATES))
def test_copies_that_are_not_ready_or_leave_come_last(leaving: str) -> None:
    routes = _copies(_copy("a", 0, 0, state="restoring"), _copy("b", 10, 10, node_state=leaving), _copy("c", 10, 10))
    assert _turns(routes) == ["cab"] * 3
    reasons = {v.replica.instance_id: v.reason for v in judge(routes, ANY, {})}
    assert reasons == {"a": Reason.PARTITION_RESTORING, "b": Reason.NODE_SHUTTING_DOWN, "c": None}
    assert [(r.position, r.lag) for r in _copies(_copy("a", 10, 4), _copy("b", 10)).replicas] == [(14, 6), (None, None)]
