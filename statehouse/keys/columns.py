"""Keys of several columns: a JSON document of the columns' values, the same for every program that makes it. Pure.

A store says which columns its keys have, with the types that Spark gives them. A value is given as text, as people type
it, or as a value of Python's; here it becomes what the store's writer has written (`docs/attach.md` has the forms).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation, localcontext
from numbers import Integral
from types import MappingProxyType
from typing import Any, Final

from statehouse.errors import LookupFailure, Reason, shown

COLUMNS_MAX: Final = 200
"""More columns no key has."""

_INTEGRAL: Final = MappingProxyType({"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64})
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_PLAIN: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:[Zz]|[+-][0-9]{2}:?[0-9]{2})?"
)
_FAR: Final = re.compile(r"[+-][0-9]{4,}-.*")
_ESCAPE: Final = re.compile(r"\\(u00[0-9a-f]{2}|.)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)")
_ESCAPED: Final = re.compile(r"\\x([0-9A-Fa-f]{2})")
_LOOKS_ESCAPED: Final = re.compile(r"\\(?=x[0-9A-Fa-f]{2})")
_UNREADABLE: Final = re.compile("[\udc80-\udcff]")
_ASCII: Final = 0x80
_SURROGATES: Final = 0xDC00
"""Where Python puts bytes that are no text (PEP 383)."""
_FRACTION: Final = re.compile(r"(\.\d{1,6})(?=[Zz+-]|$)")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a key. `type`: as Spark names it, in small letters: `bigint`, `decimal(6,2)`, `timestamp`."""

    name: str
    type: str


class KeyColumns:
    """A key that is given by its columns: `KeyColumns(user="ann", at=datetime(...))`."""

    def __init__(self, given: Mapping[str, Any] | None = None, /, **columns: Any) -> None:  # noqa: ANN401 - of any type
        """Take the columns; `given` is for names that aren't names of Python's."""
        self.columns: Mapping[str, Any] = {**(given or {}), **columns}

    def __repr__(self) -> str:
        return f"KeyColumns({dict(self.columns)!r})"


def key_text(store: str, columns: Sequence[KeyColumn], given: Mapping[str, Any]) -> str:
    """Return the key of a store, a JSON document, from its columns' values: texts, or values of Python's.

    Raises:
        LookupFailure: INVALID_KEY: the store's keys have no columns, or others; or a value isn't of its column's type.

    """
    if not columns:
        raise LookupFailure(
            Reason.INVALID_KEY, f"store {store}: its keys are not made of columns: give the key as its serde writes it"
        )
    names = [each.name for each in columns]
    for what, wrong in (
        ("lacks", [n for n in names if n not in given]),
        ("has no", [n for n in given if n not in names]),
    ):
        if wrong:
            raise LookupFailure(
                Reason.INVALID_KEY,
                f"store {store}: the key {what} column {shown(', '.join(wrong))}; its columns are {', '.join(names)}",
            )
    document = {}
    for each in columns:
        try:
            document[each.name] = _value(each.type, _unless_typed_null(each.type, given[each.name]))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise LookupFailure(
                Reason.INVALID_KEY, f"store {store}: column {each.name} is a {each.type}: {error or 'it is none'}"
            ) from None
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Spark's JSON (Jackson) writes controls with capitals.
    return _ESCAPE.sub(lambda each: each[0] if each[1][0] != "u" else "\\u" + each[1][1:].upper(), text)


def columns_of_text(text: str) -> dict[str, Any]:
    """Return the columns that a text names: a JSON object, or `user=ann&at=2026-11-27T10:00:00Z`.

    Raises:
        LookupFailure: INVALID_KEY: it is neither.

    """
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text, parse_float=Decimal, object_pairs_hook=_each_once))
        except (ValueError, RecursionError) as error:
            raise LookupFailure(Reason.INVALID_KEY, f"the columns {shown(text)} are no JSON object: {error}") from None
    return columns_of_texts(text.split("&"))


def columns_of_texts(texts: Sequence[str]) -> dict[str, Any]:
    """Return the columns that are given by a text each, `NAME=VALUE`.

    Raises:
        LookupFailure: INVALID_KEY: one is something else, or there twice.

    """
    try:
        return _each_once([column_of_text(each) for each in texts])
    except ValueError as error:
        raise LookupFailure(Reason.INVALID_KEY, str(error)) from None


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the column {shown(twice)} is given twice")
    return found


