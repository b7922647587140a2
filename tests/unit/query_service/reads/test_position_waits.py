"""Reads that wait for a position, at the real handlers and over gRPC: what they answer, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Any, cast

import grpc.aio
import pytest
import pytest_asyncio

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import view_of
from query_service.reads.lookups import LookupHandler
from query_service.reads.open_scans import OpenScans
from query_service.reads.position_waits import PositionWaits
from query_service.reads.scans import ScanHandler
from query_service.reads.serde_fetches import SerdeFetches
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.service import QueryServicer
from query_service.states.checkpoint import Checkpoint
from query_service.states.task_events import NodeTask
from query_service.stores.base import ChangelogRecord
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import AnyTaskId, Role, StoreSpec, SubTopology, TaskId
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.deadline import RequestTimes
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.requests import TolerantServer
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.support.polling import poll_until_async

SPEC = StoreSpec("s", "t", 1, 0, value_serde="string")
TASK = TaskId(0, 0)
METRICS = NodeMetrics()
LONG_S = 30.0


class Node:
    """A server with the real handlers over one replica in memory, which reads what the test gives it."""

    def __init__(self, *, max_waits: int = 10) -> None:
        at = Checkpoint("t", "id", 0, 1)
        self.replica = StoreReplica(SPEC, 0, KeyValueStore(MemoryEngine(10**6)), at, METRICS.of("s", Role.ACTIVE))
        node_task = NodeTask(TASK, Role.ACTIVE, ((SPEC, 0),), TaskState.RUNNING)
        self.task = TaskReplica(node_task, cast("Any", None))
        self.task.stores[self.replica.folder] = self.replica
        self.node_task: dict[AnyTaskId, TaskReplica] = {TASK: self.task}
        admission = Admission(types_pb2.Host(instance_id="n"), self.node_task, lambda: True, {})
        assignment = Assignment(
            1,
            stores=MappingProxyType({"s": SPEC}),
            sub_topologies=MappingProxyType({0: SubTopology(0, "q", 1)}),
            tasks=MappingProxyType({TASK: TaskAssignment("n")}),
        )
        admission.view = view_of(assignment, {})
        self.open_scans = OpenScans(max_open=4, timeout_s=LONG_S)
        lookups = LookupHandler(admission, self.open_scans, METRICS, max_batch_entries=10, max_message_bytes=10**6)
        scans = ScanHandler(admission, self.open_scans, max_message_bytes=10**6)
        self.waits = PositionWaits(RequestTimes(0.05, 60), max_waits=max_waits)
        servicer = QueryServicer(lookups, scans, cast("Any", None), self.waits, SerdeFetches(timeout_s=1), METRICS)
        self._server = grpc.aio.server()
        query_service_pb2_grpc.add_QueryServiceServicer_to_server(servicer, cast("Any", TolerantServer(self._server)))
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}")
        self.stub = query_service_pb2_grpc.QueryServiceStub(self._channel)

    async def start(self) -> Node:
        await self._server.start()
        return self

    async def stop(self) -> None:
        self.open_scans.close()
        await self._channel.close()
        await self._server.stop(None)

    def read_to(self, position: int) -> None:
        """Apply a record of the key k whose value is its offset; the replica is then at `position`."""
        self.replica.apply([ChangelogRecord(b"k", str(position - 1).encode(), position - 1)], position)

    async def get(self, at_least: int, seconds: float | None = LONG_S) -> query_service_pb2.GetResponse:
        request = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text="k"), freshness=bound(at_least))
        return await self.call(self.stub.Get, request, seconds)

    @staticmethod
    async def call(method: Any, request: Any, seconds: float | None = LONG_S) -> Any:
        try:
            return await method(request, timeout=seconds)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def waiting(self, count: int = 1) -> None:
        await poll_until_async(lambda: self.waits.count == count, 10, f"{count} to wait")


def bound(at_least: int, **bounds: Any) -> types_pb2.Freshness:
    positions = [types_pb2.StorePosition(store="s", partition=0, position=at_least)]
    return types_pb2.Freshness(at_least=types_pb2.Positions(positions=positions), **bounds)


@pytest_asyncio.fixture
async def node() -> AsyncIterator[Node]:
    node = await Node().start()
    node.read_to(1)
    yield node
    await node.stop()


async def test_a_read_waits_until_the_position_is_reached(node: Node) -> None:
    assert (await node.get(1)).replica.position == 1

    reading = asyncio.create_task(node.get(3))
    await node.waiting()
    node.read_to(2)
    assert not reading.done()
    node.read_to(3)

    answer = await reading
    assert (answer.value.text, answer.replica.position) == ("2", 3)
    assert node.waits.count == 0


async def test_what_is_wanted_of_other_stores_and_partitions_says_nothing(node: Node) -> None:
    request = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text="k"))
    request.freshness.at_least.positions.add(store="s", partition=1, position=1_000)
    request.freshness.at_least.positions.add(store="other", partition=0, position=1_000)
    assert (await node.call(node.stub.Get, request)).found


@pytest.mark.parametrize("seconds", [0.2, None], ids=["deadline", "no-deadline"])
async def test_without_the_position_the_caller_hears_how_far_the_replica_is(node: Node, seconds: float | None) -> None:
    with pytest.raises(LookupFailure) as caught:
        await node.get(9, seconds)
    assert caught.value.reason is Reason.POSITION_NOT_REACHED
    assert (caught.value.metadata["position"], caught.value.metadata["wanted"]) == ("1", "9")
    assert "1" in caught.value.message
    assert "9" in caught.value.message
    assert node.waits.count == 0


async def test_entries_of_a_batch_do_not_wait(node: Node) -> None:
    batch = query_service_pb2.BatchGetRequest()
    for at_least in (1, 2):
        batch.requests.add(store="s", key=types_pb2.Key(text="k"), freshness=bound(at_least))
    answered, waits = (await node.call(node.stub.BatchGet, batch)).results
    assert answered.response.value.text == "0"
    failure = LookupFailure.from_proto(waits.error)
    assert failure.reason is Reason.WOULD_WAIT
    assert failure.metadata["wanted"] == "2"


@pytest.mark.parametrize("method", ["Scan", "Count"])
async def test_reads_of_many_keys_wait(node: Node, method: str) -> None:
    requests = {"Scan": query_service_pb2.ScanRequest, "Count": query_service_pb2.CountRequest}
    request = requests[method](store="s", partition=0, freshness=bound(2))
    reading = asyncio.create_task(node.call(getattr(node.stub, method), request))
    await node.waiting()
    node.read_to(2)
    assert (await reading).replicas[0].position == 2


async def test_no_more_wait_than_may(node: Node) -> None:
    small = await Node(max_waits=1).start()
    try:
        first = asyncio.create_task(small.get(1))
        await small.waiting()
        with pytest.raises(LookupFailure) as caught:
            await small.get(1)
        assert caught.value.reason is Reason.OVERLOADED
        assert "wait for a position on this node" in caught.value.message
        small.read_to(1)
        assert (await first).found
    finally:
        await small.stop()


async def test_no_larger_requests_wait_than_may() -> None:
    node = await Node(max_waits=100).start()
    large = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(raw=bytes(1_000_000)), freshness=bound(1))
    try:
        waiting = [asyncio.create_task(node.call(node.stub.Get, large)) for _ in range(16)]
        await node.waiting(16)
        with pytest.raises(LookupFailure, match="reads that wait for a position on this node") as caught:
            await node.call(node.stub.Get, large, 5)
        assert caught.value.reason is Reason.OVERLOADED
        waiting.append(asyncio.create_task(node.get(1)))
        await node.waiting(17)
        node.read_to(1)
        assert [answer.found for answer in await asyncio.gather(*waiting)] == [False] * 16 + [True]
        large.freshness.CopyFrom(bound(2))
        waiting = [asyncio.create_task(node.call(node.stub.Get, large)) for _ in range(16)]
        await node.waiting(16)
        node.read_to(2)
        await asyncio.gather(*waiting)
    finally:
        await node.stop()


async def test_a_caller_who_leaves_no_longer_waits(node: Node) -> None:
    request = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text="k"), freshness=bound(9))
    call = node.stub.Get(request, timeout=LONG_S)
    await node.waiting()
    call.cancel()
    await node.waiting(0)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("fails", Reason.TASK_FAILED),
        ("closes", Reason.PARTITION_NOT_OWNED),
        ("demoted", Reason.NOT_ACTIVE),
        ("stops", Reason.NODE_SHUTTING_DOWN),
    ],
)
async def test_who_waits_hears_at_once_what_became_of_the_replica(node: Node, end: str, reason: Reason) -> None:
    request = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text="k"), freshness=bound(9, active_only=True))
    reading = asyncio.create_task(node.call(node.stub.Get, request))
    await node.waiting()
    if end == "fails":
        node.task.node_task.state, node.task.node_task.error = TaskState.ERROR, "broken"
        node.replica.advanced.poke()
    elif end == "closes":
        node.task.node_task.state = TaskState.SUSPENDED
        del node.node_task[TASK]
        node.replica.advanced.poke()
    elif end == "demoted":
        node.task.node_task.role = Role.STANDBY
        node.replica.advanced.poke()
    else:
        node.waits.stop()
    with pytest.raises(LookupFailure) as caught:
        await reading
    assert caught.value.reason is reason


async def test_bounds_that_no_wait_mends_fail_at_once(node: Node) -> None:
    request = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text="k"), freshness=bound(9, max_lag=0))
    with pytest.raises(LookupFailure) as caught:  # its lag is not known
        await node.call(node.stub.Get, request)
    assert caught.value.reason is Reason.LAG_EXCEEDS_BOUND


@pytest.mark.parametrize("positions", [[-1], [1] * 10_001], ids=["negative", "too-many"])
async def test_a_wrong_token_is_refused(node: Node, positions: list[int]) -> None:
    request = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text="k"))
    for position in positions:
        request.freshness.at_least.positions.add(store="s", position=position)
    with pytest.raises(LookupFailure) as caught:
        await node.call(node.stub.Get, request)
    assert caught.value.reason is Reason.INVALID_REQUEST
