"""The reference: Python's own reads over RocksDB or memory, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast
from unittest.mock import patch

from google.protobuf.message import Message

from query_service.reads import lookups
from query_service.reads.open_scans import OpenScans
from query_service.stores.catalog import open_store
from query_service.stores.resources import StoreResources
from statehouse.rpc.requests import refuse_unreadable
from statehouse.v1 import query_service_pb2
from tests.conformance.holding import Holding, apply, know_end
from tests.conformance.scene import Scene

_WAITS_S: Final = 30.0
_RESPONSES: Final = {
    "Get": query_service_pb2.GetResponse,
    "BatchGet": query_service_pb2.BatchGetResponse,
    "Scan": query_service_pb2.ScanResponse,
    "ScanWindows": query_service_pb2.ScanWindowsResponse,
    "ScanSessions": query_service_pb2.ScanSessionsResponse,
}
"""What the methods return that answer with bytes."""


class ReferenceNode:
    """Answers by the handlers that the node's services call."""

    def __init__(self, holding: Holding, open_scans: OpenScans) -> None:
        reads, scans = holding.lookups(open_scans), holding.scans(open_scans)
        self._handlers: Mapping[str, Callable[[Any], Awaitable[Any]]] = {
            "Get": reads.get,
            "BatchGet": reads.batch_get,
            "Scan": scans.scan,
            "Count": scans.count,
            "FetchWindows": reads.fetch_windows,
            "FetchSessions": reads.fetch_sessions,
            "GetAsOf": reads.get_as_of,
            "GetHistory": reads.get_history,
            "ScanWindows": scans.scan_windows,
            "ScanSessions": scans.scan_sessions,
        }
        self.close = reads.close

    async def answer(self, method: str, request: Any) -> Message:
        """See Node."""
        refuse_unreadable(request)
        found = await self._handlers[method](request)
        return _RESPONSES[method].FromString(found) if isinstance(found, bytes) else cast("Message", found)


@asynccontextmanager
async def reference(scene: Scene, directory: Path, *, in_memory: bool) -> AsyncIterator[ReferenceNode]:
    """Open a node of Python's; a `Subject` once `in_memory` is set."""
    with ExitStack() as opened:
        # A busy machine is slow, and refusals by time would not be the same twice.
        opened.enter_context(patch.multiple(lookups, BATCH_WAITS_S=_WAITS_S, OWN_BATCH_WAITS_S=_WAITS_S))
        open_scans = OpenScans(max_open=4, timeout_s=60.0)
        opened.callback(open_scans.close)
        holding, resources = Holding(scene), StoreResources()
        opened.callback(holding.close)
        for held in scene.held:
            spec = replace(scene.spec(held.store), in_memory=in_memory)
            path = directory / f"{held.store}-{held.partition}"
            replica = holding.add(held, open_store(spec, path, resources))
            apply(replica, held)
            know_end(replica, held)
        holding.assign()
        node = ReferenceNode(holding, open_scans)
        opened.callback(node.close)
        yield node


REFERENCES: Final = MappingProxyType(
    {"rocksdb": partial(reference, in_memory=False), "memory": partial(reference, in_memory=True)}
)
