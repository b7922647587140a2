"""The leaderboard's HTTP API, answered through the router: `python -m examples.leaderboard.http_api`.

    GET /leaderboard                 every product's high scores, {"<product id>": [...], ...}
    GET /leaderboard/{productId}     one product's high scores, [...]; 404 if there are none
    GET /leaderboard/count           number of products, a bare JSON number
    GET /leaderboard/{from}/{to}     the products from..to, both inclusive, in the byte order of their ids

Stored documents pass through byte by byte: fields keep their order, and numbers their form.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Final, Protocol

import typer
from starlette.responses import JSONResponse, Response

from examples.http_service import DEFAULT_PORT, PortOption, ReadyFileOption, RouterOption, problem, serve
from statehouse.client import DEFAULT_TARGET, Answer, Entry, EntryCount
from statehouse.errors import LookupFailure, Reason

STORE: Final = "leader-boards"

ROOT: Final = "leaderboard"
READS: Final = {STORE: ("Get", "Scan", "Count")}
_PAGE_SIZE: Final = 1_000


class StoreClient(Protocol):
    """The part of `AsyncClient` that is used here."""

    async def get(self, store: str, key: str, *, raw: bool) -> Answer:
        """Look one key up."""

    def scan(
        self, store: str, *, from_key: str | None, to_key: str | None, page_size: int, raw: bool
    ) -> AsyncIterator[Entry]:
        """Scan a store."""

    async def count(self, store: str, *, exact: bool) -> EntryCount:
        """Count a store's entries."""


async def answer(client: StoreClient, segments: list[str]) -> Response:
    """Answer a path."""
    match segments:
        case [root] if root == ROOT:
            return await _range(client, None, None)
        case [root, "count"] if root == ROOT:
            count = await client.count(STORE, exact=True)
            return JSONResponse(count.count)
        case [root, product] if root == ROOT and product:
            found = await client.get(STORE, product, raw=True)
            if not found.found:
                return problem(404, "NOT_FOUND", f"there are no high scores of product {product}")
            return _json(_document(found.value))
        case [root, first, last] if root == ROOT and first and last:
            return await _range(client, first, last)
        case _:
            return problem(404, "NOT_FOUND", f"try /{ROOT}, /{ROOT}/1, /{ROOT}/count or /{ROOT}/1/6")


async def _range(client: StoreClient, first: str | None, last: str | None) -> Response:
    """Answer with an object of the products from first to last."""
    fields = []
    async for entry in client.scan(STORE, from_key=first, to_key=last, page_size=_PAGE_SIZE, raw=True):
        name = entry.key.decode() if isinstance(entry.key, bytes) else entry.key
        fields.append(json.dumps(name).encode() + b":" + _document(entry.value))
    return _json(b"{" + b",".join(fields) + b"}")


def _document(value: object) -> bytes:
    """Return the bytes of a stored document, to be copied into a response.

    Raises:
        LookupFailure: the bytes aren't a JSON document, and would break the response.

    """
    if isinstance(value, bytes):
        with contextlib.suppress(ValueError):
            json.loads(value)
            return value
    raise LookupFailure(Reason.VALUE_UNDECODABLE, "the stored value is no JSON document")


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def main(
    router: RouterOption = DEFAULT_TARGET, port: PortOption = DEFAULT_PORT, ready_file: ReadyFileOption = None
) -> None:
    """Serve the leaderboard over HTTP until SIGTERM or SIGINT."""
    serve(ROOT, READS, answer, router, port, ready_file)


if __name__ == "__main__":
    typer.run(main)
