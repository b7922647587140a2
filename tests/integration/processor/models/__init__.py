"""Plain Python that says what an example must hold, from the rules of the docs, and events that try those rules.

A model takes the batches that a test pipes in. It knows nothing of the operators: it keeps dictionaries.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
BEGAN_MS = 1_700_000_100_000
Refused = Counter[tuple[str, str | bytes | None, str | bytes | None]]
"""How often a record was refused: its reason, key and value."""

# What no parser may take, with its reason.
NO_DOCUMENTS: list[tuple[str | bytes, str]] = [
    ("{", "not_json"),
    ("", "not_json"),
    (b"\xff\xfe", "not_json"),
    ('{"id": 1} more', "not_json"),
    ('{"a": 1, "a": 2}', "not_json"),
    ("[1]", "wrong_type"),
    ("null", "wrong_type"),
]


class RefusedRecord(Exception):
    """A record that can't be used; the argument is the reason."""


def document(value: str | bytes | None) -> dict[str, Any]:
    """Return the JSON object that a value is."""
    if value is None:
        raise RefusedRecord("null_value")
    known = dict(NO_DOCUMENTS)
    if value in known:
        raise RefusedRecord(known[value])
    found: dict[str, Any] = json.loads(value)
    return found


def typed(fields: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a field that must be there, of this type; a whole number may be written as 6.0."""
    if name not in fields:
        raise RefusedRecord("missing_field")
    value = fields[name]
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise RefusedRecord("wrong_type")
    return value


def optional(fields: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a field, None if it is absent or null."""
    return None if fields.get(name) is None else typed(fields, name, kind)


def refused_of(letters: Iterable[Any]) -> Refused:
    """Return what a topology has refused, comparable with a model's."""
    return Counter((letter.reason, letter.record.key, letter.record.value) for letter in letters)


def as_bytes(refused: Refused) -> Refused:
    """Return refusals with keys and values as records have them."""
    return Counter({(reason, _bytes(key), _bytes(value)): count for (reason, key, value), count in refused.items()})


def in_batches(records: list[T], count: int, rng: random.Random) -> Iterator[list[T]]:
    """Cut records at random into so many batches."""
    cuts = sorted(rng.sample(range(1, len(records)), count - 1))
    for begin, end in zip([0, *cuts], [*cuts, len(records)], strict=True):
        yield records[begin:end]


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
