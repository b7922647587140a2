"""Logs: structured events, JSON unless a person is watching."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from statehouse.observability.line_limit import LineLimit

_REPEAT_S = 10.0
_TRACEBACKS_AT_ONCE, _TRACEBACKS_PER_S = 10, 0.5
_KINDS_MAX: Final = 1_000
_KIND_MAX: Final = 100


class _OncePerWhile(logging.Filter):
    """Lets each kind of message through once in ten seconds: while a broker is away, librdkafka repeats itself."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether no such message came just now. More than 100 kinds are all forgotten, to bound the memory."""
        now = time.monotonic()
        kind = record.getMessage().partition("[")[0]
        if now - self._said.get(kind, -_REPEAT_S) < _REPEAT_S:
            return False
        if len(self._said) > 100:
            self._said.clear()
        self._said[kind] = now
        return True


class _ErrorLimit(logging.Filter):
    """Bounds the errors of each kind by the second: a client that finds a way to cause one must not fill the disk.

    The next line that passes says how many did not. An error with a traceback is longer, and has less room.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._limits: dict[tuple[str, str], LineLimit] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether there is room for a line."""
        if record.levelno < logging.ERROR:
            return True
        event = record.msg if isinstance(record.msg, dict) else {}
        kind = record.name, str(event.get("event", ""))[:_KIND_MAX]
        limit = self._limits.get(kind)
        if limit is None:
            if len(self._limits) >= _KINDS_MAX:
                self._limits.clear()
            has_traceback = bool(record.exc_info or event.get("exc_info"))
            limit = LineLimit(_TRACEBACKS_AT_ONCE, _TRACEBACKS_PER_S) if has_traceback else LineLimit()
            self._limits[kind] = limit
        if not limit.take(self._clock()):
            return False
        if limit.left_out and event:
            event["left_out"] = limit.left_out
        limit.left_out = 0
        return True


class _CurrentStderr(logging.StreamHandler[Any]):
    """Writes to the present `sys.stderr`: progress bars replace it while they are shown."""

    @property
    def stream(self) -> Any:  # noqa: ANN401 - whatever stands in
        """Return the current standard error."""
        return sys.stderr

    @stream.setter
    def stream(self, _: object) -> None:
        """Ignore a new value: the current standard error always counts."""


def configure(level: str = "INFO") -> None:
    """Send structlog's and the standard library's events to stderr: pretty on a terminal, else one JSON a line."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    tty = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if tty else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=True,
    )
    finish: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if not tty:
        finish.append(structlog.processors.format_exc_info)
    handler = _CurrentStderr()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*finish, renderer]))
    handler.addFilter(_ErrorLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    clients = logging.getLogger("statehouse.kafka")
    clients.filters[:] = [_OncePerWhile()]
    # py4j and librdkafka narrate every call and every reconnect attempt at info.
    for chatty in ("py4j", "statehouse.kafka"):
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))
