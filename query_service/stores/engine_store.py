"""What the built-in stores have in common: they keep everything in an engine."""

from __future__ import annotations

from query_service.stores.engine import Engine


class EngineStore:
    """The part of a `StateStore` that the engine answers for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        at = engine.checkpoint()
        self._stream_time_ms = -1 if at is None else at.stream_time_ms
        self.checkpoint = engine.checkpoint
        self.open_views = engine.open_views
        self.statistics = engine.statistics
        self.close = engine.close
