"""Fleets that are stopped whatever the test did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.unit.router.fake_nodes import Fleet, start_fleet


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Awaitable[Fleet]]]:
    started: list[Fleet] = []

    async def begin(*names: str, **options: int) -> Fleet:
        started.append(await start_fleet(names, **options))
        return started[-1]

    yield begin
    for fleet in started:
        await fleet.stop()
