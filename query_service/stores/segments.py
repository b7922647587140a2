"""Segments: a store whose entries expire by time keeps each slice of time in its own family.

Expiry drops whole families, at a cost that does not grow with their entries. The rule is Kafka Streams': stream time is
the largest entry time seen; an entry older than `stream time - retention` is expired; a segment is dropped once all
its entries are expired.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_PREFIX = "segment-"
_MIN_INTERVAL_MS = 60_000


def family_of(number: int) -> str:
    """Return the family of a segment: its number is its time by the segments' width."""
    return f"{_PREFIX}{number:019d}"


def number_of(family: str) -> int | None:
    """Return the segment's number whose family it is; None if it is no segment's."""
    return int(family.removeprefix(_PREFIX)) if family.startswith(_PREFIX) else None


@dataclass(frozen=True, slots=True)
class Segments:
    """Cuts time into segments. As in Kafka Streams, a segment is half the retention wide, but at least a minute."""

    retention_ms: int

    @property
    def interval_ms(self) -> int:
        """Width of a segment in milliseconds."""
        return max(self.retention_ms // 2, _MIN_INTERVAL_MS)

    def family(self, time_ms: int) -> str:
        """Return the family for entries of a time. The families' names sort by time."""
        return family_of(time_ms // self.interval_ms)

    def is_expired(self, time_ms: int, stream_time_ms: int) -> bool:
        """Whether an entry of that time is older than the retention allows."""
        return time_ms < self.horizon_ms(stream_time_ms)

    def horizon_ms(self, stream_time_ms: int) -> int:
        """Return the earliest time that is not expired, in milliseconds."""
        return max(0, stream_time_ms - self.retention_ms + 1)

    def live(self, families: Collection[str], first_ms: int, last_ms: int) -> list[str]:
        """Return the families that may hold entries from `first_ms` to `last_ms`, in order of time."""
        low, high = self.family(max(0, first_ms)), self.family(max(0, last_ms))
        return sorted(name for name in families if name.startswith(_PREFIX) and low <= name <= high)

    def expired(self, families: Collection[str], stream_time_ms: int) -> list[str]:
        """Return the families whose entries are all expired, in order of time."""
        first_live = self.family(self.horizon_ms(stream_time_ms))
        return sorted(name for name in families if name.startswith(_PREFIX) and name < first_live)

    @staticmethod
    def all(families: Collection[str]) -> list[str]:
        """Return the families that are segments, in order of time."""
        return sorted(name for name in families if name.startswith(_PREFIX))
