"""Segments: stores whose entries expire by time keep each slice of time in a family of its own.

Expiry drops whole families at a cost that doesn't grow with their entries. Rule, as Kafka Streams': stream time is the
largest entry time seen; an entry older than `stream time - retention` is expired, and a segment goes once all of it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_PREFIX = "segment-"
_MIN_INTERVAL_MS = 60_000


@dataclass(frozen=True, slots=True)
class Segments:
    """How time is cut, for a retention; the interval is Kafka Streams' default, half of it but a minute at least."""

    retention_ms: int

    @property
    def interval_ms(self) -> int:
        """Width of a segment."""
        return max(self.retention_ms // 2, _MIN_INTERVAL_MS)

    def family(self, time_ms: int) -> str:
        """Return the family of entries of a time. Names sort by time."""
        return f"{_PREFIX}{time_ms // self.interval_ms:019d}"

    def is_expired(self, time_ms: int, stream_time_ms: int) -> bool:
        """Whether an entry of that time is beyond the retention."""
        return time_ms < self.horizon_ms(stream_time_ms)

    def horizon_ms(self, stream_time_ms: int) -> int:
        """Return the earliest time that is not expired."""
        return max(0, stream_time_ms - self.retention_ms + 1)

    def live(self, families: Collection[str], first_ms: int, last_ms: int) -> list[str]:
        """Return, in order of time, the families that may hold entries of a span of time."""
        low, high = self.family(max(0, first_ms)), self.family(max(0, last_ms))
        return sorted(name for name in families if name.startswith(_PREFIX) and low <= name <= high)

    def expired(self, families: Collection[str], stream_time_ms: int) -> list[str]:
        """Return the families all of whose entries are expired."""
        first_live = self.family(self.horizon_ms(stream_time_ms))
        return sorted(name for name in families if name.startswith(_PREFIX) and name < first_live)

    @staticmethod
    def all(families: Collection[str]) -> list[str]:
        """Return every segment there is, in order of time."""
        return sorted(name for name in families if name.startswith(_PREFIX))
