"""The application: the API, the page, and an application's own paths; and what holds for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from statehouse.errors import LookupFailure
from statehouse.security.rights import METRICS
from statehouse.web.api.api_request import json_response
from statehouse.web.api.problems import problem, problem_of
from statehouse.web.api.routes import api_routes
from statehouse.web.gateway import CallerRefused, Gateway
from statehouse.web.guards import guards
from statehouse.web.pages.routes import page_routes
from statehouse.web.request_limit import PROBE


def build_app(gateway: Gateway, extra: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application of a web process. It closes the gateway when it ends.

    `extra`: an application's own paths; they come first.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        yield
        await gateway.close()

    async def metrics(request: Request) -> Response:
        await gateway.authorise(request, METRICS)
        return Response(gateway.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def failed(request: Request, failure: Any) -> Response:  # noqa: ANN401 - starlette's own signature
        body = problem_of(gateway.told(request, failure))
        return json_response(body, body["status"])

    return Starlette(
        routes=[
            *extra,
            Route(PROBE, _healthz),
            Route("/metrics", metrics),
            *api_routes(gateway),
            *page_routes(gateway),
        ],
        lifespan=lifespan,
        middleware=guards(gateway.settings, gateway.metrics),
        exception_handlers={
            LookupFailure: failed,
            CallerRefused: _refused,
            HTTPException: _no_such_path,
            ClientDisconnect: _left,
        },
    )


async def _healthz(_request: Request) -> Response:
    """Say that the process answers; whether the fleet does is asked of routers."""
    return PlainTextResponse("ok\n")


async def _refused(_request: Request, refused: Any) -> Response:  # noqa: ANN401 - as above
    body = problem_of(refused.failure, callers=True)
    return json_response(body, body["status"])


async def _no_such_path(request: Request, error: Any) -> Response:  # noqa: ANN401 - as above
    reason, detail = "HTTP_ERROR", str(error.detail)
    if error.status_code == 404:
        reason, detail = "NO_SUCH_PATH", f"there is no {request.url.path}; /v1/openapi.json lists the API's paths"
    elif error.status_code == 405:
        reason, detail = "METHOD_NOT_ALLOWED", f"{request.url.path} has no {request.method}"
    return json_response(problem(error.status_code, reason, detail), error.status_code, error.headers)


async def _left(_request: Request, _left: Any) -> Response:  # noqa: ANN401 - as above
    """Answer nobody: the caller has left before the body was whole."""
    return Response(status_code=400)
