"""Shared code of the examples' HTTP APIs: paths of their own next to the page and /v1, on the same server.

An API is a function from a client and the path's segments to an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Protocol
from urllib.parse import unquote_to_bytes

import typer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from statehouse.cli.exits import run_reporting
from statehouse.errors import LookupFailure, Reason
from statehouse.settings import WebSettings, load
from statehouse.web.gateway import CallerRefused
from statehouse.web.raw_routes import RawRoute
from statehouse.web.server import run

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
PortOption = Annotated[int, typer.Option(envvar="STATEHOUSE_HTTP_PORT", help="Port; 0 takes a free one.")]
ReadyFileOption = Annotated[Path | None, typer.Option(help="Written with the address once it answers.")]

Answerer = Callable[[Any, list[str]], Awaitable[Response]]
"""Makes the response to a GET from a client and the segments of the path."""
Reads = Mapping[str, Sequence[str]]
"""What an API asks: calls of gRPC, by store. Its callers must be allowed to make them, where there are rules."""


class ServesClients(Protocol):
    """The part of `Gateway` that is used here."""

    @property
    def client(self) -> Any:  # noqa: ANN401 - an AsyncClient, or what a test has in its place
        """Reads stores."""

    async def authorise(self, request: Request, call: str, about: str) -> None:
        """Return if the caller may make the call about a store."""


def problem(status: int, reason: str, message: str) -> Response:
    """Return an error response: a status, a reason for programs, a message for people."""
    return JSONResponse({"error": {"reason": reason, "message": message}}, status)


def routes(gateway: ServesClients, root: str, reads: Reads, answer: Answerer) -> Sequence[BaseRoute]:
    """Return the routes of an API, whose paths all begin with /`root`."""

    async def get(request: Request) -> Response:
        try:
            segments = _segments(request)
        except UnicodeDecodeError:
            return problem(400, "INVALID_KEY", "the path is not percent-encoded UTF-8")
        try:
            for store, calls in reads.items():
                for call in calls:
                    await gateway.authorise(request, call, store)
            return await answer(gateway.client, segments)
        except CallerRefused as refused:
            status = 401 if refused.failure.reason is Reason.UNAUTHENTICATED else 403
            return problem(status, refused.failure.reason.name, str(refused))
        except LookupFailure as failure:
            return problem(_STATUS.get(failure.reason, 503), failure.reason.name, str(failure))

    paths = (f"/{root}", f"/{root}/{{rest:path}}")
    return [RawRoute(path, get, methods=["GET"], name=f"{root} {path}") for path in paths]


def serve(root: str, reads: Reads, answer: Answerer, router: str, port: int, ready_file: Path | None) -> None:
    """Serve until SIGTERM or SIGINT: these paths, the page and /v1.

    Variables such as STATEHOUSE_TLS_CERTIFICATE say more, as for `python -m statehouse.web`.

    Raises:
        typer.Exit: it can't serve, for example because the port is taken.

    """
    ready = None if ready_file is None else _ReadyFile(ready_file)

    def work() -> None:
        run(
            load(WebSettings, {"router": router, "http_port": port}),
            lambda gateway: routes(gateway, root, reads, answer),
            on_listen=ready or (lambda _address: None),
        )

    if code := run_reporting(work):
        raise typer.Exit(code)


def _segments(request: Request) -> list[str]:
    """Return the segments of the path, each decoded separately: an id may have a slash, written %2F."""
    raw_path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw_path.partition(b"?")[0].removeprefix(b"/")
    return [unquote_to_bytes(segment).decode() for segment in path.split(b"/")]


class _ReadyFile:
    """A file with the address for as long as the server answers."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, address: str) -> None:
        if not address:
            self._path.unlink(missing_ok=True)
            return
        scratch = self._path.with_name(f"{self._path.name}.new")
        scratch.write_text(f"{address}\n")
        scratch.replace(self._path)
