"""The sample data: answers to two paths within a minute, most of them quick."""

from __future__ import annotations

import json
from typing import Final

from statehouse.local.samples import Sample

from .topology import REQUESTS

_BEGAN_MS: Final = 1_700_000_040_000
_TOOK_MS: Final = {"/home": (9.5, 12.5, 14, 11, 240), "/cart": (31, 28, 45, 1_900)}

TOPICS: Final[dict[str, dict[str, str]]] = {REQUESTS: {}}
RECORDS: Final = [
    Sample(REQUESTS, path, json.dumps({"ms": took_ms}), _BEGAN_MS + n * 1_000)
    for path, durations in _TOOK_MS.items()
    for n, took_ms in enumerate(durations)
]
