"""The routing table: lags, preference, taking over, and epochs that never go back."""

from __future__ import annotations

import asyncio

import pytest

from router.fleet.current_table import CurrentTable
from router.fleet.table import compile_table
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import Role, StoreSpec
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2
from tests.unit.router.fleets import STORE, assignment, member, members, report

HOLDERS = TaskAssignment("a", ("b", "c"), ("d",))


def _replicas(fleet: Assignment, *items: object) -> list[tuple[str, int | None]]:
    table = compile_table(fleet, members(*items))  # type: ignore[arg-type]
    return [(replica.instance_id, replica.lag) for replica in table.stores[STORE].partitions[0].replicas]


@pytest.mark.feature("dispatch-active-else")
def test_the_active_comes_first_then_standbys_by_least_lag() -> None:
    found = _replicas(
        assignment([HOLDERS]),
        member("a", {0: report(90, 90)}),
        member("b", {0: report(50, 90)}),
        member("c", {0: report(80, 90)}),
        member("d", {0: report(80, 90)}),
    )
    assert found == [("a", 0), ("c", 10), ("d", 10), ("b", 40)]


def test_lag_is_measured_against_the_largest_end_anyone_reported() -> None:
    # b is cut off: it knows an old end and thinks it has caught up. x holds dormant state and knows the newest.
    found = _replicas(
        assignment([HOLDERS]),
        member("a", {0: report(90, 90)}),
        member("b", {0: report(50, 50)}),
        member("x", {0: report(10, 100, "closed", Role.DORMANT)}),
    )
    assert dict(found) == {"a": 10, "b": 50, "c": None, "d": None}


def test_a_position_beyond_every_reported_end_is_lag_zero() -> None:
    assert _replicas(assignment([TaskAssignment("a")]), member("a", {0: report(95, 90)})) == [("a", 0)]


@pytest.mark.parametrize(("position", "end"), [(None, 5), (5, None)])
def test_a_lag_that_is_not_known_is_none(position: int | None, end: int | None) -> None:
    assert _replicas(assignment([TaskAssignment("a")]), member("a", {0: report(position, end)})) == [("a", None)]


def test_restored_replicas_come_before_an_unrestored_active() -> None:
    found = _replicas(
        assignment([HOLDERS]),
        member("a", {0: report(90, 90, "restoring")}),
        member("b", {0: report(10, 90)}),
        member("c", {0: report(90, 90, "restoring")}),
    )
    assert [name for name, _ in found] == ["b", "a", "c", "d"]


def test_a_replica_without_an_address_is_known_but_not_callable() -> None:
    table = compile_table(assignment([HOLDERS]), members(member("a", {0: report()})))
    partition = table.stores[STORE].partitions[0]
    assert [replica.instance_id for replica in partition.callable] == ["a"]
    assert {replica.instance_id for replica in partition.replicas} == {"a", "b", "c", "d"}
    route = partition.route()
    assert (route.active.instance_id, route.active.port) == ("a", 1)
    assert {host.instance_id for host in route.standbys} == {"b", "c", "d"}


def test_a_key_is_located_as_the_producer_placed_it() -> None:
    table = compile_table(assignment([TaskAssignment("a")] * 7), members(member("a")))
    for key in (b"", b"alice", b"\xff" * 9):
        assert table.locate(STORE, key).partition == partition_for(key, 7)


def test_an_unknown_store_is_refused_and_the_known_ones_are_not_named() -> None:
    table = compile_table(assignment([HOLDERS]), {})
    with pytest.raises(LookupFailure, match="no store 'nope'") as caught:
        table.locate("nope", b"k")
    assert caught.value.reason is Reason.UNKNOWN_STORE
    assert STORE not in str(caught.value)


def test_of_a_name_of_megabytes_only_the_beginning_is_told() -> None:
    table = compile_table(assignment([HOLDERS]), {})
    with pytest.raises(LookupFailure, match=r"\(5,000,000 characters\)") as caught:
        table.locate("n" * 5_000_000, b"k")
    assert len(str(caught.value)) < 500
    assert len(caught.value.metadata["store"]) == 200


@pytest.mark.feature("unknown-fields-newer")
def test_a_store_of_a_newer_version_leaves_the_others_alone() -> None:
    fleet = assignment([HOLDERS])
    stores = {
        **fleet.stores,
        "odd": StoreSpec("odd", "t", 1, 0, key_serde="morse"),
        "none": StoreSpec("none", "t", 0, 0),
    }
    mixed = Assignment(1, stores=stores, tasks=fleet.tasks)
    first = compile_table(mixed, {})
    table = compile_table(mixed, members(member("a")), first)
    assert set(table.stores) == {STORE, "odd"}
    assert set(table.unusable) == {"none"}
    # A router needs no plug-in: a caller that has the key's bytes is routed, and nodes decode.
    assert table.locate("odd", b"k").partition == 0
    with pytest.raises(LookupFailure, match="no partitions"):
        table.store("none")


def test_partitions_no_change_concerns_are_taken_over() -> None:
    fleet = assignment([TaskAssignment("a", ("b",)), TaskAssignment("b"), TaskAssignment("c")])
    b, c = member("b", {1: report()}), member("c", {2: report()})
    before = compile_table(fleet, members(member("a", {0: report()}), b, c))
    after = compile_table(fleet, members(member("a", {0: report(5)}), b, c), before)
    old, new = before.stores[STORE].partitions, after.stores[STORE].partitions
    assert new[0] is not old[0]
    assert new[1] is old[1]
    assert new[2] is old[2]
    assert after == compile_table(fleet, members(member("a", {0: report(5)}), b, c))


def test_a_node_that_left_leaves_the_routes_too() -> None:
    fleet = assignment([TaskAssignment("a")])
    before = compile_table(fleet, members(member("a", {0: report()})))
    after = compile_table(fleet, {}, before)
    assert after.stores[STORE].partitions[0].callable == ()


def test_forwarding_is_appended_to_a_serialized_request() -> None:
    table = compile_table(assignment([HOLDERS], epoch=42), {})
    request = query_service_pb2.GetRequest(store=STORE, raw=True)
    merged = query_service_pb2.GetRequest.FromString(request.SerializeToString() + table.forwarding)
    assert (merged.store, merged.raw, merged.forwarding.epoch, merged.forwarding.hops) == (STORE, True, 42, 1)
    scan = query_service_pb2.ScanRequest.FromString(table.forwarding)
    count = query_service_pb2.CountRequest.FromString(table.forwarding)
    assert scan.forwarding == count.forwarding == merged.forwarding


async def test_epochs_never_go_back() -> None:
    tables = CurrentTable()
    with pytest.raises(LookupFailure) as caught:
        tables.current()
    assert caught.value.reason is Reason.ROUTING_NOT_READY
    newer = compile_table(assignment([HOLDERS], epoch=5), {})
    assert tables.publish(newer)
    assert not tables.publish(compile_table(assignment([HOLDERS], epoch=4), {}))
    assert tables.current() is newer


async def test_a_lookup_can_wait_for_an_epoch() -> None:
    tables = CurrentTable()
    tables.publish(compile_table(assignment([HOLDERS], epoch=5), {}))
    assert await tables.wait_for_epoch(5, 0.0)
    assert not await tables.wait_for_epoch(6, 0.01)
    waiting = asyncio.create_task(tables.wait_for_epoch(7, 10.0))
    for epoch in (6, 7):
        tables.publish(compile_table(assignment([HOLDERS], epoch=epoch), {}))
    assert await waiting
