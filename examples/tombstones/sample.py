"""The sample data: five patients, one of whom comes back, and records that can't be counted."""

from __future__ import annotations

from typing import Final

from examples.tombstones.topology import CHECKED_OUT, EVENTS
from statehouse.local.samples import Sample

_BEGAN_MS: Final = 1_700_000_000_000
TOPICS: Final[dict[str, dict[str, str]]] = {EVENTS: {}}
_EVENTS: Final[list[tuple[str | None, str | None]]] = [
    ("1", "checked-in"),
    ("2", "checked-in"),
    ("1", "x-ray"),
    ("3", CHECKED_OUT),  # the first event of a patient
    ("2", CHECKED_OUT),
    ("4", "checked-in"),
    (None, "checked-in"),
    ("1", None),
    ("4", CHECKED_OUT),
    ("4", "checked-in"),
    ("5", "checked-in"),
    ("5", "surgery"),
    ("5", CHECKED_OUT),
]
RECORDS: Final = [Sample(EVENTS, key, value, _BEGAN_MS + n * 60_000) for n, (key, value) in enumerate(_EVENTS)]
