"""One line of the log for a lookup that fails, and for a share of all. It has no values, and no keys unless asked."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

import structlog

from statehouse.observability.line_limit import LineLimit
from statehouse.v1 import types_pb2

log = structlog.get_logger("lookup")

_KEY_SHOWN_MAX: Final = 200


def shown_key(key: str | types_pb2.Key) -> str:
    """Return a key as its line has it: its text, or its bytes in hexadecimal digits, and no more than the beginning."""
    if isinstance(key, types_pb2.Key):
        key = key.text if key.HasField("text") else key.raw.hex()
    return key[:_KEY_SHOWN_MAX]


class LookupLog:
    """Writes the lines. `share`: of all lookups, 0 to 1. `has_keys`: whether lines have the lookups' keys."""

    def __init__(
        self,
        share: float,
        *,
        has_keys: bool,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._share, self.has_keys, self._clock, self._draw = share, has_keys, clock, draw
        self._failed, self._sampled = LineLimit(), LineLimit()

    @property
    def is_sampling(self) -> bool:
        """Whether lookups that go well may have lines."""
        return self._share > 0

    def samples(self) -> bool:
        """Return whether the next lookup is one of the share."""
        return self._share > 0 and self._draw() < self._share

    def write(self, *, is_failure: bool, **fields: object) -> None:
        """Write a lookup's line, without the fields that are None, unless there were too many."""
        limit = self._failed if is_failure else self._sampled
        if not limit.take(self._clock()):
            return
        if limit.left_out:
            fields["left_out"] = limit.left_out
            limit.left_out = 0
        log.info("lookup", **{name: value for name, value in fields.items() if value is not None})
