"""The doors: each makes a read in its own way, and says what came of it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import grpc
import grpc.aio

from statehouse.client import AsyncClient, Freshness, Lookup
from statehouse.client.conversion import to_key, to_key_range
from statehouse.errors import LookupFailure
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from statehouse.web.api.problems import STATUS
from tests.support.differential.cases import COMPRESSIONS, Key, Read
from tests.support.differential.outcomes import (
    ABSENT,
    Outcome,
    of_answer,
    of_entry,
    of_get,
    of_key,
    of_problem,
    of_value,
    refused,
)

SECONDS = 30.0
# A path can't end with these: they go into a batch (docs/http-api.md).
_NO_PATHS = ("", ".", "..")


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
        query: Any = self._stubs[read.compression]
        fresh = types_pb2.Freshness(**{name: each for name, each in read.bounds.items()})
        lookups = [
            query_service_pb2.GetRequest(store=read.store, key=to_key(key), freshness=fresh, raw=read.raw)
            for key in read.keys
        ]
        how = {"timeout": SECONDS, "metadata": read.metadata}
        try:
            match read.kind:
                case "get":
                    return Outcome(of_get(await query.Get(lookups[0], **how)), "OK")
                case "batch":
                    batch = await query.BatchGet(query_service_pb2.BatchGetRequest(requests=lookups), **how)
                    return Outcome([_of_result(each) for each in batch.results], "OK")
                case _:
                    scan = query_service_pb2.ScanRequest(
                        store=read.store,
                        **to_key_range(read.first, read.last, read.prefix),
                        reverse=read.reverse,
                        page_size=read.page_size,
                        freshness=fresh,
                        raw=read.raw,
                    )
                    page = await query.Scan(scan, **how)
                    return Outcome([(of_key(e.key), of_value(e.value), e.timestamp_ms) for e in page.entries], "OK")
        except grpc.aio.AioRpcError as error:
            return Outcome(refused(from_rpc_error(error)), error.code().name)


def _of_result(result: query_service_pb2.BatchGetResult) -> Any:
    if result.HasField("response"):
        return of_get(result.response)
    return refused(LookupFailure.from_proto(result.error))


@asynccontextmanager
async def grpc_door(target: str) -> AsyncIterator[GrpcDoor]:
    channels = {each: grpc.aio.insecure_channel(target, compression=each) for each in COMPRESSIONS}
    try:
        yield GrpcDoor(channels)
    finally:
        for each in channels.values():
            await each.close()


class ClientDoor:
    """The Python client, which asks nodes itself."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def ask(self, read: Read) -> Outcome:
        bounds = dict(read.bounds)
        fresh = Freshness(active_only=bool(bounds.pop("active_only", 0)), **bounds)
        try:
            match read.kind:
                case "get":
                    return Outcome(
                        of_answer(await self._client.get(read.store, read.keys[0], freshness=fresh, raw=read.raw))
                    )
                case "batch":
                    lookups = [Lookup(read.store, key, freshness=fresh, raw=read.raw) for key in read.keys]
                    return Outcome([of_answer(each) for each in await self._client.batch_get(lookups)])
                case _:
                    pages = self._client.pages(
                        read.store,
                        from_key=read.first,
                        to_key=read.last,
                        prefix=read.prefix,
                        reverse=read.reverse,
                        page_size=read.page_size,
                        freshness=fresh,
                        raw=read.raw,
                    )
                    async for page in pages:
                        return Outcome([of_entry(entry) for entry in page.entries])
                    return Outcome([])
        except LookupFailure as failure:
            return Outcome(refused(failure))


class HttpDoor:
    """The HTTP API, over connections that stay open."""

    def __init__(self, address: str, connections: int) -> None:
        self._host, port = address.rsplit(":", 1)
        self._port, self._free = int(port), asyncio.Queue[Any]()
        for _ in range(connections):
            self._free.put_nowait(None)

    async def ask(self, read: Read) -> Outcome:
        base = f"/v1/stores/{quote(read.store, safe='')}"
        query: dict[str, str] = {name: "true" if name == "active_only" else str(n) for name, n in read.bounds.items()}
        query |= {"raw": "true"} if read.raw else {}
        query |= {"base64_keys": "true"} if read.has_bytes else {}
        texts = [_text(key) for key in read.keys]
        if read.kind == "get" and texts[0] not in _NO_PATHS:
            return await self._made("GET", f"{base}/keys/{quote(texts[0], safe='')}", query, read, None)
        if read.kind != "page":
            whole = await self._made("POST", f"{base}/batch", query, read, {"keys": texts})
            return (
                Outcome(whole.said[0], whole.status) if read.kind == "get" and isinstance(whole.said, list) else whole
            )
        ends = {"from": read.first, "to": read.last, "prefix": read.prefix}
        query |= {name: _text(key) for name, key in ends.items() if key is not None}
        query |= {"page_size": str(read.page_size)} | ({"reverse": "true"} if read.reverse else {})
        return await self._made("GET", f"{base}/entries", query, read, None)

    async def _made(self, method: str, path: str, query: dict[str, str], read: Read, body: Any) -> Outcome:
        content = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = {"Host": "localhost", **dict(read.metadata)}
        if body is not None:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
        head = f"{method} {path}?{urlencode(query)} HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in headers.items())
        status, found = await asyncio.wait_for(self._exchanged(head.encode() + b"\r\n" + content), SECONDS)
        return _of_body(status, json.loads(found))

    async def _exchanged(self, request: bytes) -> tuple[int, bytes]:
        connection = await self._free.get()
        try:
            if connection is None:
                connection = await asyncio.open_connection(self._host, self._port)
            reader, writer = connection
            writer.write(request)
            status = int((await reader.readline()).split()[1])
            size = 0
            while (line := await reader.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
            return status, await reader.readexactly(size)
        except BaseException:
            connection = None
            raise
        finally:
            self._free.put_nowait(connection)

    async def close(self) -> None:
        """Close what is open."""
        while not self._free.empty():
            if (connection := self._free.get_nowait()) is not None:
                connection[1].close()


def _text(key: Key) -> str:
    return key if isinstance(key, str) else base64.urlsafe_b64encode(key).decode()


def _of_body(status: int, body: Any) -> Outcome:
    if "results" in body:
        return Outcome([_of_one(each["status"], each) for each in body["results"]], str(status))
    if "entries" in body:
        return Outcome([(each["key"], each["value"], each["timestamp_ms"]) for each in body["entries"]], str(status))
    return Outcome(_of_one(status, body), str(status))


def _of_one(status: int, body: Any) -> Any:
    if status == 200:
        return ("found", body["value"], body["timestamp_ms"])
    said = of_problem(body)
    wanted = 404 if said == ABSENT else {reason.name: each for reason, each in STATUS.items()}[said[1]]
    assert status == body["status"] == wanted, (status, body)
    return said
