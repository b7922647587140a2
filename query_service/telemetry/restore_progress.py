"""Progress of long restores: when to report, how fast a restore is, and how much time it still needs.

No I/O and no clock: the caller tells the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from query_service.telemetry.events import StorePartition


@dataclass(frozen=True, slots=True)
class RestoreStatus:
    """How far a restore has come.

    Attributes:
        where: the partition that is restored.
        records: number of records restored so far.
        done: number of offsets passed so far; a log has fewer records than offsets.
        remaining: number of offsets left, up to the end that the log had at the start.
        records_per_s: speed since the last status, or since the start.
        eta_s: seconds until the end at this speed, None while nothing moves.

    """

    where: StorePartition
    records: int
    done: int
    remaining: int
    records_per_s: float
    eta_s: float | None


@dataclass(slots=True)
class _Restore:
    start: int
    end: int
    records: int
    said_at_s: float
    said_offset: int
    said_records: int


class RestoreProgress:
    """Reports on each restore at most once per `interval_s`, and not at all on shorter restores.

    All times are seconds of the same clock.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._restores: dict[StorePartition, _Restore] = {}

    def start(self, where: StorePartition, start_offset: int, end_offset: int, now_s: float) -> None:
        """Note the start of a restore."""
        self._restores[where] = _Restore(start_offset, end_offset, 0, now_s, start_offset, 0)

    def batch(self, where: StorePartition, offset: int, records: int, now_s: float) -> RestoreStatus | None:
        """Note a batch. Return how far the restore has come if it is time to report, otherwise None.

        Args:
            where: the partition.
            offset: the next offset that the restore needs.
            records: number of records in the batch.
            now_s: the time.

        """
        restore = self._restores.get(where)
        if restore is None:
            return None
        restore.records += records
        elapsed_s = now_s - restore.said_at_s
        if elapsed_s < self._interval_s:
            return None
        remaining = max(0, restore.end - offset)
        passed = offset - restore.said_offset
        status = RestoreStatus(
            where,
            restore.records,
            offset - restore.start,
            remaining,
            (restore.records - restore.said_records) / elapsed_s,
            remaining * elapsed_s / passed if passed > 0 else None,
        )
        restore.said_at_s, restore.said_offset, restore.said_records = now_s, offset, restore.records
        return status

    def end(self, where: StorePartition) -> None:
        """Note that a restore has ended, at the end of the log or before."""
        self._restores.pop(where, None)
