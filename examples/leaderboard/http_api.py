"""The leaderboard's HTTP API, answered through the router: `python -m examples.leaderboard.http_api`.

    GET /leaderboard                 every product's high scores, {"<product id>": [...], ...}
    GET /leaderboard/{productId}     one product's high scores, [...]; 404 if there are none
    GET /leaderboard/count           number of products, a bare JSON number
    GET /leaderboard/{from}/{to}     the products from..to, both inclusive, in the byte order of their ids

Stored documents are passed through as the bytes they are: fields keep their order and numbers their form.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, Final, Protocol
from urllib.parse import unquote_to_bytes

import typer
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from statehouse.client import DEFAULT_TARGET, Answer, AsyncClient, Count, Entry
from statehouse.errors import LookupFailure, Reason

STORE: Final = "leader-boards"
DEFAULT_PORT: Final = 7000

_ROOT: Final = "leaderboard"
_PAGE_SIZE: Final = 1_000
# All other failures are the fleet's state at this moment, and pass.
_STATUS: Final = {
    Reason.INVALID_KEY: 400,
    Reason.VALUE_UNDECODABLE: 500,
    Reason.INTERNAL: 500,
}


class StoreClient(Protocol):
    """The part of `AsyncClient` that is used here."""

    async def get(self, store: str, key: str, *, raw: bool) -> Answer:
        """Look one key up."""

    def scan(
        self, store: str, *, from_key: str | None, to_key: str | None, page_size: int, raw: bool
    ) -> AsyncIterator[Entry]:
        """Scan a store."""

    async def count(self, store: str, *, exact: bool) -> Count:
        """Count a store's entries."""


Connect = Callable[[], AbstractAsyncContextManager[Any]]


class LeaderboardApi:
    """The routes; `client` is set while the application runs."""

    def __init__(self) -> None:
        self.client: StoreClient | None = None

    async def answer(self, request: Request) -> Response:
        """Answer any path."""
        try:
            segments = _segments(request)
        except UnicodeDecodeError:
            return _problem(400, "INVALID_KEY", "the path is not percent-encoded UTF-8")
        assert self.client is not None  # noqa: S101 - requests come after the start
        try:
            return await self._route(self.client, segments)
        except LookupFailure as failure:
            return _problem(_STATUS.get(failure.reason, 503), failure.reason.name, str(failure))

    async def _route(self, client: StoreClient, segments: list[str]) -> Response:
        match segments:
            case [root] if root == _ROOT:
                return await _range(client, None, None)
            case [root, "count"] if root == _ROOT:
                count = await client.count(STORE, exact=True)
                return JSONResponse(count.count)
            case [root, product] if root == _ROOT and product:
                answer = await client.get(STORE, product, raw=True)
                if not answer.found:
                    return _problem(404, "NOT_FOUND", f"there are no high scores of product {product}")
                return _json(_document(answer.value))
            case [root, first, last] if root == _ROOT and first and last:
                return await _range(client, first, last)
            case _:
                return _problem(404, "NOT_FOUND", f"try /{_ROOT}, /{_ROOT}/1, /{_ROOT}/count or /{_ROOT}/1/6")


async def _range(client: StoreClient, first: str | None, last: str | None) -> Response:
    """Answer with an object of the products from first to last."""
    fields = []
    async for entry in client.scan(STORE, from_key=first, to_key=last, page_size=_PAGE_SIZE, raw=True):
        name = entry.key.decode() if isinstance(entry.key, bytes) else entry.key
        fields.append(json.dumps(name).encode() + b":" + _document(entry.value))
    return _json(b"{" + b",".join(fields) + b"}")


def _document(value: object) -> bytes:
    """Return a stored document's bytes, to be put into an answer as they are.

    Raises:
        LookupFailure: they are no JSON document, and would break the answer they stand in.

    """
    if isinstance(value, bytes):
        with contextlib.suppress(ValueError):
            json.loads(value)
            return value
    raise LookupFailure(Reason.VALUE_UNDECODABLE, "the stored value is no JSON document")


def _segments(request: Request) -> list[str]:
    """Return the path's segments, each decoded by itself: an id may hold a slash, written %2F."""
    raw_path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw_path.partition(b"?")[0].removeprefix(b"/")
    return [unquote_to_bytes(segment).decode() for segment in path.split(b"/")]


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _problem(status: int, reason: str, message: str) -> Response:
    return JSONResponse({"error": {"reason": reason, "message": message}}, status)


def create_app(connect: Connect) -> Starlette:
    """Return the application; `connect` makes its client, on the server's event loop."""
    api = LeaderboardApi()

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with connect() as client:
            api.client = client
            yield

    return Starlette(routes=[Route("/{path:path}", api.answer, methods=["GET"])], lifespan=lifespan)


class _Server(uvicorn.Server):
    """Tells by a file that it answers."""

    def __init__(self, config: uvicorn.Config, ready_file: Path | None) -> None:
        super().__init__(config)
        self._ready_file = ready_file

    async def startup(self, sockets: Any = None) -> None:  # noqa: ANN401 - uvicorn's own signature
        await super().startup(sockets)
        if self.started and self._ready_file is not None:
            port = self.servers[0].sockets[0].getsockname()[1]
            scratch = self._ready_file.with_name(f"{self._ready_file.name}.new")
            scratch.write_text(f"127.0.0.1:{port}\n")
            scratch.replace(self._ready_file)

    async def shutdown(self, sockets: Any = None) -> None:  # noqa: ANN401 - uvicorn's own signature
        # Here and not after run(), which ends by raising the signal that stopped the server once more.
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)
        await super().shutdown(sockets)


def main(
    router: Annotated[str, typer.Option(envvar="STATEHOUSE_ROUTER", help="The router, host:port.")] = DEFAULT_TARGET,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = DEFAULT_PORT,
    ready_file: Annotated[Path | None, typer.Option(help="Written with the address once it answers.")] = None,
) -> None:
    """Serve the leaderboard over HTTP until SIGTERM or SIGINT."""
    app = create_app(lambda: AsyncClient(router))
    server = _Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"), ready_file)
    server.run()
    if not server.started:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
