"""What health checks are told: whether a server serves. The latest word counts, however long an earlier one takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from statehouse.background import BackgroundWork


class ServingStatus:
    """Passes on whether a server serves, one word after the other. Lives on the event loop.

    `tell(serving)` has it told; it may take its time, as whoever watches the health has to take it.
    """

    def __init__(self, tell: Callable[[bool], Awaitable[None]]) -> None:
        self._tell = tell
        self._is_serving = False
        self._background = BackgroundWork()

    def set(self, *, serving: bool) -> None:
        """Have it told; a word that is still to be told is dropped."""
        self._is_serving = serving
        if not self._background:
            self._background.start(self._tell_latest(), "health status")

    async def close(self) -> None:
        """Tell no more."""
        await self._background.cancel()

    async def _tell_latest(self) -> None:
        told: bool | None = None
        while told is not self._is_serving:
            told = self._is_serving
            await self._tell(told)