def column_of_text(text: str) -> tuple[str, str]:
    """Return name and value of `NAME=VALUE`.

    Raises:
        LookupFailure: INVALID_KEY: it is something else.

    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise LookupFailure(Reason.INVALID_KEY, f"the column {shown(text)} must be NAME=VALUE, as in user=ann")
    return name, value


def can_be_named(kind: str) -> bool:
    """Return whether a column of this type can be given: all programs write each of its values as the same text.

    Fractions have several: Java's depend on its version. Maps, intervals and the like are given with the whole key.
    """
    try:
        name, parts = _parsed(kind)
    except ValueError:
        return False
    if name in {"struct", "array"}:
        return all(can_be_named(part) for _, part in parts)
    return name in _READ


def _unless_typed_null(kind: str, given: Any) -> Any:  # noqa: ANN401 - as above
    """Return the value; null can be typed as `null`, but not in a column of texts, where that is a text."""
    return None if isinstance(given, str) and given == "null" and kind != "string" else given


def _value(kind: str, given: Any) -> Any:  # noqa: ANN401 - as above
    """Return a value as the key's JSON has it."""
    if given is None:
        return None
    name, parts = _parsed(kind)
    if name in {"struct", "array"}:
        return _nested(name, parts, json.loads(given, parse_float=Decimal) if isinstance(given, str) else given)
    read = _READ.get(name)
    if read is None:
        raise ValueError("such a column can't be given alone: give the whole key, as its writer has written it")
    return read(kind, given)


def _nested(name: str, parts: Sequence[tuple[str, str]], given: Any) -> Any:  # noqa: ANN401 - as above
    if name == "array":
        if not isinstance(given, list | tuple):
            raise ValueError("give a list")
        return [_value(parts[0][1], each) for each in given]
    if not isinstance(given, Mapping) or set(given) != {field for field, _ in parts}:
        raise ValueError(f"give an object with {', '.join(field for field, _ in parts)}")
    return {field: _value(part, given[field]) for field, part in parts}


