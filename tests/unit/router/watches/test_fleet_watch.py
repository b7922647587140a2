"""WatchFleet: what is sent, what is not worth sending, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc
import grpc.aio
import pytest

from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutingTable, compile_table
from router.watches.fleet_watch import FleetWatch
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import GlobalReport, Member, StorePosition
from statehouse.contract.topology import StoreSpec
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.fleets import STORE, assignment, member, members, report

Start = Callable[..., Awaitable[Fleet]]
FleetCall = grpc.aio.UnaryStreamCall[fleet_service_pb2.WatchFleetRequest, fleet_service_pb2.WatchFleetResponse]


def watch(fleet: Fleet) -> FleetCall:
    stub = fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)
    return stub.WatchFleet(fleet_service_pb2.WatchFleetRequest(), timeout=20)


async def following(call: FleetCall) -> fleet_service_pb2.GetFleetResponse:
    response = await call.read()
    assert isinstance(response, fleet_service_pb2.WatchFleetResponse)
    return response.fleet


async def failure_of(call: FleetCall) -> LookupFailure:
    with pytest.raises(grpc.RpcError) as caught:
        await call.read()
    return from_rpc_error(caught.value)


@pytest.mark.feature("getfleet-liststores-listnodes")
async def test_the_fleet_comes_at_once_with_all_that_routing_takes_and_again_with_each_epoch(start: Start) -> None:
    fleet = await start("a", "b")
    call = watch(fleet)
    first = await following(call)
    (store,), (task,) = first.stores, first.tasks
    assert (first.epoch, store.name, store.partition_count) == (1, STORE, 1)
    assert (store.partitioner, store.key_serde, store.sub_topology) == ("murmur2", "string", 0)
    assert (task.task, task.active, list(task.standbys)) == ("0_0", "a", ["b"])
    ports = {node.host.instance_id: node.host.port for node in first.nodes}
    assert ports == {name: node.port for name, node in fleet.nodes.items()}
    await fleet.publish(TaskAssignment("b", ("a",)), epoch=2)
    second = await following(call)
    assert (second.epoch, second.tasks[0].active) == (2, "b")
    call.cancel()
    await poll_until_async(lambda: fleet.router.first.fleet.watches.streams.open == 0, 10, "the watch to be over")


async def test_a_new_process_is_told_of_and_heartbeats_are_not(start: Start) -> None:
    fleet = await start("a")
    call = watch(fleet)
    await following(call)
    fleet.heartbeat("a", position=11, end=11)
    await poll_until_async(lambda: positions(fleet) == {11}, 10, "a table with the heartbeat")
    fleet.new_incarnation("a")
    fleet.heartbeat("a", position=12, end=12)
    (node,) = (await following(call)).nodes
    assert node.incarnation == "2", "the one response is that of the new process"


def positions(fleet: Fleet) -> set[int | None]:
    return {replica.position for replica in fleet.router.tables.current().stores[STORE].partitions[0].replicas}


async def test_a_router_without_a_table_says_so() -> None:
    fleet = Fleet()
    await fleet.router.start()
    try:
        assert (await failure_of(watch(fleet))).reason is Reason.ROUTING_NOT_READY
    finally:
        await fleet.stop()


async def test_watches_are_bounded_and_end_with_the_router(start: Start) -> None:
    fleet = await start("a", max_watches=1)
    first = watch(fleet)
    await following(first)
    assert (await failure_of(watch(fleet))).reason is Reason.OVERLOADED
    fleet.router.first.fleet.watches.streams.stop()
    assert (await failure_of(first)).reason is Reason.NODE_SHUTTING_DOWN


async def test_a_slow_reader_gets_the_newest_only() -> None:
    tables, sent, taken = CurrentTable(), list[int](), asyncio.Event()

    def describe(table: RoutingTable) -> fleet_service_pb2.GetFleetResponse:
        return fleet_service_pb2.GetFleetResponse(epoch=table.epoch)

    async def send(response: fleet_service_pb2.WatchFleetResponse) -> None:
        sent.append(response.fleet.epoch)
        await taken.wait()

    publish(tables, 1)
    watching = asyncio.create_task(
        FleetWatch(tables, describe, max_watches=1, max_watches_per_address=1).watch(
            fleet_service_pb2.WatchFleetRequest(), send
        )
    )
    await poll_until_async(lambda: sent == [1], 10, "the first")
    for epoch in (2, 3, 4):
        publish(tables, epoch)
    taken.set()
    await poll_until_async(lambda: len(sent) > 1, 10, "the next")
    assert sent == [1, 4]
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


def publish(tables: CurrentTable, epoch: int) -> None:
    tables.publish(compile_table(assignment([TaskAssignment("a")], epoch), members(member("a"))))


def copies(*states: tuple[str, str, int], of: Assignment | None = None) -> RoutingTable:
    """Return a table of a global store, with the state and position of each node's copy."""
    spec = StoreSpec("lookups", "lookups", 1, 0, is_global=True)
    reported = [
        Member(name, "first", "127.0.0.1", 1, global_replicas={"lookups": GlobalReport(state, {0: StorePosition(at)})})
        for name, state, at in states
    ]
    return compile_table(of or Assignment(1, stores={"lookups": spec}), members(*reported))


def test_what_changes_where_lookups_go() -> None:
    plan = assignment([TaskAssignment("a", ("b",))])
    table = compile_table(plan, members(member("a", {0: report()}), member("b")))
    assert table.routes_like(compile_table(plan, members(member("a", {0: report(position=3)}), member("b"))))
    assert not table.routes_like(compile_table(plan, members(member("a", {0: report()}))))
    assert not table.routes_like(compile_table(plan, members(member("a", {0: report()}, port=2), member("b"))))
    newer = assignment([TaskAssignment("a", ("b",))], epoch=2)
    assert not table.routes_like(compile_table(newer, table.members))


def test_a_global_stores_copies_count_once_they_answer() -> None:
    table = copies(("a", "running", 1), ("b", "restoring", 1))
    assert table.routes_like(copies(("a", "running", 5), ("b", "restoring", 2), of=table.assignment))
    assert not table.routes_like(copies(("a", "running", 5), ("b", "running", 2), of=table.assignment))
