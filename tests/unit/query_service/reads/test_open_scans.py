"""What ends a read of many entries, and that it lets go of its store then. The stores here never end on their own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import ServedStore
from query_service.reads.lookups import LookupHandler
from query_service.reads.moments import Admitted
from query_service.reads.open_scans import OpenScans
from query_service.reads.position_waits import PositionWaits
from query_service.reads.scans import ScanHandler
from query_service.reads.serde_fetches import SerdeFetches
from query_service.replicas.replica import StoreReplica
from query_service.service import QueryServicer
from query_service.states.checkpoint import Checkpoint
from query_service.states.lifecycle import StoreState
from query_service.stores.base import ChangelogRecord, StateStore
from query_service.stores.key_value import KeyValueStore
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.stores.versioned import VersionedStore
from query_service.stores.walk import Walk, WalkCancelled
from query_service.stores.windows import SESSIONS, WINDOWS, TimedStore
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.paging import KeyRange
from statehouse.contract.topology import KEY_VALUE, SESSION, VERSIONED, WINDOW, Role, StoreSpec
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.rpc.deadline import RequestTimes
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.requests import TolerantServer
from statehouse.serdes import SERDES
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2

AT = Checkpoint("t", "id", 1, 1)
METRICS = NodeMetrics()
KEY = types_pb2.Key(raw=b"k")
Call = Callable[[query_service_pb2_grpc.QueryServiceStub], Any]


class EndlessEngine(RocksDBEngine):
    """Walks its entries again and again."""

    @contextmanager
    def view(self, families: Any) -> Iterator[Any]:
        with super().view(families) as view:

            class Endless:
                @staticmethod
                def entries(family: str, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Any]:
                    entries = list(view.entries(family, start, stop, reverse=reverse))
                    return itertools.cycle(entries)

            yield Endless()


def make_store(kind: str, engine: RocksDBEngine) -> StateStore:
    if kind == WINDOW:
        store: StateStore = TimedStore(engine, WINDOWS, 10**9)
        store.apply([ChangelogRecord(WindowKey(b"k", 1_000).to_bytes(), b"v", 1_000)], AT)
    elif kind == SESSION:
        store = TimedStore(engine, SESSIONS, 10**9)
        store.apply([ChangelogRecord(SessionKey(b"k", 0, 1_000).to_bytes(), b"v", 1_000)], AT)
    elif kind == VERSIONED:
        store = VersionedStore(engine, 10**9)
        store.apply([ChangelogRecord(b"k", b"v", 1)], AT)
    else:
        store = KeyValueStore(engine)
        store.apply([ChangelogRecord(b"k", b"v", 1)], AT)
    return store


class OneStore:
    """Stands for the admission of a node that holds one store with one partition."""

    def __init__(self, kind: str, store: StateStore) -> None:
        self.served = ServedStore(StoreSpec("s", "t", 1, 0, kind), SERDES["bytes"], SERDES["bytes"])
        self.replica = StoreReplica(self.served.spec, 0, store, AT, METRICS.of("s", Role.ACTIVE))
        self.partition, self.partitions = Admission.partition, Admission.partitions

    def store(self, _name: str) -> ServedStore:
        return self.served

    def admit(self, *_: object) -> Admitted:
        return Admitted(self.replica, types_pb2.ReplicaStamp(partition=0))

    def admit_key(self, request: Any) -> Any:
        return self.served, request.key.raw, self.admit()


class Node:
    """A server with the real handlers, and a client of it."""

    def __init__(self, kind: str, path: Path, *, max_open: int = 4, timeout_s: float = 60.0) -> None:
        self.engine = EndlessEngine(path)
        self.store = make_store(kind, self.engine)
        self.open_scans = OpenScans(max_open=max_open, timeout_s=timeout_s)
        self.admission: Any = OneStore(kind, self.store)
        lookups = LookupHandler(self.admission, self.open_scans, METRICS, max_batch_entries=10, max_message_bytes=10**6)
        scans = ScanHandler(self.admission, self.open_scans, max_message_bytes=10**6)
        self._server = grpc.aio.server()
        query_service_pb2_grpc.add_QueryServiceServicer_to_server(
            QueryServicer(
                lookups,
                scans,
                cast("Any", None),
                PositionWaits(RequestTimes(1, 60), max_waits=1),
                SerdeFetches(timeout_s=1),
                METRICS,
            ),
            cast("Any", TolerantServer(self._server)),
        )
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}")
        self.stub = query_service_pb2_grpc.QueryServiceStub(self._channel)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        self.open_scans.close()
        await self._channel.close()
        await self._server.stop(None)
        await self.released()
        if self.admission.replica.state is not StoreState.CLOSING:
            self.store.close()

    async def opened(self, count: int = 1) -> None:
        await until(lambda: self.engine.open_views() == count, "the read to begin")
        assert self.open_scans.count == count
        assert self.open_scans.oldest_s > 0

    async def released(self) -> None:
        await until(lambda: self.engine.open_views() == 0 and self.open_scans.count == 0, "the read to let go")
        assert self.open_scans.oldest_s == 0


async def until(predicate: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while not predicate():
        assert asyncio.get_running_loop().time() < deadline, f"waited for {what}"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def node_of(kind: str, path: Path, **options: Any) -> AsyncIterator[Node]:
    node = Node(kind, path, **options)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def count(stub: query_service_pb2_grpc.QueryServiceStub, **options: Any) -> Any:
    return stub.Count(query_service_pb2.CountRequest(store="s", partition=0, exact=True), **options)


# The spans of time are such that no entry is in them: pages never fill.
ENDLESS: list[tuple[str, Callable[..., Any]]] = [
    (KEY_VALUE, count),
    (WINDOW, count),
    (SESSION, count),
    (VERSIONED, count),
    (
        WINDOW,
        lambda stub, **options: stub.ScanWindows(
            query_service_pb2.ScanWindowsRequest(store="s", partition=0, to_ms=999), **options
        ),
    ),
    (
        WINDOW,
        lambda stub, **options: stub.FetchWindows(
            query_service_pb2.FetchWindowsRequest(store="s", key=KEY, to_ms=999), **options
        ),
    ),
    (
        SESSION,
        lambda stub, **options: stub.FetchSessions(
            query_service_pb2.FetchSessionsRequest(store="s", key=KEY, from_ms=1_001), **options
        ),
    ),
]


@pytest.mark.parametrize(("kind", "call"), ENDLESS)
async def test_a_read_ends_with_its_call(kind: str, call: Callable[..., Any], tmp_path: Path) -> None:
    async with node_of(kind, tmp_path) as node:
        cancelled = call(node.stub)
        late = call(node.stub, timeout=1.0)
        await node.opened(2)
        cancelled.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await late
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await node.released()


async def test_one_that_takes_too_long_says_so(tmp_path: Path) -> None:
    async with node_of(KEY_VALUE, tmp_path, timeout_s=0.05) as node:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await count(node.stub)
        assert from_rpc_error(failure.value).reason is Reason.SCAN_TOO_LONG
        await node.released()


async def test_one_too_many_is_refused_at_once(tmp_path: Path) -> None:
    async with node_of(KEY_VALUE, tmp_path, max_open=2) as node:
        calls = [count(node.stub), count(node.stub)]
        await node.opened(2)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await count(node.stub)
        assert from_rpc_error(failure.value).reason is Reason.OVERLOADED
        estimate = query_service_pb2.CountRequest(store="s", partition=0)
        assert (await node.stub.Count(estimate)).HasField("count"), "what needs no walk is answered still"
        for call in calls:
            call.cancel()
        await node.released()
        page = await node.stub.Scan(query_service_pb2.ScanRequest(store="s", partition=0, page_size=3))
        assert len(page.entries) == 3, "and there is room again"


async def test_a_store_that_closes_ends_its_reads(tmp_path: Path) -> None:
    async with node_of(KEY_VALUE, tmp_path) as node:
        call = count(node.stub)
        await node.opened()
        node.admission.replica.to(StoreState.CLOSING)
        await asyncio.wait_for(asyncio.to_thread(node.store.close), 20)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call
        failed = from_rpc_error(failure.value)
        assert failed.reason is Reason.PARTITION_NOT_OWNED
        assert failed.elsewhere


async def test_a_server_that_stops_ends_its_reads(tmp_path: Path) -> None:
    async with node_of(KEY_VALUE, tmp_path) as node:
        call = count(node.stub)
        await node.opened()
        node.open_scans.close()
        await node.released()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call
        assert from_rpc_error(failure.value).reason is Reason.NODE_SHUTTING_DOWN


def test_a_cancelled_walk_does_not_begin(tmp_path: Path) -> None:
    engine = EndlessEngine(tmp_path)
    store = make_store(KEY_VALUE, engine)
    assert isinstance(store, KeyValueStore)
    walk = Walk()
    walk.cancel()
    with pytest.raises(WalkCancelled):
        store.exact_count(walk)
    with pytest.raises(WalkCancelled):
        store.scan(KeyRange(), 10, 10**6, walk)
    assert engine.open_views() == 0
    with pytest.raises(LookupFailure, match="SCAN_TOO_LONG"):
        store.exact_count(Walk(timeout_s=-1.0))
    store.close()
