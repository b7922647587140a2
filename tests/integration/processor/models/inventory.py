"""Changes of a table of items, as Debezium writes them, and what the table is after them: a dictionary by id."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from processor.testing import Record
from tests.integration.processor.models import (
    BEGAN_MS,
    NO_DOCUMENTS,
    Refused,
    RefusedRecord,
    document,
    optional,
    typed,
)

ITEMS, PARTITIONS = 60, 2
CATEGORIES = ["tools", "light", "garden", "", "große Dinge", None]
Row = dict[str, Any]


def made(count: int, seed: int, *, in_order: bool = False) -> list[Record]:
    """Return changes in the order in which they come; an item's are all in one partition.

    Unless they are `in_order`, some have an earlier timestamp than the change before them.
    """
    rng = random.Random(seed)
    database: dict[int, Row] = {}
    records: list[Record] = []
    while len(records) < count:
        number, now_ms, fate = rng.randrange(ITEMS), BEGAN_MS + len(records) * 10, rng.random()
        at_ms = now_ms - (rng.randrange(3_000) if not in_order and rng.random() < 0.2 else 0)
        key, before = json.dumps({"id": number}), database.get(number)

        def add(value: Any, key: Any = key, at_ms: int = at_ms, number: int = number) -> None:
            records.append(Record(key, value, at_ms, number % PARTITIONS))

        if fate < 0.06:
            add(rng.choice(_malformed(number)))
        elif fate < 0.09:
            add(envelope("c", None, row(number, rng)), rng.choice([None, "{}", '{"id": "7"}', '{"id": null}', "7"]))
        elif fate < 0.25 and before is not None:
            del database[number]
            add(envelope("d", before, None))
            if rng.random() < 0.8:
                add(None)
        elif fate < 0.3:
            add(None)  # a tombstone of what may have gone long ago
            database.pop(number, None)
        elif fate < 0.35 and before is not None:
            add(envelope("r", None, before))  # a second snapshot
        else:
            after = row(number, rng)
            add(rng.choice([_plain, _with_schema])(envelope("c" if before is None else "u", before, after)))
            if rng.random() < 0.1:
                add(envelope("u", before, after))  # the connector has restarted, and sends it again
            database[number] = after
    return records[:count]


def row(number: int, rng: random.Random) -> Row:
    """Return any row of an item."""
    found: Row = {"id": number, "name": rng.choice(["saw", "axe", "ä\n"]), "stock": rng.choice([0, 1, 5.0, 10**12])}
    return found | rng.choice([{}, *({"category": each} for each in CATEGORIES)])


def envelope(op: str, before: Row | None, after: Row | None) -> str:
    """Return the value of a change."""
    return json.dumps({"before": before, "after": after, "op": op, "ts_ms": 5, "source": {"table": "items"}})


def _plain(text: str) -> str:
    return text


def _with_schema(text: str) -> str:
    return json.dumps({"schema": {"type": "struct"}, "payload": json.loads(text)})


def _malformed(number: int) -> list[str | bytes]:
    good = {"id": number, "name": "saw", "stock": 1}
    return [
        *(each for each, _ in NO_DOCUMENTS),
        envelope("t", None, None),
        envelope("c", None, None),
        json.dumps(good),  # a plain row
        *(
            envelope("u", None, good | each)
            for each in ({"stock": "1"}, {"stock": 0.5}, {"stock": -1}, {"name": None}, {"category": 7})
        ),
        envelope("u", None, {"id": number, "stock": 1}),
    ]


def expected(batches: Iterable[list[Record]]) -> tuple[dict[str, Row], dict[str, Row], Refused]:
    """Return the items by their ids, the sums by category, and the refused records.

    The store has the last row of an item, as the changes come. The sums count the rows by their timestamps, as far as
    they are of one batch: the last one of an item is that with the latest timestamp, and of equal ones the later.
    """
    items: dict[str, Row] = {}
    counted: dict[str, Row] = {}
    refused: Refused = Counter()
    for batch in batches:
        last: dict[str, tuple[int, Row | None]] = {}
        for record in batch:
            try:
                number, found = judged(record)
            except RefusedRecord as reason:
                refused[reason.args[0], record.key, record.value] += 1
                continue
            _put(items, number, found)
            if number not in last or record.timestamp_ms >= last[number][0]:
                last[number] = record.timestamp_ms, found
        for number, (_, found) in last.items():
            _put(counted, number, found)
    sums: dict[str, Row] = {}
    for found in counted.values():
        if found["category"] is not None:
            of_category = sums.setdefault(found["category"], {"items": 0, "units": 0})
            of_category["items"] += 1
            of_category["units"] += found["stock"]
    return items, sums, refused


def _put(table: dict[str, Row], number: str, found: Row | None) -> None:
    if found is None:
        table.pop(number, None)
    else:
        table[number] = found


def judged(record: Record) -> tuple[str, Row | None]:
    """Return an item's id, and its row; None if it is deleted. Raise RefusedRecord if it can't be used."""
    change = None if record.value is None else document(record.value)
    if change is not None:
        payload = change.get("payload")
        change = payload if change.get("schema") and isinstance(payload, dict) else change
        op = typed(change, "op", str)
        if op not in {"c", "u", "r", "d"}:
            raise RefusedRecord("unsupported_operation")
        if op != "d" and not isinstance(change["after"], dict):
            raise RefusedRecord("missing_field")
    if record.key is None:
        raise RefusedRecord("null_key")
    key = json.loads(record.key)
    number = str(typed(key if isinstance(key, dict) else {}, "id", int))
    if change is None or change["op"] == "d":
        return number, None
    after = change["after"]
    found = {
        "name": typed(after, "name", str),
        "stock": typed(after, "stock", int),
        "category": optional(after, "category", str),
    }
    if found["stock"] < 0:
        raise RefusedRecord("negative_stock")
    return number, found
