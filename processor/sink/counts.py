"""What a task counts while it writes a batch, and tells the driver: `statehouse.sink.Report` writes it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

Counts = Counter[tuple[str, str]]
"""Number of records by output and kind, and their bytes. The output is a store or topic, "" for the whole query."""

# Kinds of counts; dead-letter reasons are further kinds.
CHANGELOG: Final = "changelog"
TOMBSTONE: Final = "tombstone"
SKIPPED: Final = "skipped"
CLAIMED: Final = "claimed"
"""Counts the partitions that were not written because somebody else has claimed them, not records."""
RETRIED: Final = "retried"
"""Counts how often the transaction of a partition had to be restarted, not records."""
BYTES: Final = "bytes"
"""Counts the bytes of keys and values in an output's records, not records."""
SAVED: Final = "saved"
"""Counts the rows of an output that weren't written, because a later one replaced them in the record cache."""
EARLY: Final = "early"
"""Counts the rows of an output that left the record cache early, because it was full."""


@dataclass(slots=True)
class BatchReport:
    """What the tasks of a batch tell together.

    Attributes:
        ends: by topic and partition of an output, the offset behind the last record that the batch's transaction wrote.
        unread: the number of dead letters without the bytes of their source record, which couldn't be read again.

    """

    counts: Counts = field(default_factory=Counter)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    unread: int = 0

    @classmethod
    def of(cls, text: str) -> BatchReport:
        """Read the reports of a batch's tasks, a list in JSON."""
        report = cls()
        for task in json.loads(text):
            for output, kind, number in task["counts"]:
                report.counts[output, kind] += number
            report.ends |= {(topic, partition): offset for topic, partition, offset in task["ends"]}
            report.unread += task["unread"]
        return report
