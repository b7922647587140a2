"""The common base of the built-in stores, which keep everything in an engine."""

from __future__ import annotations

import threading

from query_service.stores.engine import Engine, KeepsMoments


class EngineStore:
    """The methods of `StateStore` that a store passes on to its engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        at = engine.checkpoint()
        self._stream_time_ms = -1 if at is None else at.stream_time_ms
        self._seeing = threading.Lock()
        self.moments: KeepsMoments | None = engine if isinstance(engine, KeepsMoments) else None
        """The engine if it keeps moments; then reads of a thread that it shows one to are of that."""
        self.checkpoint = engine.checkpoint
        self.open_views = engine.open_views
        self.statistics = engine.statistics
        self.close = engine.close

    def see_stream_time(self, time_ms: int) -> None:
        """Note a stream time, which never goes back. Threads that read call this, too, if another process writes."""
        with self._seeing:
            self._stream_time_ms = max(self._stream_time_ms, time_ms)

    def _shown_time_ms(self) -> int:
        """Return the stream time of what this thread reads: of an earlier moment it is an earlier one."""
        shown = None if self.moments is None else self.moments.shown_time_ms()
        return self._stream_time_ms if shown is None else shown
