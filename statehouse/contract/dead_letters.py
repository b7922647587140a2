"""The records of a topic of dead letters: source records that were refused, and notes that they were replayed. Pure.

A dead letter has the key and value of its source record. Its headers say why it was refused, where the record is, and
what the record's own headers and timestamp were; without that timestamp, key and value are those that the query had in
their place. Kafka Connect's dead letters are alike. A note stands behind its dead letter in the same partition, written
in the transaction that replays it. So a reader of the whole partition knows on any machine what was replayed. The
sink's task writes dead letters (`statehouse.sink.DeadLetters`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from statehouse.errors import ContractError

Headers = Sequence[tuple[str, bytes | None]]

QUERY: Final = "query"
REASON: Final = "reason"
DETAIL: Final = "detail"
SOURCE_TOPIC: Final = "source_topic"
SOURCE_PARTITION: Final = "source_partition"
SOURCE_OFFSET: Final = "source_offset"
SOURCE_TIMESTAMP: Final = "source_timestamp"
"""Epoch milliseconds, of the source record; only a dead letter that has the record's own bytes has it."""
SOURCE_HEADER: Final = "source_header."
"""What the names of the source record's own headers begin with here, so that they can't be taken for ours."""
REPLAYED: Final = "replayed"
"""The header of a note: the offset of the dead letter."""


@dataclass(frozen=True, slots=True, order=True)
class SourcePlace:
    """Where a source record is."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        """Return TOPIC:PARTITION:OFFSET, as options take it."""
        return f"{self.topic}:{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A source record as it came; `timestamp_ms` is below 1 if it has none."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter.

    Attributes:
        partition: with `offset`, its place in the topic of dead letters.
        at_ms: when it was refused, epoch milliseconds.
        query: None from a processor of an earlier version.
        source: None if it comes from no single record, as an aggregate's row.
        record: key, value, headers and timestamp of the source record.
        is_original: whether `record` is as it came; else key and value are the query's, and there is nothing else.

    """

    partition: int
    offset: int
    at_ms: int
    query: str | None
    reason: str
    detail: str
    source: SourcePlace | None
    record: SourceRecord
    is_original: bool


@dataclass(frozen=True, slots=True)
class ReplayNote:
    """Says that the dead letter at an offset of this partition was replayed, and when, epoch milliseconds."""

    partition: int
    letter_offset: int
    at_ms: int


def note_headers(letter: DeadLetter) -> list[tuple[str, bytes | None]]:
    """Return the headers of the note that a dead letter was replayed; the note has neither key nor value."""
    return [(REPLAYED, str(letter.offset).encode())]


def decode(
    place: tuple[int, int], at_ms: int, key: bytes | None, value: bytes | None, headers: Headers
) -> DeadLetter | ReplayNote:
    """Read a record of the topic. `place`: its partition and offset there.

    Raises:
        ContractError: it is neither a dead letter nor a note.

    """
    ours = {name: content for name, content in headers if not name.startswith(SOURCE_HEADER)}
    replayed = _number(ours, REPLAYED)
    if replayed is not None:
        return ReplayNote(place[0], replayed, at_ms)
    reason = _text(ours, REASON)
    if reason is None:
        raise ContractError(f"it has no header {REASON!r}")
    topic, partition, offset = (
        _text(ours, SOURCE_TOPIC),
        _number(ours, SOURCE_PARTITION),
        _number(ours, SOURCE_OFFSET),
    )
    is_of_record = topic is not None and partition is not None and offset is not None
    timestamp_ms = _number(ours, SOURCE_TIMESTAMP)
    own = tuple(
        (name.removeprefix(SOURCE_HEADER), content) for name, content in headers if name.startswith(SOURCE_HEADER)
    )
    return DeadLetter(
        *place,
        at_ms,
        _text(ours, QUERY),
        reason,
        _text(ours, DETAIL) or "",
        SourcePlace(topic or "", partition or 0, offset or 0) if is_of_record else None,
        SourceRecord(key, value, own, timestamp_ms or 0),
        is_original=timestamp_ms is not None,
    )


def _text(headers: dict[str, bytes | None], name: str) -> str | None:
    content = headers.get(name)
    return None if content is None else content.decode(errors="replace")


def _number(headers: dict[str, bytes | None], name: str) -> int | None:
    text = _text(headers, name)
    try:
        return None if text is None else int(text)
    except ValueError:
        raise ContractError(f"its header {name!r} is no number: {text[:50] if text else text!r}") from None
