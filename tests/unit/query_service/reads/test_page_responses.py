"""Pages of values that are much larger when they are decoded: they still fit into a message, and none is left out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
import pytest_asyncio

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import ServedStore
from query_service.reads.lookups import LookupHandler
from query_service.reads.moments import Admitted
from query_service.reads.open_scans import OpenScans
from query_service.reads.scans import ScanHandler
from query_service.replicas.replica import StoreReplica
from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord, StateStore
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.versioned import VersionedStore
from query_service.stores.windows import SESSIONS, WINDOWS, TimedStore
from query_service.telemetry.metrics import NodeMetrics
from statehouse.client.conversion import from_value
from statehouse.contract.topology import KEY_VALUE, SESSION, VERSIONED, WINDOW, Role, StoreSpec
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.serdes import SERDES
from statehouse.v1 import query_service_pb2 as pb
from statehouse.v1 import types_pb2

MAX_MESSAGE_BYTES = 65_536
COUNT = 60
# A digit and a comma in the changelog, some ten bytes in an answer: twenty of these fill a quarter of a message as they
# are stored, and more than a whole one as they are shown.
VALUES = [[number % 10] * 400 for number in range(COUNT)]
METRICS = NodeMetrics()
# Their pages are written as bytes.
_SCANS: dict[Any, Any] = {
    pb.ScanRequest: pb.ScanResponse,
    pb.ScanWindowsRequest: pb.ScanWindowsResponse,
    pb.ScanSessionsRequest: pb.ScanSessionsResponse,
}


def records(kind: str) -> list[ChangelogRecord]:
    keys: dict[str, Callable[[int], bytes]] = {
        KEY_VALUE: lambda number: b"%02d" % number,
        WINDOW: lambda number: WindowKey(b"k", number).to_bytes(),
        SESSION: lambda number: SessionKey(b"k", number, number).to_bytes(),
        VERSIONED: lambda _: b"k",
    }
    written = [json.dumps(value, separators=(",", ":")).encode() for value in VALUES]
    return [ChangelogRecord(keys[kind](number), value, number) for number, value in enumerate(written)]


def store_of(kind: str) -> StateStore:
    engine = MemoryEngine(10**7)
    if kind == KEY_VALUE:
        return KeyValueStore(engine)
    if kind == VERSIONED:
        return VersionedStore(engine, 10**9)
    return TimedStore(engine, cast("Any", {WINDOW: WINDOWS, SESSION: SESSIONS}[kind]), 10**9)


class CountingJson:
    """JSON that counts the values that it decodes."""

    def __init__(self) -> None:
        self.decoded = 0

    def value(self, data: bytes) -> types_pb2.Value:
        self.decoded += 1
        return SERDES["json"].value(data)


class OneStore:
    """Stands for the admission of a node that holds one store with one partition."""

    def __init__(self, kind: str) -> None:
        self.json = CountingJson()
        self.served = ServedStore(StoreSpec("s", "t", 1, 0, kind), SERDES["string"], cast("Any", self.json))
        self.replica = StoreReplica(
            self.served.spec, 0, store_of(kind), Checkpoint("t", "id", 0, 1), METRICS.of("s", Role.ACTIVE)
        )
        self.replica.apply(records(kind), COUNT)
        self.partitions = Admission.partitions

    def store(self, _name: str) -> ServedStore:
        return self.served

    def admit(self, *_: object) -> Admitted:
        return Admitted(self.replica, types_pb2.ReplicaStamp(partition=0))

    def admit_key(self, request: Any) -> Any:
        return self.served, request.key.raw, self.admit()


@pytest_asyncio.fixture
async def open_scans() -> AsyncIterator[OpenScans]:
    made = OpenScans(max_open=1, timeout_s=60.0)
    yield made
    made.close()


@pytest.mark.feature("batches-pages-bounded")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("kind", "request_type", "field", "value_of"),
    [
        (KEY_VALUE, pb.ScanRequest, "entries", lambda entry: entry.value),
        (WINDOW, pb.ScanWindowsRequest, "windows", lambda entry: entry.window.value),
        (SESSION, pb.ScanSessionsRequest, "sessions", lambda entry: entry.session.value),
        (WINDOW, pb.FetchWindowsRequest, "windows", lambda entry: entry.value),
        (SESSION, pb.FetchSessionsRequest, "sessions", lambda entry: entry.value),
        (VERSIONED, pb.GetHistoryRequest, "versions", lambda entry: entry.value),
    ],
)
async def test_every_page_fits_into_a_message(
    open_scans: OpenScans, kind: str, request_type: Any, field: str, value_of: Any, reverse: bool
) -> None:
    admission: Any = OneStore(kind)
    query = request_type.DESCRIPTOR.name.removesuffix("Request")
    request = request_type(store="s", page_size=1_000, reverse=reverse)
    if query in {"FetchWindows", "FetchSessions", "GetHistory"}:
        request.key.raw = b"k"
        handler: Any = LookupHandler(
            admission, open_scans, METRICS, max_batch_entries=1, max_message_bytes=MAX_MESSAGE_BYTES
        )
    else:
        request.partition = 0
        handler = ScanHandler(admission, open_scans, max_message_bytes=MAX_MESSAGE_BYTES)
    read = getattr(
        handler,
        {
            "Scan": "scan",
            "ScanWindows": "scan_windows",
            "ScanSessions": "scan_sessions",
            "FetchWindows": "fetch_windows",
            "FetchSessions": "fetch_sessions",
            "GetHistory": "get_history",
        }[query],
    )
    found: list[Any] = []
    while True:
        before = admission.json.decoded
        page = await read(request)
        if isinstance(page, bytes):
            page = _SCANS[request_type].FromString(page)
        assert page.ByteSize() <= MAX_MESSAGE_BYTES
        assert admission.json.decoded - before <= len(getattr(page, field)) + 1, "no more is made than is shown"
        found += [from_value(value_of(entry)) for entry in getattr(page, field)]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert found == VALUES[:: -1 if reverse else 1]
