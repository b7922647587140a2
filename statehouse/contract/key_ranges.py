"""Which serialized keys satisfy comparisons of a key, as ranges in a store's order. Pure.

A store is in unsigned byte order of its serialized keys. Text and bytes sort alike in it. Numbers don't: those below
zero stand behind the others, and doubles below zero in the opposite order. So one comparison of a number may take
several ranges.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from types import MappingProxyType
from typing import Final

from statehouse.contract.paging import KeyRange, after_prefix
from statehouse.errors import shown
from statehouse.serdes import SERDES

KeyValue = str | bytes | int | float
"""A key as the column of keys has it, by the key serde: text, bytes, an integer or a float."""

_LONG: Final = struct.Struct(">q")
_DOUBLE: Final = struct.Struct(">d")
_FIRST, _LAST = -(2**63), 2**63 - 1
_INFINITY: Final = 0x7FF0_0000_0000_0000
_NUMBERS: Final = (-1 - _INFINITY, _INFINITY)
_NOT_A_NUMBER: Final = ((_FIRST, -2 - _INFINITY), (_INFINITY + 1, _LAST))
_EVERY_KEY: Final = (KeyRange(),)

Places = tuple[int, int]
"""Numbers from the first to the last, by their places in the numbers' order."""


class Operator(StrEnum):
    """How a key is compared."""

    EQUAL = "="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    PREFIX = "prefix"
    ONE_OF = "in"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of the key; `value` is a tuple of values for ONE_OF, otherwise one."""

    operator: Operator
    value: KeyValue | tuple[KeyValue, ...]


def key_value(serde: str, text: str) -> KeyValue:
    """Return a key that is written as text, as its column has it.

    Raises:
        ValueError: the text is not of the serde's type, or the serde has no text form.

    """
    read = _FROM_TEXT.get(serde)
    if read is None:
        raise ValueError(f"keys of the serde {serde!r} can't be compared")
    return read(text)


def ranges_of(serde: str, comparisons: Iterable[Comparison]) -> tuple[KeyRange, ...]:
    """Return the ranges of the serialized keys that satisfy all comparisons: in order, and without a key in common.

    Comparisons are Spark's: -0.0 equals 0.0, NaN equals NaN and is greater than all numbers. Ranges of numbers may also
    have keys that are no numbers, because they have another length.

    Raises:
        ValueError: keys of this serde can't be compared so, or a value isn't of its type.

    """
    satisfying = _SATISFYING.get(serde)
    if satisfying is None:
        raise ValueError(f"keys of the serde {serde!r} can't be compared")
    return reduce(common_ranges, (_ranges(satisfying, each) for each in comparisons), _EVERY_KEY)


def _ranges(satisfying: _Satisfying, comparison: Comparison) -> tuple[KeyRange, ...]:
    value = comparison.value
    if comparison.operator is not Operator.ONE_OF:
        if isinstance(value, tuple):
            raise _unlike(value, "one value")
        return tuple(satisfying(comparison.operator, value))
    if not isinstance(value, tuple):
        raise _unlike(value, "a tuple of values")
    found = {(each.start, each.stop): each for one in value for each in satisfying(Operator.EQUAL, one)}
    return tuple(sorted(found.values(), key=lambda each: each.start))


def _unlike(value: object, wanted: str) -> ValueError:
    return ValueError(f"a key can't be compared with {shown(str(value))}: it is not {wanted}")


def common_ranges(some: Sequence[KeyRange], others: Sequence[KeyRange]) -> tuple[KeyRange, ...]:
    """Return the ranges of the keys that are in both."""
    found: list[KeyRange] = []
    at = other_at = 0
    while at < len(some) and other_at < len(others):
        one, other = some[at], others[other_at]
        start = max(one.start, other.start)
        stops = [stop for stop in (one.stop, other.stop) if stop is not None]
        stop = min(stops) if stops else None
        if stop is None or start < stop:
            found.append(KeyRange(start, stop))
        if one.stop is not None and (other.stop is None or one.stop <= other.stop):
            at += 1
        else:
            other_at += 1
    return tuple(found)


_Satisfying = Callable[[Operator, KeyValue], Iterable[KeyRange]]


def _of_bytes(operator: Operator, key: bytes) -> list[KeyRange]:
    """Return the range of the keys that compare so with a serialized key. `key + NUL` is the next key after it."""
    after = key + b"\0"
    match operator:
        case Operator.EQUAL:
            return [KeyRange(key, after)]
        case Operator.LESS:
            return [KeyRange(b"", key)] if key else []
        case Operator.AT_MOST:
            return [KeyRange(b"", after)]
        case Operator.GREATER:
            return [KeyRange(after)]
        case Operator.AT_LEAST:
            return [KeyRange(key)]
        case _:
            return [KeyRange(key, after_prefix(key))]


def _text(operator: Operator, value: KeyValue) -> list[KeyRange]:
    if not isinstance(value, str):
        raise _unlike(value, "text")
    return _of_bytes(operator, value.encode())


def _binary(operator: Operator, value: KeyValue) -> list[KeyRange]:
    if not isinstance(value, bytes):
        raise _unlike(value, "bytes")
    return _of_bytes(operator, value)


def _long(operator: Operator, value: KeyValue) -> list[KeyRange]:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unlike(value, "an integer")
    places = _compared(operator, (value, value), (_FIRST, _LAST))
    first, last = max(places[0], _FIRST), min(places[1], _LAST)
    found = []
    if last >= max(first, 0):
        found.append(_between(_LONG.pack(max(first, 0)), _LONG.pack(last)))
    if first <= min(last, -1):
        found.append(_between(_LONG.pack(first), _LONG.pack(min(last, -1))))
    return found


def _double(operator: Operator, value: KeyValue) -> list[KeyRange]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unlike(value, "a number")
    number = float(value)
    places: list[Places]
    if math.isnan(number):
        places = _places_beside_nan(operator)
    else:
        place = _place(number)
        equals = (-1, 0) if number == 0 else (place, place)
        places = [_compared(operator, equals, _NUMBERS)]
        if operator in {Operator.GREATER, Operator.AT_LEAST}:
            places += _NOT_A_NUMBER
    found = []
    for first, last in places:
        if last >= max(first, 0):
            found.append(_between(_LONG.pack(max(first, 0)), _LONG.pack(last)))
        if first <= min(last, -1):  # the farther below zero, the larger as bytes
            found.append(_between(_negative(min(last, -1)), _negative(first)))
    return sorted(found, key=lambda each: each.start)


def _places_beside_nan(operator: Operator) -> list[Places]:
    match operator:
        case Operator.EQUAL | Operator.AT_LEAST:
            return [*_NOT_A_NUMBER]
        case Operator.LESS:
            return [_NUMBERS]
        case Operator.AT_MOST:
            return [(_FIRST, _LAST)]
        case Operator.GREATER:
            return []
        case _:
            raise ValueError("numbers have no prefix")


def _compared(operator: Operator, equal: Places, every: Places) -> Places:
    """Return the places that compare so with those that equal the value."""
    match operator:
        case Operator.EQUAL:
            return equal
        case Operator.LESS:
            return every[0], equal[0] - 1
        case Operator.AT_MOST:
            return every[0], equal[1]
        case Operator.GREATER:
            return equal[1] + 1, every[1]
        case Operator.AT_LEAST:
            return equal[0], every[1]
        case _:
            raise ValueError("numbers have no prefix")


def _place(number: float) -> int:
    """Return a double's place in the order of doubles; 0.0 has 0, and -0.0 has -1."""
    bits: int = _LONG.unpack(_DOUBLE.pack(number))[0]
    return bits if bits >= 0 else -1 - (bits - _FIRST)


def _negative(place: int) -> bytes:
    """Return the bytes of a double below zero, by its place."""
    return _LONG.pack(_FIRST + (-1 - place))


def _between(first: bytes, last: bytes) -> KeyRange:
    return KeyRange(first, last + b"\0")


_SATISFYING: Final[Mapping[str, _Satisfying]] = MappingProxyType(
    {"string": _text, "json": _text, "bytes": _binary, "long": _long, "double": _double}
)
_FROM_TEXT: Final[Mapping[str, Callable[[str], KeyValue]]] = MappingProxyType(
    {
        "string": str,
        "json": str,
        "bytes": SERDES["bytes"].parse,
        "long": lambda text: int(_LONG.unpack(SERDES["long"].parse(text))[0]),
        "double": lambda text: float(_DOUBLE.unpack(SERDES["double"].parse(text))[0]),
    }
)
