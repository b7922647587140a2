"""The sample data: valid commands and invalid ones."""

from __future__ import annotations

import json
from typing import Final

from examples.commands.topology import COMMANDS
from statehouse.local.samples import Sample

_BEGAN_MS: Final = 1_700_000_000_000
TOPICS: Final[dict[str, dict[str, str]]] = {COMMANDS: {}}
_COMMANDS: Final = [
    ("door", "create", "oak"),
    ("door", "modify", "oak, painted"),
    ("door", "create", "steel"),
    ("lamp", "modify", "brighter"),
    ("lamp", "create", "brass"),
    ("lamp", "delete", ""),
    ("lamp", "modify", "dimmer"),
    ("desk", "create", "pine"),
    ("desk", "sell", ""),
]
RECORDS: Final = [
    Sample(COMMANDS, key, json.dumps({"operation": operation, "content": content}), _BEGAN_MS + n * 1_000)
    for n, (key, operation, content) in enumerate(_COMMANDS)
] + [Sample(COMMANDS, "desk", "{", _BEGAN_MS + 60_000)]
