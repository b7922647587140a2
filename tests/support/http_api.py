"""Calls an example's HTTP API without a server; the API uses a client that the test provides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request

from examples.http_service import Reads, routes

Api = Callable[[str], httpx.Response]


class OpenGateway:
    """Lets everybody read with this client."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def authorise(self, request: Request, call: str, about: str) -> None: ...


def api_of(store: Any, root: str, reads: Reads, answer: Any) -> Api:
    """Return what asks for a path; `store` stands for the client that `answer` reads with."""
    app = Starlette(routes=routes(OpenGateway(store), root, reads, answer))

    async def ask(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            return await client.get(f"http://api{path}")

    return lambda path: asyncio.run(ask(path))
