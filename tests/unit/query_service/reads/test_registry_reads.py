"""A node's reads of values whose schemas it has to fetch: who waits for that, who doesn't, and what is said without."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, cast

import grpc.aio
import pytest

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
from statehouse.client.conversion import from_value
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import Role, StoreSpec, SubTopology, TaskId
from statehouse.errors import LookupFailure, Reason
from statehouse.link.link import LinkContext
from statehouse.rpc.deadline import RequestTimes
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.requests import TolerantServer
from statehouse.serdes.plugins import SerdeOptions, Serdes
from statehouse.serdes.registry.wire_format import framed
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.support.registry import registry_of

METRICS = NodeMetrics()
WITH_KEYS = types_pb2.Forwarding(entry_keys=True)
SPEC = StoreSpec("s", "t", 1, 0, key_serde="avro", value_serde="avro")
TASK = TaskId(0, 0)
SCHEMAS = {
    1: ("AVRO", '"string"'),
    2: ("AVRO", '{"type":"record","name":"R","fields":[{"name":"n","type":"long"}]}'),
}
ANN, BOB, CAT = (framed(1, bytes([6]) + name) for name in (b"ann", b"bob", b"cat"))
VALUES = {ANN: framed(2, b"\x02"), BOB: framed(2, b"\x04"), CAT: framed(9, b"\x06")}


class Node:
    """The real handlers over one partition in memory, which a client calls."""

    def __init__(self, url: str) -> None:
        at = Checkpoint("t", "id", 0, 1)
        replica = StoreReplica(SPEC, 0, KeyValueStore(MemoryEngine(10**6)), at, METRICS.of("s", Role.ACTIVE))
        replica.apply([ChangelogRecord(key, value, 0) for key, value in VALUES.items()], len(VALUES))
        replica.note_end(len(VALUES), time.monotonic(), 1)
        held = TaskReplica(NodeTask(TASK, Role.ACTIVE, ((SPEC, 0),), TaskState.RUNNING), cast("Any", None))
        held.stores[replica.folder] = replica
        admission = Admission(types_pb2.Host(instance_id="n"), {TASK: held}, lambda: True, {})
        assignment = Assignment(
            1,
            stores=MappingProxyType({"s": SPEC}),
            sub_topologies=MappingProxyType({0: SubTopology(0, "q", 1)}),
            tasks=MappingProxyType({TASK: TaskAssignment("n")}),
        )
        admission.view = view_of(assignment, {}, Serdes(SerdeOptions(url, timeout_s=5)))
        self.scans, self.fetches = OpenScans(max_open=4, timeout_s=30), SerdeFetches(timeout_s=5)
        self._server = grpc.aio.server()
        self.servicer = QueryServicer(
            LookupHandler(admission, self.scans, METRICS, max_batch_entries=10, max_message_bytes=10**6),
            ScanHandler(admission, self.scans, max_message_bytes=10**6),
            cast("Any", None),
            PositionWaits(RequestTimes(1, 60), max_waits=1),
            self.fetches,
            METRICS,
        )
        query_service_pb2_grpc.add_QueryServiceServicer_to_server(
            self.servicer, cast("Any", TolerantServer(self._server))
        )
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}")
        self.stub = query_service_pb2_grpc.QueryServiceStub(self._channel)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        self.scans.close()
        self.fetches.close()
        await self._channel.close()
        await self._server.stop(None)

    async def get(self, key: bytes, *, raw: bool = False) -> Any:
        request = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(raw=key), raw=raw)
        return from_value((await self._call(self.stub.Get, request)).value)

    async def why(self, key: bytes) -> LookupFailure:
        try:
            found = await self.get(key)
        except LookupFailure as failure:
            return failure
        raise AssertionError(found)

    async def outcomes(self) -> list[Any]:
        """Look all keys up in one call; return for each its value, or the reason of its failure."""
        requests = [query_service_pb2.GetRequest(store="s", key=types_pb2.Key(raw=key)) for key in VALUES]
        answer = await self._call(self.stub.BatchGet, query_service_pb2.BatchGetRequest(requests=requests))
        return [
            Reason(result.error.reason) if result.HasField("error") else from_value(result.response.value)
            for result in answer.results
        ]

    async def scan(self, **options: Any) -> Any:
        return await self._call(self.stub.Scan, query_service_pb2.ScanRequest(store="s", partition=0, **options))

    @staticmethod
    async def _call(method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=20)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


@asynccontextmanager
async def node_with(before: Callable[[], object] = lambda: None) -> AsyncIterator[tuple[Node, Callable[[], None]]]:
    """Give a node, and what ends its registry."""
    registry = registry_of(SCHEMAS, before)
    node, is_up = Node(await asyncio.to_thread(registry.__enter__)), True

    def end() -> None:
        nonlocal is_up
        if is_up:
            registry.__exit__(None, None, None)
        is_up = False

    await node.start()
    try:
        yield node, end
    finally:
        await node.stop()
        await asyncio.to_thread(end)


@pytest.mark.feature("serdes-plug-ins")
async def test_a_lookup_waits_for_its_schema_and_nobody_else_does() -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def before() -> None:
        asked.set()
        assert may_answer.wait(10)

    async with node_with(before) as (node, _):
        waiting = [asyncio.create_task(node.get(key)) for key in (ANN, BOB)]
        assert await asyncio.to_thread(asked.wait, 10)
        # The event loop is free, and a batch does not wait.
        assert await node.get(ANN, raw=True) == VALUES[ANN]
        assert await node.outcomes() == [Reason.WOULD_WAIT] * 3
        may_answer.set()
        assert await asyncio.gather(*waiting) == [{"n": 1}, {"n": 2}]
        assert (await node.outcomes())[:2] == [{"n": 1}, {"n": 2}]


async def test_a_page_has_documents_and_where_asked_for_the_keys_bytes() -> None:
    async with node_with() as (node, _):
        page = await node.scan(forwarding=WITH_KEYS)
        shown = [(entry.key.text, from_value(entry.value)) for entry in page.entries]
        # What the registry does not know is shown as it is.
        assert shown == [('"ann"', {"n": 1}), ('"bob"', {"n": 2}), ('"cat"', VALUES[CAT])]
        assert list(page.entry_keys) == [ANN, BOB, CAT]
        page = await node.scan(raw=True)
        assert [(entry.key.raw, entry.value.raw) for entry in page.entries] == list(VALUES.items())
        assert not page.entry_keys


async def test_the_proxy_gets_the_same_pages_and_refusals_as_callers_of_grpcio() -> None:
    async with node_with() as (node, _):
        page = await node.scan(forwarding=WITH_KEYS)
        request = query_service_pb2.ScanRequest(store="s", partition=0, forwarding=WITH_KEYS).SerializeToString()
        answer = await cast("Any", node.servicer.proxied["Scan"](request, LinkContext(None)))
        assert query_service_pb2.ScanResponse.FromString(answer).entries == page.entries
        for request, refused in ((b"\xff", Reason.INVALID_REQUEST), (b"\x0a\x01t", Reason.UNKNOWN_STORE)):
            with pytest.raises(LookupFailure) as caught:
                await cast("Any", node.servicer.proxied["Scan"](request, LinkContext(None)))
            assert caught.value.reason is refused


async def test_without_the_registry_what_is_known_goes_on() -> None:
    async with node_with() as (node, end):
        assert await node.get(ANN) == {"n": 1}
        failure = await node.why(CAT)
        assert failure.reason is Reason.VALUE_UNDECODABLE
        assert "has no schema 9" in failure.message
        await asyncio.to_thread(end)
        assert await node.get(BOB) == {"n": 2}
        assert await node.get(CAT, raw=True) == VALUES[CAT]
        # The keys' schema was never asked for.
        with pytest.raises(LookupFailure, match=r"schema registry at http://127\.0\.0\.1") as told:
            await node.scan()
        assert told.value.reason is Reason.SERDE_UNAVAILABLE
        assert len((await node.scan(raw=True)).entries) == 3
