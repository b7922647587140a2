"""What a task counts while it writes a batch, and tells the driver."""

from __future__ import annotations

from collections import Counter
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
