"""What each request passes first, and each answer has: names, sites, how many at once, and headers for browsers."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statehouse.errors import LookupFailure, Reason
from statehouse.request_target import in_origin_form
from statehouse.settings import WebSettings
from statehouse.web.api.api_request import json_response
from statehouse.web.api.problems import problem, problem_of
from statehouse.web.hosts import SAFE_METHODS, allowed_names, is_allowed, is_own_site

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
PROBE: Final = "/healthz"
"""Whether the process answers: asked by whatever HTTP a probe speaks."""
_EVENTS: Final = "text/event-stream"


def guards(settings: WebSettings) -> list[Middleware]:
    """Return what stands before the routes, the first first."""
    return [
        Middleware(_RequestTarget),
        Middleware(_SecurityHeaders),
        Middleware(_HostCheck, names=allowed_names(settings.bind_host, settings.http_allowed_hosts)),
        Middleware(_RequestLimit, most=settings.http_max_requests),
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


class _HostCheck:
    """Refuses calls by other names, and changes that pages of other sites ask for.

    The probe says nothing that another site could want, and who probes has names of their own, or none.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_probe = scope["type"] == "http" and scope["path"] == PROBE and scope["method"] in SAFE_METHODS
        if scope["type"] == "http" and not is_probe and (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_allowed(hosts[0], self._names):
            shown = f"{hosts[0][:200]!r}" if hosts else "no name"
            detail = f"this server isn't called {shown}: add the name to http_allowed_hosts"
            return json_response(problem(421, "WRONG_HOST", detail), 421)
        if scope["method"] in SAFE_METHODS:
            return None
        if is_own_site(scope["scheme"], hosts[0], headers.get("origin"), headers.get("sec-fetch-site")):
            return None
        return json_response(problem(403, "OTHER_SITE", "a page of another site may not change anything here"), 403)


class _RequestLimit:
    """Refuses requests beyond `most` at once. A stream of events has a place of its own: see `Gateway.watches`."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._open >= self._most:
            body = problem_of(
                LookupFailure(Reason.OVERLOADED, f"{self._most} requests are under way, as many as may be")
            )
            await json_response(body, body["status"])(scope, receive, send)
            return
        self._open += 1
        has_place = True

        def leave() -> None:
            nonlocal has_place
            if has_place:
                has_place = False
                self._open -= 1

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_stream(message):
                leave()
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            leave()


def _is_stream(message: Message) -> bool:
    return Headers(raw=message["headers"]).get("content-type", "").startswith(_EVENTS)
