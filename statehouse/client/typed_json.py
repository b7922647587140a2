"""JSON documents as values of an Arrow type: structs, lists, maps and what they hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, Final

from statehouse.errors import ConfigurationError
from statehouse.serdes import JsonValue

Typed = Callable[[JsonValue], Any]
"""Returns a document as pyarrow takes it for the type; None where the document doesn't fit."""

_NAMED_FLOATS: Final = frozenset({"NaN", "Infinity", "-Infinity"})


def typed_by(wanted: Any) -> Typed:  # noqa: ANN401 - a pyarrow.DataType
    """Return the function that gives documents a type.

    A value that doesn't fit is None, at the place where it is: a field that a document lacks, or that has text where a
    number is wanted. Fields that aren't wanted are left out. Where text is wanted, anything else is shown as JSON.

    Raises:
        ConfigurationError: JSON can't be read as this type.

    """
    import pyarrow as pa  # noqa: PLC0415 - an extra

    types = pa.types
    if types.is_struct(wanted):
        return _struct({field.name: typed_by(field.type) for field in wanted})
    if types.is_list(wanted) or types.is_large_list(wanted):
        return _list(typed_by(wanted.value_type))
    if types.is_map(wanted) and types.is_string(wanted.key_type):
        return _map(typed_by(wanted.item_type))
    if types.is_signed_integer(wanted):
        return _integer(wanted.bit_width)
    if types.is_timestamp(wanted) and wanted.unit == "us":
        return _timestamp
    for is_it, typed in _PLAIN:
        if getattr(types, is_it)(wanted):
            return typed
    raise ConfigurationError(
        f"JSON can't be read as {wanted}: take string, boolean, an integer, a float, date, timestamp (us), struct, a "
        "list of them, or a map from string to them, and convert it afterwards"
    )


def _struct(fields: dict[str, Typed]) -> Typed:
    def read(document: JsonValue) -> Any:  # noqa: ANN401 - as pyarrow takes it
        if not isinstance(document, dict):
            return None
        return {name: typed(document.get(name)) for name, typed in fields.items()}

    return read


def _list(typed: Typed) -> Typed:
    return lambda document: [typed(item) for item in document] if isinstance(document, list) else None


def _map(typed: Typed) -> Typed:
    def read(document: JsonValue) -> Any:  # noqa: ANN401 - as pyarrow takes it
        return [(_text(name), typed(item)) for name, item in document.items()] if isinstance(document, dict) else None

    return read


def _text(document: JsonValue) -> str | None:
    if document is None:
        return None
    text = document if isinstance(document, str) else json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    # JSON may name half a character (a lone surrogate), which UTF-8 doesn't have.
    return text if text.isascii() else text.encode(errors="replace").decode()


def _boolean(document: JsonValue) -> bool | None:
    return document if isinstance(document, bool) else None


def _integer(bits: int) -> Typed:
    last = 2 ** (bits - 1) - 1

    def read(document: JsonValue) -> int | None:
        if isinstance(document, float) and document.is_integer():
            document = int(document)
        if isinstance(document, bool) or not isinstance(document, int):
            return None
        return document if -last - 1 <= document <= last else None

    return read


def _number(document: JsonValue) -> float | None:
    if isinstance(document, str):
        return float(document) if document in _NAMED_FLOATS else None
    if isinstance(document, bool) or not isinstance(document, int | float):
        return None
    try:
        return float(document)
    except OverflowError:
        return math.inf if document > 0 else -math.inf


def _date(document: JsonValue) -> date | None:
    try:
        return date.fromisoformat(document) if isinstance(document, str) else None
    except ValueError:
        return None


def _timestamp(document: JsonValue) -> datetime | None:
    """Read ISO 8601; without an offset it is UTC."""
    if not isinstance(document, str):
        return None
    try:
        read = datetime.fromisoformat(document)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


# How pyarrow tells a type, and how a document is read as it.
_PLAIN: Final[tuple[tuple[str, Typed], ...]] = (
    ("is_string", _text),
    ("is_large_string", _text),
    ("is_boolean", _boolean),
    ("is_float32", _number),
    ("is_float64", _number),
    ("is_date32", _date),
)
