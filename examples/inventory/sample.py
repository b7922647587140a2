"""The sample data: four items, a sale, a move to another category, a removal, and a change that can't be."""

from __future__ import annotations

import json
from typing import Any, Final

from examples.inventory.topology import CHANGES
from statehouse.local.samples import Sample

TOPICS: Final[dict[str, dict[str, str]]] = {CHANGES: {}}
_BEGAN_MS: Final = 1_700_000_000_000

Row = dict[str, Any]


def change(number: int, op: str, before: Row | None, after: Row | None, at_ms: int) -> Sample:
    """Return a change as Debezium writes it: `op` is c, u, r or d."""
    envelope = {"before": before, "after": after, "op": op, "ts_ms": at_ms, "source": {"table": "items"}}
    return Sample(CHANGES, json.dumps({"id": number}), json.dumps(envelope), at_ms)


def item(number: int, name: str, category: str | None, stock: int) -> Row:
    """Return a row of the database's table."""
    return {"id": number, "name": name, "category": category, "stock": stock}


_SAW, _SOLD = item(1, "saw", "tools", 12), item(1, "saw", "tools", 10)
_LAMP, _MOVED = item(3, "lamp", "tools", 5), item(3, "lamp", "light", 5)
_ROPE = item(4, "rope", "garden", 30)
_CHANGES: Final[list[tuple[int, str, Row | None, Row | None]]] = [
    (1, "r", None, _SAW),  # a snapshot begins the topic
    (2, "r", None, item(2, "axe", "tools", 4)),
    (3, "c", None, _LAMP),
    (4, "c", None, _ROPE),
    (1, "u", _SAW, _SOLD),
    (3, "u", _LAMP, _MOVED),
    (4, "d", _ROPE, None),
    (2, "u", None, item(2, "axe", "tools", -1)),  # becomes a dead letter; the old row stays
]
RECORDS: Final = [
    *(change(*each, _BEGAN_MS + nth * 1_000) for nth, each in enumerate(_CHANGES)),
    Sample(CHANGES, json.dumps({"id": 4}), None, _BEGAN_MS + len(_CHANGES) * 1_000),  # the tombstone after the delete
]
