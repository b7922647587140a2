"""Calls an example's HTTP API without a server; the API uses a client that the test provides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import httpx

from examples.http_service import create_app

Api = Callable[[str], httpx.Response]


def api_of(store: Any, answer: Any) -> Api:
    """Return what asks for a path; `store` stands for the client that `answer` reads with."""
    app = create_app(lambda: nullcontext(store), answer)

    async def ask(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as client:
            return await client.get(f"http://api{path}")

    return lambda path: asyncio.run(ask(path))
