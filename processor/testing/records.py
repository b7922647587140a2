"""What a test pipes in, and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """A record piped into a source, or written to an output; text is UTF-8, timestamps are epoch milliseconds."""

    key: str | bytes | None
    value: str | bytes | None
    timestamp_ms: int = 0
    partition: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A refused record, with the reason."""

    record: Record
    reason: str
    detail: str
