"""Reports to health checks whether a server serves. The latest status counts, however long a report takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from statehouse.background import BackgroundWork


class ServingStatus:
    """Reports whether a server serves, one report after the other. Lives on the event loop.

    `tell(serving)` reports it. That may take long: it waits for each caller that watches the health.
    """

    def __init__(self, tell: Callable[[bool], Awaitable[None]]) -> None:
        self._tell = tell
        self._is_serving = self._is_telling = False
        self._background = BackgroundWork()

    def set(self, *, serving: bool) -> None:
        """Report the status; a report not yet sent is replaced."""
        self._is_serving = serving
        if not self._is_telling:  # a task that has told its last word may not have been taken from the background yet
            self._is_telling = True
            self._background.start(self._tell_latest(), "health status")

    async def close(self) -> None:
        """Stop reporting."""
        await self._background.cancel()

    async def _tell_latest(self) -> None:
        told: bool | None = None
        try:
            while told is not self._is_serving:
                told = self._is_serving
                await self._tell(told)
        finally:
            self._is_telling = False
