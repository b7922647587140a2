"""The routes of the live page: pages as HTML, their twins as JSON, and their streams."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode

import structlog
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from statehouse.client import Store
from statehouse.contract.membership import target
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.authorized import ASKED_AGAIN_S
from statehouse.web import csrf
from statehouse.web.gateway import CallerRefused, Gateway
from statehouse.web.pages import reads
from statehouse.web.pages.concealed import concealed_view
from statehouse.web.pages.live import LivePages
from statehouse.web.pages.pages import LIVE_PAGES, BadQuery, LivePage, Seen, menu, text
from statehouse.web.pages.poller import Poller
from statehouse.web.pages.recorder import Moment, Recorder
from statehouse.web.pages.rendering import STATIC, as_json, html
from statehouse.web.pages.views.frame import View, frame_of
from statehouse.web.pages.views.nodes import find_node, node_view
from statehouse.web.pages.views.reads import Problem, oldest_kept, problem_of

log = structlog.get_logger(__name__)

PING_S: Final = 15
_BUSY: Final = {"Retry-After": "10"}
_STATUS: Final = {Reason.UNAUTHENTICATED: 401, Reason.PERMISSION_DENIED: 403}

PageHandler = Callable[[Request], Awaitable[Response]]


def page_routes(gateway: Gateway) -> list[BaseRoute]:
    """Return the page's routes. They ask the fleet from the gateway's start to its end."""
    return Pages(gateway).routes()


class Pages:
    """The pages of one fleet, and what they have heard of it. Lives on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.recorder, self.live = Recorder(), LivePages()
        self._metrics = tuple(filter(None, (each.strip() for each in gateway.settings.router_metrics.split(","))))
        self._poller = Poller(gateway, self.recorder, self.live.changed, metrics=self._metrics)
        self._polling: asyncio.Task[None] | None = None
        self._form_secret = secrets.token_bytes(csrf.SECRET_BYTES)
        gateway.on_start(self._start)
        gateway.on_close(self._close)

    async def _start(self) -> None:
        self._polling = asyncio.create_task(self._poller.run(), name="ask the fleet")

    async def _close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        found: list[BaseRoute] = [Mount("/static", StaticFiles(directory=STATIC), name="static")]
        for page in LIVE_PAGES.values():
            found += [
                Route(f"/{page.path}", self._guarded(partial(self._shown, page))),
                Route(f"/{page.name}.json", self._guarded(partial(self._twin, page))),
                Route(f"/live/{page.name}", self._guarded(partial(self._stream, page))),
            ]
        for path, handler in (
            ("/nodes/{node}", self._node),
            ("/live/nodes/{node}", self._node_stream),
            ("/lookup", self._lookup),
            ("/lookup.json", self._lookup),
            ("/stores/{store}", self._store),
        ):
            found.append(Route(path, self._guarded(handler)))
        found.append(Route("/nodes/{node}/drain", self._guarded(self._drain), methods=["POST"]))
        found.append(Route("/live/stores/{store}/watch", self._guarded(self._watch)))
        return found

    def _guarded(self, handler: PageHandler) -> PageHandler:
        """Return a handler that shows as a page, or as JSON, why it can't answer."""

        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)
            except BadQuery as error:
                return self._problem(request, 400, Problem("INVALID_REQUEST", str(error)))
            except CallerRefused as refused:
                failure = refused.failure
                response = self._problem(request, _STATUS.get(failure.reason, 403), problem_of(failure))
                if response.status_code == 401:
                    response.headers["WWW-Authenticate"] = "Bearer"
                return response
            except LookupFailure as failure:
                overloaded = failure.reason is Reason.OVERLOADED
                status = 503 if overloaded else 502
                told = problem_of(self._gateway.told(request, failure))
                return self._problem(request, status, told, _BUSY if overloaded else None)

        return guarded

    async def _shown(self, page: LivePage, request: Request) -> Response:
        if _wants_json(request):
            return await self._twin(page, request)
        await self._gateway.authorise(request, page.call)
        return HTMLResponse(self._whole(request, page.title, page.template, self._view(request, page), page=page))

    async def _twin(self, page: LivePage, request: Request) -> Response:
        await self._gateway.authorise(request, page.call)
        return self._json(self._view(request, page))

    async def _stream(self, page: LivePage, request: Request) -> Response:
        await self._gateway.authorise(request, page.call)
        self._view(request, page)  # what can't be shown is refused before the stream begins

        def made() -> str:
            try:
                return self._part(request, page.title, page.template, self._view(request, page))
            except BadQuery as error:  # the store has gone
                return self._part(request, page.title, "problem.html", Problem("INVALID_REQUEST", str(error)))

        name = f"{page.name}?{urlencode(sorted(request.query_params.multi_items()))}"
        return self._events(request, page.call, None, self.live.stream(name, made))

    def _events(self, request: Request, call: str, about: str | None, parts: AsyncIterator[str]) -> Response:
        """Answer with a stream of parts of a page, for as long as its reader may see them."""
        with self._gateway.watch_place(request):  # if there is none, say so before the stream begins
            pass

        async def sent() -> AsyncIterator[dict[str, str]]:
            asked_at = time.monotonic()
            try:
                with self._gateway.watch_place(request):
                    async for part in parts:
                        if time.monotonic() - asked_at >= ASKED_AGAIN_S:
                            await self._gateway.authorise(request, call, about, again=True)
                            asked_at = time.monotonic()
                        yield {"data": part}
            except CallerRefused as refused:
                yield {"data": html("problem.html", page=problem_of(refused.failure))}
            except LookupFailure as failure:
                yield {"data": html("problem.html", page=problem_of(self._gateway.told(request, failure)))}

        return EventSourceResponse(sent(), ping=PING_S, headers={"Cache-Control": "no-store"})

    async def _node(self, request: Request) -> Response:
        await self._gateway.authorise(request, "GetFleet")
        return self._node_page(request)

    def _node_page(self, request: Request, note: str | None = None, status: int = 200) -> Response:
        name = request.path_params["node"]
        is_json = _wants_json(request) or name.endswith(".json")
        view = node_view(self.recorder, _now(), name.removesuffix(".json") if is_json else name)
        if view is None:
            if self.recorder.fleet is not None:
                return self._problem(request, 404, Problem("UNKNOWN_NODE", f"the fleet has no node {name!r}"))
            return self._problem(request, 503, Problem("ROUTING_NOT_READY", "no router has told of the fleet yet"))
        if is_json:
            return self._json(view, status=status)
        cookie = request.cookies.get(csrf.COOKIE)
        is_new = cookie is None or not csrf.is_cookie(cookie)
        if cookie is None or is_new:
            cookie = secrets.token_urlsafe(csrf.SECRET_BYTES)
        more: dict[str, Any] = {"csrf_token": csrf.token_of(self._form_secret, cookie), "note": note}
        stream = None if note is not None else f"/live/nodes/{quote(name, safe='')}"
        response = HTMLResponse(self._whole(request, f"Node {name}", "node.html", view, stream=stream, **more), status)
        if is_new:
            is_secure = request.url.scheme == "https"
            response.set_cookie(csrf.COOKIE, cookie, httponly=True, samesite="strict", secure=is_secure)
        return response

    async def _node_stream(self, request: Request) -> Response:
        """Stream a node's page; its form is for the browser that has the cookie."""
        await self._gateway.authorise(request, "GetFleet")
        name, cookie = request.path_params["node"], request.cookies.get(csrf.COOKIE, "")
        token = csrf.token_of(self._form_secret, cookie) if csrf.is_cookie(cookie) else ""

        def made() -> str:
            view = node_view(self.recorder, _now(), name)
            if view is None:
                gone = Problem("UNKNOWN_NODE", f"the fleet has no node {name!r} any more")
                return self._part(request, f"Node {name}", "problem.html", gone)
            return self._part(request, f"Node {name}", "node.html", view, csrf_token=token)

        return self._events(request, "GetFleet", None, self.live.stream(f"node {name} {cookie}", made))

    async def _drain(self, request: Request) -> Response:
        await self._gateway.authorise(request, "Drain")
        name = request.path_params["node"]
        async with request.form(max_files=0, max_fields=4) as form:
            token = form.get(csrf.FIELD)
        cookie = request.cookies.get(csrf.COOKIE)
        if not csrf.is_valid(self._form_secret, cookie, token if isinstance(token, str) else None):
            note = "This form is no longer valid: nothing was done. Look at the page anew, and send it again."
            return self._node_page(request, note, 403)
        node = None if self.recorder.fleet is None else find_node(self.recorder.fleet, name)
        if node is None:
            return self._node_page(request, f"The fleet has no node {name}.", 502)
        try:
            tasks = await self._gateway.drain(request, target(node.host.host, node.host.port))
        except LookupFailure as failure:
            return self._node_page(request, f"{name} can't be told to drain: {failure.message}", 502)
        await self._poller.ask_again(node)
        log.info("a node was told to drain", node=name, active_tasks=len(tasks))
        return RedirectResponse(f"/nodes/{quote(name, safe='')}", 303)

    async def _lookup(self, request: Request) -> Response:
        try:
            query = reads.asked(request.query_params)
        except BadQuery:
            await self._gateway.authorise(request, "ExplainGet")  # who may not ask learns nothing of the fleet
            raise
        await self._gateway.authorise(request, "ExplainGet" if query.key else "GetFleet", query.store or None)
        view = await reads.lookup(self._gateway, self._offered(request, query.store), query)
        if self._gateway.conceals(request):
            view = concealed_view(view)
        if _wants_json(request) or request.url.path.endswith(".json"):
            return self._json(view)
        return HTMLResponse(self._whole(request, "Look up", "lookup.html", view, twin="/lookup.json"))

    def _offered(self, request: Request, asked: str) -> tuple[Store, ...]:
        """Return the stores to choose from: all if the caller may list them, else the one that is asked about."""
        stores = () if self.recorder.fleet is None else self.recorder.fleet.stores
        if self._gateway.may(request, "ListStores"):
            return stores
        return tuple(store for store in stores if store.name == asked)

    async def _store(self, request: Request) -> Response:
        name = request.path_params["store"]
        is_json = _wants_json(request) or (self.recorder.store(name) is None and name.endswith(".json"))
        name = name.removesuffix(".json") if is_json else name
        store = self.recorder.store(name)
        # First of all, and for a store that doesn't exist, too: who may not read it isn't told whether it does.
        await self._gateway.authorise(request, "Scan" if store is None else reads.scan_call(store), name)
        if store is None:
            return self._no_store(request, name)
        view = await reads.store_page(self._gateway, store, request.query_params)
        (oldest,) = oldest_kept((store,), self.recorder.heard())
        view = replace(view, oldest_batch=oldest)
        if self._gateway.conceals(request):
            view = concealed_view(view)
        if is_json:
            return self._json(view)
        watching = None
        if request.query_params.get("watch"):
            prefix = {"prefix": view.prefix} if view.prefix else {}
            watching = f"/live/stores/{quote(name, safe='')}/watch?{urlencode(prefix)}"
        twin = f"/stores/{quote(name, safe='')}.json"
        return HTMLResponse(self._whole(request, name, "store.html", view, twin=twin, watching=watching))

    async def _watch(self, request: Request) -> Response:
        name = request.path_params["store"]
        await self._gateway.authorise(request, "Watch", name)  # first of all, as above
        if self.recorder.store(name) is None:
            return self._no_store(request, name)
        # A prefix that is too long is refused before the stream begins.
        prefix = text(request.query_params, "prefix", reads.KEY_MAX) or None
        told = partial(self._gateway.told, request)
        return self._events(request, "Watch", name, reads.watched(self._gateway, name, prefix, told))

    def _no_store(self, request: Request, name: str) -> Response:
        """Answer that there is no such store, to a caller that might read it."""
        return self._problem(request, 404, Problem("UNKNOWN_STORE", f"there is no store {name!r}"))

    def _view(self, request: Request, page: LivePage) -> Any:  # noqa: ANN401 - any of the views
        return page.view(Seen(self.recorder, _now(), request.query_params, has_metrics=bool(self._metrics)))

    def _part(self, request: Request, title: str, template: str, view: Any, **more: Any) -> str:  # noqa: ANN401 - as above
        """Return what is inside the page's main element."""
        part = html("main.html", **self._values(request, title, template, view, **more))
        return part.replace("\n", " ")  # an event of the stream has a line for each of its own

    def _whole(
        self,
        request: Request,
        title: str,
        template: str,
        view: Any,  # noqa: ANN401 - as above
        *,
        page: LivePage | None = None,
        stream: str | None = None,
        twin: str | None = None,
        **more: Any,  # noqa: ANN401 - what the template shows, too
    ) -> str:
        query = f"?{request.url.query}" if request.url.query else ""
        is_live = page is not None and "epoch" not in request.query_params
        return html(
            "base.html",
            **self._values(request, title, template, view, **more),
            menu=menu(),
            here=request.url.path.split("/")[1],
            has_charts=page is not None and not page.path,
            stream=f"/live/{page.name}{query}" if page is not None and is_live else stream,
            twin=(f"/{page.name}.json" if page is not None else twin or f"{request.url.path}.json") + query,
            itself=request.url.path + query,
        )

    def _values(self, request: Request, title: str, template: str, view: Any, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
        values: dict[str, Any] = {"needs_fleet": True, "note": None, "watching": None, "csrf_token": ""}
        values["frame"] = frame_of(self.recorder, _now())
        return values | more | {"title": title, "content": template, "page": view, "query": request.query_params}

    def _json(self, view: Any, status: int = 200) -> Response:  # noqa: ANN401 - any of the views
        """Answer with the values that a page is made from."""
        frame = frame_of(self.recorder, _now())
        if frame.view in {View.BROKEN, View.LOADING}:
            status = 503
        body = json.dumps({"frame": as_json(frame), "page": as_json(view)}, ensure_ascii=False)
        return Response(body, status, media_type="application/json", headers={"Cache-Control": "no-store"})

    def _problem(
        self, request: Request, status: int, problem: Problem, headers: dict[str, str] | None = None
    ) -> Response:
        if _wants_json(request) or request.url.path.endswith(".json") or request.url.path.startswith("/live/"):
            return JSONResponse(as_json(problem), status, headers=headers)
        title = {400: "This can't be shown", 404: "Not found", 503: "Not now"}.get(status, "Not allowed")
        more: dict[str, Any] = {"needs_fleet": False, "twin": "/fleet.json"}
        if status in _STATUS.values():  # who may not ask learns nothing of the fleet
            more["frame"] = frame_of(Recorder(), _now())
        return HTMLResponse(self._whole(request, title, "problem.html", problem, **more), status, headers=headers)


def _wants_json(request: Request) -> bool:
    """Whether a reader asks for JSON and not for HTML."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def _now() -> Moment:
    return Moment(time.monotonic(), int(time.time() * 1_000))
