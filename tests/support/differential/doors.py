"""The doors to a router: gRPC and the Python client. Each makes a read in its own way, and says what came of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from statehouse.client import AsyncClient, Freshness, Lookup
from statehouse.client.answers import AnyKey
from statehouse.errors import LookupFailure
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.support.differential.cases import (
    AS_OF,
    BATCH,
    COMPRESSIONS,
    COUNT,
    GET,
    HISTORY,
    SCAN,
    SCAN_SESSIONS,
    SCAN_WINDOWS,
    SCANS,
    SESSIONS,
    WINDOWS,
    Key,
    Read,
)
from tests.support.differential.outcomes import Outcome, of_answer, of_get, of_message, of_object, refused
from tests.support.differential.stores import MadeStore

SECONDS: Final = 60.0
_NUMBERS: Final[Mapping[str, Callable[[str], int | float]]] = {"long": int, "double": float}
PAGES: Final = {
    SCAN: ("Scan", "entries", "pages"),
    SCAN_WINDOWS: ("ScanWindows", "windows", "window_pages"),
    SCAN_SESSIONS: ("ScanSessions", "sessions", "session_pages"),
    WINDOWS: ("FetchWindows", "windows", "fetch_windows"),
    SESSIONS: ("FetchSessions", "sessions", "fetch_sessions"),
    HISTORY: ("GetHistory", "versions", "get_history"),
}
"""The method, the field of its items, and the client's method."""


class Door(Protocol):
    """A way to read."""

    async def ask(self, read: Read) -> Outcome:
        """Make a read."""
        ...


class GrpcDoor:
    """The gRPC API of a router. `channels`: by how requests are compressed."""

    def __init__(self, channels: dict[grpc.Compression, grpc.aio.Channel]) -> None:
        self._stubs = {each: query_service_pb2_grpc.QueryServiceStub(at) for each, at in channels.items()}

    async def ask(self, read: Read) -> Outcome:
        """Make a read."""
        try:
            return Outcome(await self._asked(read), "OK")
        except grpc.aio.AioRpcError as error:
            return Outcome(refused(from_rpc_error(error)), error.code().name)

    async def _asked(self, read: Read) -> Any:
        freshness = types_pb2.Freshness()
        for name, each in read.bounds.items():
            setattr(freshness, name, each)
        common: dict[str, Any] = {"store": read.store, "freshness": freshness}
        shown = {**common, "raw": read.raw, "json_text": read.is_exact and not read.raw}
        if read.kind == COUNT:
            return (await self._call(read, "Count", query_service_pb2.CountRequest(**common, exact=True))).count
        if read.kind in {GET, BATCH}:
            gets = [query_service_pb2.GetRequest(**shown, key=_wire(key)) for key in read.keys]
            if read.kind == GET:
                return of_get(await self._call(read, "Get", gets[0]))
            batch = await self._call(read, "BatchGet", query_service_pb2.BatchGetRequest(requests=gets))
            return [_of_result(each) for each in batch.results]
        if read.kind == AS_OF:
            request = query_service_pb2.GetAsOfRequest(
                **shown, key=_wire(read.keys[0]), as_of_ms=read.times["as_of_ms"]
            )
            return of_get(await self._call(read, "GetAsOf", request))
        return await self._paged(read, shown)

    async def _paged(self, read: Read, shown: dict[str, Any]) -> list[Any]:
        method, field, _ = PAGES[read.kind]
        request: Any = getattr(query_service_pb2, f"{method}Request")(
            **shown, **read.times, reverse=read.reverse, page_size=read.page_size
        )
        for key in read.keys:
            request.key.CopyFrom(_wire(key))
        for name, key in read.ends.items():
            getattr(request, name if name == "prefix" else f"{name}_key").CopyFrom(_wire(key))
        items: list[Any] = []
        while True:
            page = await self._call(read, method, request)
            items += map(of_message, getattr(page, field))
            request.page_token = page.next_page_token
            if not (read.is_whole and page.next_page_token):
                return items

    async def _call(self, read: Read, method: str, request: Any) -> Any:
        call = getattr(self._stubs[read.compression], method)
        return await call(request, timeout=SECONDS, metadata=read.metadata)


def _wire(key: Key) -> types_pb2.Key:
    return types_pb2.Key(text=key) if isinstance(key, str) else types_pb2.Key(raw=key)


def _of_result(result: query_service_pb2.BatchGetResult) -> Any:
    if result.HasField("response"):
        return of_get(result.response)
    return refused(LookupFailure.from_proto(result.error))


@asynccontextmanager
async def grpc_door(target: str) -> AsyncIterator[GrpcDoor]:
    """Open the gRPC API of a router."""
    channels = {each: grpc.aio.insecure_channel(target, compression=each) for each in COMPRESSIONS}
    try:
        yield GrpcDoor(channels)
    finally:
        for each in channels.values():
            await each.close()


class ClientDoor:
    """The Python client, which asks nodes itself. In every second read, keys that are numbers are given as numbers."""

    def __init__(self, client: AsyncClient, stores: Mapping[str, MadeStore]) -> None:
        self._client, self._stores = client, stores

    async def ask(self, read: Read) -> Outcome:
        """Make a read."""
        try:
            return Outcome(await self._asked(read))
        except LookupFailure as failure:
            return Outcome(refused(failure))

    async def _asked(self, read: Read) -> Any:
        bounds: dict[str, Any] = dict(read.bounds)
        freshness = Freshness(active_only=bool(bounds.pop("active_only", 0)), **bounds)
        how: dict[str, Any] = {"freshness": freshness, "raw": read.raw}
        if read.kind == COUNT:
            return (await self._client.count(read.store, exact=True, freshness=freshness)).count
        if read.kind == GET:
            return of_answer(await self._client.get(read.store, self._key(read, read.keys[0]), **how))
        if read.kind == AS_OF:
            key = self._key(read, read.keys[0])
            return of_answer(await self._client.get_as_of(read.store, key, read.times["as_of_ms"], **how))
        if read.kind == BATCH:
            lookups = [Lookup(read.store, self._key(read, key), **how) for key in read.keys]
            return [of_answer(each) for each in await self._client.batch_get(lookups)]
        ends = {
            name if name == "prefix" else f"{name}_key": key if name == "prefix" else self._key(read, key)
            for name, key in read.ends.items()
        }
        paged: Any = getattr(self._client, PAGES[read.kind][2])
        keys = [self._key(read, key) for key in read.keys]
        found = paged(read.store, *keys, **ends, **read.times, reverse=read.reverse, page_size=read.page_size, **how)
        items: list[Any] = []
        async for each in found:
            items += each.entries if read.kind == SCAN else getattr(each, PAGES[read.kind][1], [each])
            if not read.is_whole and (read.kind in SCANS or len(items) == read.page_size):
                break
        return [of_object(each) for each in items]

    def _key(self, read: Read, key: Key) -> AnyKey:
        store = self._stores.get(read.store)
        number = None if store is None else _NUMBERS.get(store.key_serde)
        if store is None or number is None or read.seed % 2 or isinstance(key, bytes) or store.parsed(key) is None:
            return key
        return number(key)
