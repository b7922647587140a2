"""Checkpoints: up to which changelog offset a store's state goes, and whether a restore may start there.

The truth stands in the store itself, written in the same batch as the data; `.checkpoint` is a readable
copy. No I/O here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from query_service.faults import Fault

# Of the checkpoint and of the stores beside it. Raise it when what older versions wrote would be read wrongly: a store
# of any other format is wiped and restored, which is always possible and never wrong.
FORMAT_VERSION = 1

# Compaction may run a little late or early against our clock; a tenth of the retention is kept as margin.
_RETENTION_MARGIN = 0.1


class UnknownFormat(ValueError):
    """What is on disk was written by a version with another format."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A store's place in its changelog partition.

    Attributes:
        topic: changelog topic.
        topic_id: the broker's id of it; a recreated topic has another.
        position: next offset needed.
        at_end_ms: wall clock when the state was last known to hold all that the log held, tombstones included.
            For a restore from the log's start: when it began.
        stream_time_ms: largest entry time a windowed or versioned store has seen, -1 before the first.
        format_version: of what was written, the store's content included.
        layout: what the store was when it was written, as far as its content depends on it.

    """

    topic: str
    topic_id: str
    position: int
    at_end_ms: int
    stream_time_ms: int = -1
    format_version: int = FORMAT_VERSION
    layout: str = ""

    def to_json(self) -> str:
        """Return the stored form."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Checkpoint:
        """Read the stored form.

        Raises:
            UnknownFormat: it is of another format than this version's.
            ValueError: it is damaged.

        """
        try:
            fields = json.loads(text)
            format_version = _known_format(int(fields["format_version"]))
            checkpoint = cls(
                str(fields["topic"]),
                str(fields["topic_id"]),
                int(fields["position"]),
                int(fields["at_end_ms"]),
                int(fields["stream_time_ms"]),
                format_version,
                str(fields.get("layout", "")),
            )
        except UnknownFormat:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"damaged checkpoint: {error!r}") from error
        if checkpoint.position < 0:
            raise ValueError(f"damaged checkpoint: position {checkpoint.position}")
        return checkpoint

    def moved(self, position: int) -> Checkpoint:
        """Return it with another position."""
        return replace(self, position=position)


def _known_format(version: int) -> int:
    """Return a version that this program reads."""
    if version != FORMAT_VERSION:
        raise UnknownFormat(f"checkpoint of format {version}, this version has {FORMAT_VERSION}")
    return version


@dataclass(frozen=True, slots=True)
class Changelog:
    """What the broker says of a changelog partition.

    `delete_retention_ms` None: tombstones are never removed. `expires`: records leave it by age or size.
    """

    topic: str
    topic_id: str
    first_offset: int
    end_offset: int
    delete_retention_ms: int | None
    expires: bool = False

    @property
    def tombstones_kept_ms(self) -> int | None:
        """How long the log surely holds a tombstone, None for ever."""
        return None if self.delete_retention_ms is None else int(self.delete_retention_ms * (1 - _RETENTION_MARGIN))


@dataclass(frozen=True, slots=True)
class RestoreStart:
    """Where a restore starts: `position` None is the log's start with an empty store. `fault`: what is wrong."""

    position: int | None
    fault: Fault | None
    reason: str


def restore_start(checkpoint: Checkpoint | None, layout: str, changelog: Changelog, now_ms: int) -> RestoreStart:
    """Decide whether the state on disk may be kept and read on from its position.

    It may not when the store has become another one than was written (`layout`), when the log is another one (recreated
    topic), does not reach the position, or may since have dropped tombstones that the state needs: keys deleted
    meanwhile would come back.
    """
    if checkpoint is None:
        return RestoreStart(None, Fault.NO_STATE, "no checkpoint")
    if checkpoint.layout != layout:
        return RestoreStart(None, Fault.UNKNOWN_FORMAT, f"store was written as {checkpoint.layout}, it is {layout} now")
    obstacle = _obstacle(checkpoint, changelog, now_ms)
    if obstacle is not None:
        return RestoreStart(None, *obstacle)
    if checkpoint.position < changelog.first_offset:
        return RestoreStart(changelog.first_offset, Fault.LOG_EXPIRED, "what is before the log's start has expired")
    return RestoreStart(checkpoint.position, None, "checkpoint")


def _obstacle(checkpoint: Checkpoint, changelog: Changelog, now_ms: int) -> tuple[Fault, str] | None:
    """Return why reading on from a checkpoint could give wrong answers, None if it can't."""
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
    if changelog.tombstones_kept_ms is not None and age_ms > changelog.tombstones_kept_ms:
        return (
            Fault.CHECKPOINT_TOO_OLD,
            (
                f"checkpoint was last at the end {age_ms} ms ago and tombstones are kept for "
                f"{changelog.delete_retention_ms} ms: deleted keys could come back (raise delete.retention.ms)"
            ),
        )
    return None
