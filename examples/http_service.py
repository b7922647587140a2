"""Shared code of the examples' HTTP APIs: splits paths, turns failures into responses, reports when it is ready.

An API is a function from a client and the path's segments to an answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import unquote_to_bytes

import typer
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from statehouse.client import AsyncClient, ClientTls
from statehouse.errors import LookupFailure, Reason

DEFAULT_PORT: Final = 7000

# All other failures are temporary states of the fleet.
_STATUS: Final = {
    Reason.INVALID_KEY: 400,
    Reason.VALUE_UNDECODABLE: 500,
    Reason.INTERNAL: 500,
    # It is this API that may not, and not its caller.
    Reason.UNAUTHENTICATED: 500,
    Reason.PERMISSION_DENIED: 500,
}

RouterOption = Annotated[str, typer.Option(envvar="STATEHOUSE_ROUTER", help="The router, host:port.")]
PortOption = Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")]
ReadyFileOption = Annotated[Path | None, typer.Option(help="Written with the address once it answers.")]

Connect = Callable[[], AbstractAsyncContextManager[Any]]
Answerer = Callable[[Any, list[str]], Awaitable[Response]]
"""Makes the response to a GET from a client and the segments of the path."""


def problem(status: int, reason: str, message: str) -> Response:
    """Return an error response: a status, a reason for programs, a message for people."""
    return JSONResponse({"error": {"reason": reason, "message": message}}, status)


def create_app(connect: Connect, answer: Answerer) -> Starlette:
    """Return the application; `connect` makes its client, on the server's event loop."""
    clients: list[Any] = []

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with connect() as client:
            clients.append(client)
            yield
            clients.clear()

    async def get(request: Request) -> Response:
        try:
            segments = _segments(request)
        except UnicodeDecodeError:
            return problem(400, "INVALID_KEY", "the path is not percent-encoded UTF-8")
        try:
            return await answer(clients[0], segments)
        except LookupFailure as failure:
            return problem(_STATUS.get(failure.reason, 503), failure.reason.name, str(failure))

    return Starlette(routes=[Route("/{path:path}", get, methods=["GET"])], lifespan=lifespan)


def serve(answer: Answerer, router: str, port: int, ready_file: Path | None) -> None:
    """Serve on 127.0.0.1, with a client of that router, until SIGTERM or SIGINT.

    The router is called over TLS if the variable STATEHOUSE_TLS_CA says so.

    Raises:
        typer.Exit: it can't serve, for example because the port is taken.

    """
    tls = ClientTls.from_environment()
    app = create_app(lambda: AsyncClient(router, tls=tls), answer)
    server = _Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"), ready_file)
    server.run()
    if not server.started:
        raise typer.Exit(1)


def _segments(request: Request) -> list[str]:
    """Return the segments of the path, each decoded separately: an id may have a slash, written %2F."""
    raw_path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw_path.partition(b"?")[0].removeprefix(b"/")
    return [unquote_to_bytes(segment).decode() for segment in path.split(b"/")]


class _Server(uvicorn.Server):
    """Writes a file when it is ready to answer."""

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
        # Here and not after run(), because run() ends by raising the stop signal again.
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)
        await super().shutdown(sockets)
