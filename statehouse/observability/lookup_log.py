"""One line of the log for a lookup that fails, and for a share of all. It has no values, and no keys unless asked."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

import structlog

from statehouse.v1 import types_pb2

log = structlog.get_logger("lookup")

LINES_AT_ONCE: Final = 100
LINES_PER_S: Final = 5.0
"""Most lines: so many at once, then so many a second; of failed lookups, and of the share of all, each. A storm of
failures writes some 150 MB a day."""
_KEY_SHOWN_MAX: Final = 200


def shown_key(key: str | types_pb2.Key) -> str:
    """Return a key as its line has it: its text, or its bytes in hexadecimal digits, and no more than the beginning."""
    if isinstance(key, types_pb2.Key):
        key = key.text if key.HasField("text") else key.raw.hex()
    return key[:_KEY_SHOWN_MAX]


class LineLimit:
    """A bucket of tokens, one a line. Times are of one monotonic clock, in seconds."""

    def __init__(self, at_once: int = LINES_AT_ONCE, per_s: float = LINES_PER_S) -> None:
        self._most, self._per_s = float(at_once), per_s
        self._left, self._at = self._most, 0.0
        self.left_out = 0
        """How many lines were left out since the last one was written."""

    def take(self, now: float) -> bool:
        """Return whether a line may be written; count it if not."""
        self._left = min(self._most, self._left + max(0.0, now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            self.left_out += 1
            return False
        self._left -= 1
        return True


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
