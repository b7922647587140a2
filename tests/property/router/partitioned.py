"""A store of several partitions, from the nodes' stores to the router's pages, without a broker or a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import ServedStore
from query_service.reads.moments import Admitted
from query_service.reads.open_scans import OpenScans
from query_service.reads.scans import ScanHandler
from query_service.replicas.replica import StoreReplica
from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord, StateStore
from query_service.telemetry.metrics import NodeMetrics
from router.fleet.table import PartitionRoutes, RoutedNode, RoutedReplica
from router.lookups.dispatch import Call, NodeAnswer
from router.lookups.scatter import Scatter
from router.telemetry.metrics import RouterMetrics
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import Role, StoreSpec, TaskId
from statehouse.rpc.deadline import Deadline
from statehouse.serdes import SERDES
from statehouse.v1 import query_service_pb2, types_pb2

PARTITIONS: Final = 3
_METRICS: Final = NodeMetrics().of("partitioned", Role.ACTIVE)
_OPEN_SCANS: Final = OpenScans(max_open=PARTITIONS, timeout_s=60.0)
_FORWARDING: Final = query_service_pb2.GetRequest(forwarding=types_pb2.Forwarding(entry_keys=True)).SerializeToString()
_REQUESTS: Final[dict[str, Any]] = {
    "Scan": query_service_pb2.ScanRequest,
    "ScanWindows": query_service_pb2.ScanWindowsRequest,
    "ScanSessions": query_service_pb2.ScanSessionsRequest,
}
_RESPONSES: Final[dict[Any, Any]] = {
    query_service_pb2.ScanRequest: query_service_pb2.ScanResponse,
    query_service_pb2.ScanWindowsRequest: query_service_pb2.ScanWindowsResponse,
    query_service_pb2.ScanSessionsRequest: query_service_pb2.ScanSessionsResponse,
}
Keyed = tuple[bytes, ChangelogRecord]
"""A record, and the key that decides its partition."""


class Nodes:
    """Stands for the nodes' admission and for the router's way to them: every partition is held and asked for."""

    def __init__(self, spec: StoreSpec, new_store: Callable[[], StateStore], node_page_bytes: int) -> None:
        self.spec = spec
        self.served = ServedStore(spec, SERDES[spec.key_serde], SERDES[spec.value_serde])
        at = Checkpoint("t", "id", 0, 1)
        self.replicas = [StoreReplica(spec, number, new_store(), at, _METRICS) for number in range(PARTITIONS)]
        self.engine = ScanHandler(cast("Any", self), _OPEN_SCANS, max_message_bytes=4 * node_page_bytes)
        self.partitions = Admission.partitions
        self.suspects: dict[str, Any] = {}
        self.attempt_timeout_s = 1.0

    def write(self, records: Sequence[Keyed]) -> None:
        """Apply records to their partitions, in one batch for each."""
        for partition, replica in enumerate(self.replicas):
            mine = [record for key, record in records if partition_for(key, PARTITIONS) == partition]
            replica.apply(mine, replica.position + len(mine))

    def store(self, _name: str) -> ServedStore:
        return self.served

    def admit(self, _served: object, partition: int, *_: object) -> Admitted:
        return Admitted(self.replicas[partition], types_pb2.ReplicaStamp(partition=partition))

    async def dispatch(self, call: Call, _deadline: object, **_handed: object) -> NodeAnswer:
        assert call.is_page
        return NodeAnswer(await self._read(call.method, call.body + _FORWARDING), Role.ACTIVE)

    async def make(self, _node: RoutedNode, method: str, body: bytes, *_: object, **_kind: object) -> bytes:
        return await self._read(method, body)

    async def _read(self, method: str, body: bytes) -> bytes:
        request = _REQUESTS[method].FromString(body)
        assert request.forwarding.entry_keys
        read = {
            "Scan": self.engine.scan,
            "ScanWindows": self.engine.scan_windows,
            "ScanSessions": self.engine.scan_sessions,
        }[method]
        return cast("bytes", await cast("Any", read)(request))


def ordered_bounds(low: bytes | None, high: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Return the bounds of a range the right way round: the other way it is refused."""
    return (high, low) if low is not None and high is not None and low > high else (low, high)


async def page_of(scatter: Scatter, request: Any) -> Any:
    """Return a router's page of any of the three kinds."""
    page = _RESPONSES[type(request)].FromString(await scatter.page(request, Deadline(math.inf)))
    assert not page.entry_keys
    return page


def router(nodes: Nodes) -> Scatter:
    """Return a router to two nodes; one of them has two of the partitions."""
    holders = [RoutedNode("a", "a", 1), RoutedNode("b", "b", 1), RoutedNode("a", "a", 1)]
    partitions = [
        PartitionRoutes.of("s", number, TaskId(0, number), 1, (RoutedReplica(node.instance_id, Role.ACTIVE, node),))
        for number, node in enumerate(holders)
    ]
    served = nodes.served
    routes = SimpleNamespace(
        version="",
        spec=nodes.spec,
        key_serde=served.key_serde,
        partitions=partitions,
    )
    table = SimpleNamespace(store=lambda _name: routes, page_forwarding=_FORWARDING)
    tables: Any = SimpleNamespace(current=lambda: table)
    return Scatter(
        tables,
        cast("Any", nodes),
        cast("Any", nodes),
        RouterMetrics(),
        max_message_bytes=10**6,
        newest_moment=lambda _store: None,
    )
