"""Checkpoints: the changelog offset that a store's state has reached.

The valid checkpoint is in the store itself, written in the same batch as the data; `.checkpoint` is a readable copy.
No I/O here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from statehouse.contract.moments import NONE

# The format of checkpoints and of stores. Raise it when this version would misread what older versions wrote: a store
# of any other format is wiped and restored, which is always possible and never wrong.
# 2: values have their records' timestamps.
FORMAT_VERSION = 2


class UnknownFormat(ValueError):
    """A version with another format wrote the state on disk."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The position of a store in its changelog partition.

    Attributes:
        topic: the changelog topic.
        topic_id: the broker's id of the topic; a recreated topic has another id.
        position: the next offset that the store needs.
        at_end_ms: wall clock in milliseconds when the state was last known to hold everything in the log, tombstones
            included. For a restore from the start of the log: when the restore began.
        stream_time_ms: the largest entry time that a windowed or versioned store has seen, -1 before the first.
        format_version: format of this checkpoint and of the store's content.
        layout: the parts of the store's specification that its content depended on when it was written.
        misplaced: how many records, of all that led to this state, stand in another partition than the partitioner
            gives their keys; None if nobody has checked them from the start, as earlier versions don't.
        placed_by: the number of partitions by which they were checked.
        boot_id: from one start of the machine to its next, in which it was written; empty if that isn't known.
        offset_ms: what the writer's clock showed when the machine started, in milliseconds.
        batch: the batch that the newest record names; `moments.NONE` if it names none.
        records_end: the offset after that record, 0 before the first; None if it isn't known, as of earlier versions.

    """

    topic: str
    topic_id: str
    position: int
    at_end_ms: int
    stream_time_ms: int = -1
    format_version: int = FORMAT_VERSION
    layout: str = ""
    misplaced: int | None = None
    boot_id: str = ""
    offset_ms: int = 0
    placed_by: int = 0
    batch: int = NONE
    records_end: int | None = None

    def to_json(self) -> str:
        """Return the checkpoint as JSON, in its stored form."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Checkpoint:
        """Parse the stored form.

        Raises:
            UnknownFormat: another version with another format wrote the checkpoint.
            ValueError: the checkpoint is damaged.

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
                None if fields.get("misplaced") is None else int(fields["misplaced"]),
                str(fields.get("boot_id", "")),
                int(fields.get("offset_ms", 0)),
                int(fields.get("placed_by", 0)),
                int(fields.get("batch", NONE)),
                None if fields.get("records_end") is None else int(fields["records_end"]),
            )
        except UnknownFormat:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"damaged checkpoint: {error!r}") from error
        if checkpoint.position < 0:
            raise ValueError(f"damaged checkpoint: position {checkpoint.position}")
        return checkpoint

    def by(self, boot_id: str, offset_ms: int) -> Checkpoint:
        """Return the same checkpoint with its time by another process's clock, which a `MachineClock` tells.

        If the machine has run all the time since, what its wall clock was set to meanwhile changes nothing. Else there
        is only the wall clock to go by.
        """
        is_known = self.boot_id != "" and self.boot_id == boot_id
        at_end_ms = self.at_end_ms + (offset_ms - self.offset_ms if is_known else 0)
        return replace(self, at_end_ms=at_end_ms, boot_id=boot_id, offset_ms=offset_ms)

    def checked_by(self, partitions: int) -> Checkpoint:
        """Return the same checkpoint for a store of so many partitions: by another number, nothing was checked."""
        return self if self.placed_by == partitions else replace(self, misplaced=None, placed_by=partitions)


def _known_format(version: int) -> int:
    """Return `version` if this program can read it; otherwise raise UnknownFormat."""
    if version != FORMAT_VERSION:
        raise UnknownFormat(f"checkpoint of format {version}, this version has {FORMAT_VERSION}")
    return version