def _parsed(kind: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a type's name, and the names and types of a struct's fields, or the type of an array's elements.

    Raises:
        ValueError: it can't be read.

    """
    name, opened, inner = kind.partition("<")
    if not opened:
        return kind.partition("(")[0], []
    if not inner.endswith(">"):
        raise ValueError(f"the type {kind} can't be read")
    parts = _split(inner[:-1])
    if name == "array":
        return name, [("", inner[:-1])]
    fields = [part.partition(":") for part in parts]
    return name, [(field, part) for field, _, part in fields]


def _split(inner: str) -> list[str]:
    """Return the parts between the commas that are in no brackets."""
    parts, depth = [""], 0
    for sign in inner:
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _integer(kind: str, given: Any) -> int:  # noqa: ANN401 - as above
    if isinstance(given, str):
        if not _NUMBER.fullmatch(given):
            raise ValueError(f"{shown(given)} is no whole number, as -5")
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise TypeError(f"give a whole number, not a {type(given).__name__}")
    number = int(given)
    if not -(1 << (_INTEGRAL[kind] - 1)) <= number < 1 << (_INTEGRAL[kind] - 1):
        raise ValueError(f"{number} is beyond its {_INTEGRAL[kind]} bits")
    return number


def _decimal(kind: str, given: Any) -> str:  # noqa: ANN401 - as above
    if isinstance(given, bool | float) or not isinstance(given, str | Integral | Decimal):
        raise TypeError(f"give a Decimal, a whole number or text, not a {type(given).__name__}")
    if isinstance(given, str) and not _PLAIN.fullmatch(given):
        raise ValueError(f"{shown(given)} is no decimal, as 46.50")
    declared = _DECIMAL.fullmatch(kind)
    precision, scale = (int(each) for each in declared.groups()) if declared else (38, 0)
    with localcontext() as context:
        context.prec = 2 * precision + 2
        try:
            number = Decimal(int(given) if isinstance(given, Integral) else given)
            exact = number.quantize(Decimal(1).scaleb(-scale))
        except InvalidOperation:
            raise ValueError(f"{shown(str(given))} has more digits than it") from None
        if not number.is_finite() or exact != number or len(exact.as_tuple().digits) > precision:
            raise ValueError(f"{shown(str(given))} has more digits than it")
    return f"{abs(exact) if exact == 0 else exact:f}"


def _timestamp(kind: str, given: Any) -> str:  # noqa: ANN401 - as above
    at = _read_time(given)
    if kind == "timestamp_ntz":
        if at.tzinfo is not None:
            raise ValueError("it has no zone: leave that out, as in 2026-11-27T10:00:00.5")
        return at.isoformat(timespec="microseconds")
    if at.tzinfo is None:
        raise ValueError("say its zone, as in 2026-11-27T10:00:00.5Z or …+01:00")
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _read_time(given: Any) -> datetime:  # noqa: ANN401 - as above
    if isinstance(given, datetime):
        if getattr(given, "nanosecond", 0):  # pandas' times have them
            raise ValueError(f"{given} has nanoseconds; Spark's times have microseconds")
        return given
    if not isinstance(given, str):
        raise TypeError(f"give a datetime or text, not a {type(given).__name__}")
    if _FAR.fullmatch(given):
        raise ValueError("give the whole key: years before 1 and after 9999 can't be given alone")
    if not _TIME.fullmatch(given):
        raise ValueError(f"{shown(given)} is no time, as 2026-11-27T10:00:00.123456Z")
    try:
        # This Python reads three digits of a second, or six.
        padded = _FRACTION.sub(lambda each: each[1].ljust(7, "0"), given)
        return datetime.fromisoformat(padded)
    except ValueError:
        raise ValueError(f"{shown(given)} is no time, as 2026-11-27T10:00:00.123456Z") from None


def _date(_kind: str, given: Any) -> str:  # noqa: ANN401 - as above
    if isinstance(given, date) and not isinstance(given, datetime):
        return given.isoformat()
    if not isinstance(given, str):
        raise TypeError(f"give a date or text, not a {type(given).__name__}")
    try:
        found = date.fromisoformat(given).isoformat()
    except ValueError:
        found = None
    if found != given:
        raise ValueError(f"{shown(given)} is no date, as 2026-11-27")
    return found


def _boolean(_kind: str, given: Any) -> bool:  # noqa: ANN401 - as above
    if isinstance(given, bool):
        return given
    if given in {"true", "false"}:
        return bool(given == "true")
    raise ValueError(f"{shown(str(given))} is neither true nor false")


def _binary(_kind: str, given: Any) -> str:  # noqa: ANN401 - as above
    if isinstance(given, bytes | bytearray | memoryview):
        return base64.b64encode(given).decode()
    if not isinstance(given, str):
        raise TypeError(f"give bytes or text, not a {type(given).__name__}")
    try:
        # Base64 itself may begin with 0x, but has no colon.
        data = bytes.fromhex(given[4:]) if given.startswith("hex:") else base64.b64decode(given, validate=True)
    except (ValueError, binascii.Error):
        raise ValueError(f"{shown(given)} is neither base64 nor hex, as hex:00ff") from None
    return base64.b64encode(data).decode()


def _text(_kind: str, given: Any) -> str:  # noqa: ANN401 - as above
    r"""Return a text in its one form: \xHH for bytes that are no UTF-8, and only for them."""
    if isinstance(given, bytes | bytearray):
        data = bytes(given)
    elif isinstance(given, str):
        data = _ESCAPED.sub(_unescaped, given).encode("utf-8", "surrogateescape")
    else:
        raise TypeError(f"give text, not a {type(given).__name__}")
    text = _LOOKS_ESCAPED.sub(r"\\x5C", data.decode("utf-8", "surrogateescape"))
    return _UNREADABLE.sub(lambda each: f"\\x{ord(each[0]) - 0xDC00:02X}", text)


def _unescaped(found: re.Match[str]) -> str:
    byte = int(found[1], 16)
    return chr(byte if byte < _ASCII else _SURROGATES + byte)


_READ: Final[Mapping[str, Callable[[str, Any], Any]]] = MappingProxyType(
    {
        **dict.fromkeys(_INTEGRAL, _integer),
        "decimal": _decimal,
        "timestamp": _timestamp,
        "timestamp_ntz": _timestamp,
        "date": _date,
        "boolean": _boolean,
        "binary": _binary,
        "string": _text,
    }
)
