"""Patients' stays: reduces the events of each patient; a check-out deletes. Run it with `statehouse process`.

A patient's first event is kept unchanged, even if it is a check-out: a reduce combines two values, and there is only
one. The next check-out writes a tombstone, and the event after it starts a new stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from processor.application import Application
from processor.operators.aggregators import Reduce
from processor.operators.fold import aggregate
from processor.operators.text_records import TEXT, parse_text

application_id = "patient-stays"

EVENTS = "patient-events"
STORE = "stays"
CHECKED_OUT = "checked-out"


def first(row: Mapping[str, Any]) -> list[str]:
    """Start a stay."""
    return [row[TEXT]]


def combine(stay: list[str], row: Mapping[str, Any]) -> list[str] | None:
    """Continue a stay, or end it."""
    return None if row[TEXT] == CHECKED_OUT else [*stay, row[TEXT]]


def build(app: Application) -> None:
    """Declare the source, the reduce and its store."""
    app.store(STORE, aggregate(parse_text(app.stream(EVENTS)), Reduce(combine, first)))
