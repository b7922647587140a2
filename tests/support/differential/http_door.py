"""The HTTP API as a door."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any, Final
from urllib.parse import quote, urlencode

from statehouse.web.api.problems import NO_SUCH_KEY, STATUS
from tests.support.differential.cases import AS_OF, BATCH, COUNT, GET, HISTORY, SCAN, Key, Read
from tests.support.differential.doors import PAGES, SECONDS
from tests.support.differential.outcomes import ABSENT, Outcome, of_body

# A path can't have these: they go into a batch (docs/http-api.md).
_NO_PATHS: Final = ("", ".", "..")
_STATUS: Final = {reason.name: status for reason, status in STATUS.items()}


class HttpDoor:
    """The HTTP API, over connections that stay open."""

    def __init__(self, address: str, connections: int) -> None:
        self._host, port = address.rsplit(":", 1)
        self._port, self._free = int(port), asyncio.Queue[Any]()
        for _ in range(connections):
            self._free.put_nowait(None)

    def can_ask(self, read: Read) -> bool:
        """Whether there is a request for a read: all but a page of a key that a path can't have."""
        return read.kind in {GET, BATCH} or not read.keys or _text(read.keys[0]) not in _NO_PATHS

    async def ask(self, read: Read) -> Outcome:
        """Make a read."""
        texts = [_text(key) for key in read.keys]
        if read.kind == BATCH or (read.kind == GET and texts[0] in _NO_PATHS):
            whole = await self._made(read, "/batch", {}, {"keys": texts})
            is_one = read.kind == GET and isinstance(whole.said, list)
            return Outcome(whole.said[0], whole.status) if is_one else whole
        path = f"/keys/{quote(texts[0], safe='')}" if texts else ""
        if read.kind in {GET, AS_OF}:
            return await self._made(read, path, {}, None)
        if read.kind == COUNT:
            return await self._made(read, "/count", {"exact": "true"}, None)
        last = {SCAN: "/entries", HISTORY: "/history"}.get(read.kind, f"/{PAGES[read.kind][1]}")
        query = {"page_size": str(read.page_size)} | ({"reverse": "true"} if read.reverse else {})
        query |= {name: _text(key) for name, key in read.ends.items()}
        return await self._made(read, path + last, query, None)

    async def _made(self, read: Read, path: str, query: dict[str, str], body: Any) -> Outcome:
        query |= {name: "true" if name == "active_only" else str(n) for name, n in read.bounds.items()}
        query |= {name: str(n) for name, n in read.times.items()}
        query |= {"raw": "true"} if read.raw else {}
        query |= {"base64_keys": "true"} if read.has_bytes else {}
        items: list[Any] = []
        while True:
            status, found = await asyncio.wait_for(self._exchanged(read, path, query, body), SECONDS)
            outcome = _of_body(status, found)
            if "next_page_token" not in found:
                return outcome
            items += outcome.said
            if not (read.is_whole and found["next_page_token"]):
                return Outcome(items, outcome.status)
            query |= {"page_token": found["next_page_token"]}

    async def _exchanged(self, read: Read, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        content = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = [("Host", "localhost"), *read.metadata]
        if body is not None:
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
        method = "GET" if body is None else "POST"
        head = f"{method} /v1/stores/{quote(read.store, safe='')}{path}?{urlencode(query)} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers)
        connection = await self._free.get()
        try:
            if connection is None:
                connection = await asyncio.open_connection(self._host, self._port)
            reader, writer = connection
            writer.write(head.encode() + b"\r\n" + content)
            status, size = int((await reader.readline()).split()[1]), 0
            while (line := await reader.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
            return status, json.loads(await reader.readexactly(size))
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
                await connection[1].wait_closed()


def _text(key: Key) -> str:
    return key if isinstance(key, str) else base64.urlsafe_b64encode(key).decode()


def _of_body(status: int, body: Any) -> Outcome:
    for field in ("entries", "windows", "sessions", "versions"):
        if field in body:
            return Outcome([of_body(each) for each in body[field]], str(status))
    if "results" in body:
        return Outcome([_of_one(each["status"], each) for each in body["results"]], str(status))
    return Outcome(body["count"] if "count" in body else _of_one(status, body), str(status))


def _of_one(status: int, body: Any) -> Any:
    if status == 200:
        return ("found", body["value"], body["timestamp_ms"])
    said = ABSENT if body["reason"] == NO_SUCH_KEY else ("refused", body["reason"])
    wanted = 404 if said == ABSENT else _STATUS[body["reason"]]
    assert status == body["status"] == wanted, (status, body)
    return said
