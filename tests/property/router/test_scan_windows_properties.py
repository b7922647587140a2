"""ScanWindows over several partitions, from the nodes' stores to the router's pages, against a sorted list."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import ServedStore
from query_service.reads.open_scans import OpenScans
from query_service.reads.scans import ScanHandler
from query_service.replicas.replica import StoreReplica
from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.windows import WINDOWS, TimedStore
from query_service.telemetry.metrics import NodeMetrics
from router.fleet.table import PartitionRoutes, RoutedNode, RoutedReplica
from router.lookups.dispatch import Call, NodeAnswer
from router.lookups.scatter import Scatter
from router.telemetry.metrics import RouterMetrics
from statehouse.composite import WindowKey
from statehouse.partitioning import partition_for
from statehouse.rpc.deadline import Deadline
from statehouse.serdes import serde
from statehouse.topology import WINDOW, Role, StoreSpec, TaskId
from statehouse.v1 import query_service_pb2, types_pb2

PARTITIONS = 3
SPEC = StoreSpec("s", "t", PARTITIONS, 0, WINDOW, "bytes", "bytes", retention_ms=10**9, window_size_ms=10)
SERVED = ServedStore(SPEC, serde("bytes"), serde("bytes"))
# Keys that are each other's prefixes, with the bytes that escaping is about.
KEY = st.sampled_from([b"", b"\0", b"\0\0", b"\0\1", b"\0\xff", b"a", b"a\0", b"a\1", b"a\xff", b"ab", b"\xff"])
WINDOW_KEY = st.builds(WindowKey, KEY, st.integers(0, 4), st.sampled_from([0, 1, 2**31 - 1, 2**32 - 1]))
METRICS = NodeMetrics().of("windows", Role.ACTIVE)
OPEN_SCANS = OpenScans(max_open=PARTITIONS, timeout_s=60.0)


class Nodes:
    """Stands for the nodes' admission and for the router's way to them: every partition is held and asked for."""

    def __init__(self, windows: set[WindowKey], node_page_bytes: int) -> None:
        self.replicas = []
        for partition in range(PARTITIONS):
            store = TimedStore(MemoryEngine(10**9), WINDOWS, SPEC.retention_ms, retain_duplicates=True)
            mine = [each for each in windows if partition_for(each.key, PARTITIONS) == partition]
            at = Checkpoint("t", "id", len(mine), 1)
            store.apply([ChangelogRecord(each.to_bytes(), repr(each).encode(), each.start_ms) for each in mine], at)
            self.replicas.append(StoreReplica(SPEC, partition, store, at, METRICS))
        self.engine = ScanHandler(self, OPEN_SCANS, max_message_bytes=4 * node_page_bytes)  # type: ignore[arg-type]
        self.partitions = Admission.partitions
        self.suspects: dict[str, Any] = {}
        self.attempt_timeout_s = 1.0

    def store(self, _name: str) -> ServedStore:
        return SERVED

    def admit(self, _served: object, partition: int, *_: object) -> tuple[StoreReplica, types_pb2.ReplicaStamp]:
        return self.replicas[partition], types_pb2.ReplicaStamp(partition=partition)

    async def dispatch(self, call: Call, _deadline: object) -> NodeAnswer:
        return NodeAnswer(await self._read(call.method, call.body), Role.ACTIVE)

    async def make(self, _node: RoutedNode, method: str, body: bytes, *_: object, **_kind: object) -> bytes:
        return await self._read(method, body)

    async def _read(self, method: str, body: bytes) -> bytes:
        assert method == "ScanWindows"
        request = query_service_pb2.ScanWindowsRequest.FromString(body)
        assert request.raw
        return (await self.engine.scan_windows(request)).SerializeToString()


def router(nodes: Nodes) -> Scatter:
    """Return a router to two nodes, one of which has two of the partitions."""
    holders = [RoutedNode("a", "a", 1), RoutedNode("b", "b", 1), RoutedNode("a", "a", 1)]
    partitions = [
        PartitionRoutes.of("s", number, TaskId(0, number), 1, (RoutedReplica(node.instance_id, Role.ACTIVE, node),))
        for number, node in enumerate(holders)
    ]
    routes = SimpleNamespace(spec=SPEC, key_serde=serde("bytes"), value_serde=serde("bytes"), partitions=partitions)
    table = SimpleNamespace(store=lambda _name: routes, forwarding=b"")
    tables: Any = SimpleNamespace(current=lambda: table)
    return Scatter(tables, cast("Any", nodes), cast("Any", nodes), RouterMetrics(), max_message_bytes=10**6)


async def pages(scatter: Scatter, request: query_service_pb2.ScanWindowsRequest, most: int) -> list[WindowKey]:
    found: list[WindowKey] = []
    for _ in range(most + 1):
        page = await scatter.scan_windows(request, Deadline(math.inf))
        assert len(page.windows) <= request.page_size
        for each in page.windows:
            key = WindowKey(bytes.fromhex(each.key.text), each.window.start_ms, each.sequence)
            assert each.window.value.raw == repr(key).encode()
            assert each.window.end_ms == key.start_ms + SPEC.window_size_ms
            found.append(key)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token
    raise AssertionError("more pages than windows")


@settings(max_examples=150, deadline=None)
@given(
    windows=st.sets(WINDOW_KEY, max_size=25),
    low=st.none() | KEY,
    high=st.none() | KEY,
    prefix=st.none() | KEY,
    span=st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(0, 4)),
    reverse=st.booleans(),
    page_size=st.integers(1, 9),
    node_page_bytes=st.sampled_from([1, 100, 10**6]),
)
def test_pages_are_the_range_in_order(
    windows: set[WindowKey],
    low: bytes | None,
    high: bytes | None,
    prefix: bytes | None,
    span: tuple[int | None, int | None],
    reverse: bool,
    page_size: int,
    node_page_bytes: int,
) -> None:
    first, last = span
    request = query_service_pb2.ScanWindowsRequest(
        store="s", reverse=reverse, page_size=page_size, from_ms=first, to_ms=last
    )
    expected = [
        each
        for each in windows
        if (first is None or first <= each.start_ms) and (last is None or each.start_ms <= last)
    ]
    if prefix is not None:
        request.prefix.raw = prefix
        expected = [each for each in expected if each.key.startswith(prefix)]
    else:
        if low is not None:
            request.from_key.raw = low
            expected = [each for each in expected if each.key >= low]
        if high is not None:
            request.to_key.raw = high
            expected = [each for each in expected if each.key <= high]
    scatter = router(Nodes(windows, node_page_bytes))
    found = asyncio.run(pages(scatter, request, len(windows)))
    assert found == sorted(expected, reverse=reverse)
