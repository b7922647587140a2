"""The sample data: two programs, a login that comes late, and events that can't be counted."""

from __future__ import annotations

import json
from typing import Final

from examples.tally.topology import EVENTS
from statehouse.local.samples import Sample

_BEGAN_MS: Final = 1_700_000_000_000
TOPICS: Final[dict[str, dict[str, str]]] = {EVENTS: {}}
_EVENTS: Final = [
    ("7", "active", "03-02-2024T10:00:00Z"),
    ("7", "active", "04-02-2024T08:30:00Z"),
    ("9", "inactive", "01-01-2024T00:00:00Z"),
    ("7", "inactive", "01-02-2024T12:00:00Z"),  # comes late: counts, but is no later login
    ("9", "asleep", "02-01-2024T00:00:00Z"),
    ("9", "active", "2024-01-02"),
    ("9", "active", "31-12-2023T23:59:59Z"),
]
RECORDS: Final = [
    Sample(EVENTS, program, json.dumps({"status": status, "login": login}), _BEGAN_MS + n * 1_000)
    for n, (program, status, login) in enumerate(_EVENTS)
]
