"""What each request passes first, and each answer has: names, sites, places, and headers for browsers."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statehouse.errors import internal_error
from statehouse.runtime.request_target import in_origin_form
from statehouse.settings import WebSettings
from statehouse.web.api.api_request import json_response
from statehouse.web.api.problems import problem, problem_of
from statehouse.web.hosts import SAFE_METHODS, allowed_names, is_allowed, is_own_site
from statehouse.web.metrics import WebMetrics
from statehouse.web.request_limit import PROBE, RequestLimit

log = structlog.get_logger(__name__)

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def guards(settings: WebSettings, metrics: WebMetrics) -> list[Middleware]:
    """Return what stands before the routes, the first first."""
    return [
        Middleware(_RequestTarget),
        Middleware(_SecurityHeaders),
        Middleware(_Checks, names=allowed_names(settings.bind_host, settings.http_allowed_hosts)),
        Middleware(RequestLimit, settings=settings, metrics=metrics),
        Middleware(_HandlerErrors),
    ]


class _RequestTarget:
    """Takes a request whose target is a whole URL for one of its path and its host."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            authority, path = in_origin_form(scope["raw_path"].decode("latin-1"))
            if authority:
                headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
                headers.insert(0, (b"host", authority.encode("latin-1")))
                scope = {**scope, "headers": headers, "raw_path": path.encode("latin-1"), "path": unquote(path)}
        await self._app(scope, receive, send)


class _SecurityHeaders:
    """Adds the headers to each answer that doesn't have them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, sent)


class _Checks:
    """Refuses calls by other names, changes that pages of other sites ask for, and bodies with two ends."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            # A server before this one may have gone by the other, and taken what follows for another caller's request:
            # so no further one is taken of this connection.
            body = problem(400, "HTTP_ERROR", "give Content-Length or Transfer-Encoding, and not both")
            return json_response(body, 400, {"Connection": "close"})
        is_safe = scope["method"] in SAFE_METHODS
        if is_safe and scope["path"] == PROBE:
            # It says nothing that another site could want, and who probes has names of their own, or none.
            return None
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_allowed(hosts[0], self._names):
            shown = f"{hosts[0][:200]!r}" if hosts else "no name"
            detail = f"this server isn't called {shown}: add the name to http_allowed_hosts"
            return json_response(problem(421, "WRONG_HOST", detail), 421)
        if is_safe or is_own_site(scope["scheme"], hosts[0], headers.get("origin"), headers.get("sec-fetch-site")):
            return None
        return json_response(problem(403, "OTHER_SITE", "a page of another site may not change anything here"), 403)


class _HandlerErrors:
    """Answers for what went wrong in a handler. uvicorn would say it at length, and once more."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_answered = False

        async def sent(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except Exception:  # whatever it is, the caller gets an answer
            log.exception("defect in a handler", path=scope["path"])
            if not is_answered:
                body = problem_of(internal_error())
                await json_response(body, body["status"])(scope, receive, send)
