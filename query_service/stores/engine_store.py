"""The common base of the built-in stores, which keep everything in an engine."""

from __future__ import annotations

from query_service.stores.engine import Engine


class EngineStore:
    """The methods of `StateStore` that a store passes on to its engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        at = engine.checkpoint()
        self._stream_time_ms = -1 if at is None else at.stream_time_ms
        self.checkpoint = engine.checkpoint
        self.open_views = engine.open_views
        self.statistics = engine.statistics
        self.close = engine.close
