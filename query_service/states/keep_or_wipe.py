"""Whether a store's state on disk is kept, so that a restore goes on from it, or wiped. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass

from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault

# Compaction may run a little early or late by our clock, so a tenth of the retention is kept as a margin.
_RETENTION_MARGIN = 0.1


@dataclass(frozen=True, slots=True)
class Changelog:
    """A changelog partition as the broker describes it.

    Attributes:
        topic: the changelog topic.
        topic_id: the broker's id of the topic.
        first_offset: start of the log.
        end_offset: end of the log.
        delete_retention_ms: how long compaction keeps tombstones; None means that tombstones are never removed.
        expires: whether the log also deletes records by age or size.

    """

    topic: str
    topic_id: str
    first_offset: int
    end_offset: int
    delete_retention_ms: int | None
    expires: bool = False

    @property
    def tombstones_kept_ms(self) -> int | None:
        """How long the log surely keeps a tombstone, in milliseconds; None means for ever."""
        return None if self.delete_retention_ms is None else int(self.delete_retention_ms * (1 - _RETENTION_MARGIN))


@dataclass(frozen=True, slots=True)
class RestoreStart:
    """Where a restore starts, and why.

    Attributes:
        position: the first offset to read; None means that the store is emptied and the log is read from its start.
        fault: what is wrong with the state on disk, None if nothing is.
        reason: the same in words.

    """

    position: int | None
    fault: Fault | None
    reason: str


def restore_start(
    checkpoint: Checkpoint | None, layout: str, changelog: Changelog, now_ms: int, *, needs_placement: bool = False
) -> RestoreStart:
    """Decide whether the state on disk may be kept, so that the restore goes on from its position.

    It may not be kept if the store's layout has changed, if the topic was recreated, or if the position is outside the
    log. Nor may it if the log may have dropped tombstones that the state needs, as deleted keys would come back. With
    `needs_placement` it must also be known how many of its records are misplaced.
    """
    if checkpoint is None:
        return RestoreStart(None, Fault.NO_STATE, "no checkpoint")
    if checkpoint.layout != layout:
        return RestoreStart(None, Fault.UNKNOWN_FORMAT, f"store was written as {checkpoint.layout}, it is {layout} now")
    if needs_placement and checkpoint.misplaced is None:
        unchecked = "an earlier version built the state, which didn't check whether records are misplaced"
        return RestoreStart(None, Fault.PLACEMENT_UNCHECKED, unchecked)
    obstacle = _obstacle(checkpoint, changelog, now_ms)
    if obstacle is not None:
        return RestoreStart(None, *obstacle)
    if checkpoint.position < changelog.first_offset:
        return RestoreStart(changelog.first_offset, Fault.LOG_EXPIRED, "what is before the log's start has expired")
    return RestoreStart(checkpoint.position, None, "checkpoint")


def _obstacle(checkpoint: Checkpoint, changelog: Changelog, now_ms: int) -> tuple[Fault, str] | None:
    """Return why going on from a checkpoint could give wrong answers, None if it can't."""
    position = checkpoint.position
    if checkpoint.topic != changelog.topic or checkpoint.topic_id != changelog.topic_id:
        return (
            Fault.TOPIC_RECREATED,
            f"checkpoint is of another topic ({checkpoint.topic}, id {checkpoint.topic_id})",
        )
    if position > changelog.end_offset:
        return Fault.LOG_TRUNCATED, f"checkpoint {position} is beyond the end of the log {changelog.end_offset}"
    if position < changelog.first_offset and not changelog.expires:
        return Fault.LOG_TRUNCATED, f"checkpoint {position} is before the start of the log {changelog.first_offset}"
    age_ms = now_ms - checkpoint.at_end_ms
    if changelog.delete_retention_ms is not None and age_ms < -changelog.delete_retention_ms * _RETENTION_MARGIN:
        return (
            Fault.CHECKPOINT_TOO_OLD,
            (
                f"checkpoint was at the end {-age_ms} ms from now, by a clock that was set since: how long that is, "
                "and so whether tombstones are gone, isn't known"
            ),
        )
    if changelog.tombstones_kept_ms is not None and age_ms > changelog.tombstones_kept_ms:
        return (
            Fault.CHECKPOINT_TOO_OLD,
            (
                f"checkpoint was last at the end {age_ms} ms ago and tombstones are kept for "
                f"{changelog.delete_retention_ms} ms: deleted keys could come back (raise delete.retention.ms)"
            ),
        )
    return None
