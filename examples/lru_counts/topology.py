"""Counts patients' events; each partition of the changelog keeps the ten patients that were seen last.

Run it with `statehouse process`. A displaced patient gets a tombstone, and counts from 1 when seen again.
"""

from __future__ import annotations

from typing import Final

from processor.application import Application
from processor.operators.aggregators import Count
from processor.operators.text_records import parse_text

application_id = "lru-counts"

EVENTS: Final = "patient-events"
STORE: Final = "counts"
MAX_ENTRIES: Final = 10


def build(app: Application) -> None:
    """Declare the source and the bounded store."""
    app.store(STORE, parse_text(app.stream(EVENTS)), max_entries=MAX_ENTRIES, aggregator=Count())
