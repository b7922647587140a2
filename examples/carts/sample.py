"""The sample data: a user who buys, one who logs off with a full cart, one who just leaves, one who is still active."""

from __future__ import annotations

import json
from typing import Final

from examples.carts.topology import EVENTS
from statehouse.local.samples import Sample

_BEGAN_MS: Final = 1_700_000_000_000
MINUTE_MS: Final = 60_000
TOPICS: Final[dict[str, dict[str, str]]] = {EVENTS: {}}
_EVENTS: Final = [
    ("ann", "add", "tea", 0),
    ("bob", "add", "rice", 1),
    ("ann", "add", "milk", 2),
    ("cid", "add", "soap", 3),
    ("ann", "remove", "milk", 5),
    ("ann", "purchase", "", 6),
    ("bob", "logoff", "", 7),
    ("ann", "logoff", "", 8),
    ("cid", "dance", "", 9),
    ("dan", "add", "wine", 60),
    ("cid", "add", "salt", 61),
]
RECORDS: Final = [
    Sample(EVENTS, user, json.dumps({"action": action, "item": item}), _BEGAN_MS + minute * MINUTE_MS)
    for user, action, item, minute in _EVENTS
]
