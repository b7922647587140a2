"""Keys as callers give them, in the form that requests have. Pure.

Text and bytes go as they are. A number becomes the text of the store's key serde, so only a caller that knows the serde
can write it. Nothing else is a key: Python would make bytes of many values, and a store doesn't have those, so the
answer would be a "not found" that proves nothing.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from statehouse.errors import LookupFailure, Reason, shown
from statehouse.keys.columns import KeyColumn, KeyColumns, key_text
from statehouse.v1 import types_pb2

_LONG, _DOUBLE = "long", "double"
_FITTING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "string": "a str",
        "json": "the JSON as a str, as its writer writes it",
        "bytes": "bytes",
        _LONG: "an int",
    }
)


@dataclass(frozen=True, slots=True)
class KeyForm:
    """How a store's keys are written: by which serde and, if they are made of columns, the columns."""

    store: str
    serde: str
    columns: Sequence[KeyColumn] = ()


def needs_serde(key: Any) -> bool:  # noqa: ANN401 - whatever a caller gives: that is looked at here
    """Return whether `to_key` must know the store's key serde.

    Raises:
        TypeError: no serde takes such a key.

    """
    if isinstance(key, str | bytes | bytearray | memoryview):
        return False
    if _is_integer(key) or _is_float(key) or isinstance(key, KeyColumns):
        return True
    raise TypeError(
        f"a key can't be of type {_name(key)}: give text as the store's key serde writes it, the serialized bytes, an "
        "int for a key serde long, a float for double, or KeyColumns for keys of several columns"
    )


def to_key(key: Any, store: KeyForm | None = None) -> types_pb2.Key:  # noqa: ANN401 - as above
    """Return a key's wire form: text for a str, a number and columns, raw for bytes.

    `store`: the form of the store's keys, if `needs_serde`.

    Raises:
        TypeError: keys of the serde aren't of the key's type.
        LookupFailure: INVALID_KEY, the serde has no such number, or the text is none.

    """
    if isinstance(key, str):
        return types_pb2.Key(text=_text(key))
    if not needs_serde(key):
        return types_pb2.Key(raw=bytes(key))
    form = store or KeyForm("", "")
    if isinstance(key, KeyColumns):
        return types_pb2.Key(text=key_text(form.store, form.columns, key.columns))
    serde = form.serde
    if serde == _LONG and _is_integer(key):
        return types_pb2.Key(text=_long(int(key)))
    if serde == _DOUBLE:
        return types_pb2.Key(text=repr(_exact(int(key)) if _is_integer(key) else _exact(key)))
    raise TypeError(
        f"keys of this store have the serde {serde}, which doesn't take type {_name(key)}: give "
        + _FITTING.get(serde, "the serialized bytes, or text as the serde writes it")
    )


def prefix_key(prefix: Any) -> types_pb2.Key:  # noqa: ANN401 - as above
    """Return the wire form of what keys begin with.

    Raises:
        TypeError: it is neither text nor bytes; numbers have no beginning.

    """
    if not isinstance(prefix, str | bytes | bytearray | memoryview):
        raise TypeError(f"a prefix can't be of type {_name(prefix)}: give text or bytes; numbers have no prefix")
    return to_key(prefix)


def _is_integer(key: object) -> bool:
    """Whether it is an integer of Python's or of numpy's.

    True and False are none, whatever Python says, and neither are numpy's durations, whatever numpy says.
    """
    return isinstance(key, numbers.Integral) and hasattr(key, "__index__") and not isinstance(key, bool)


def _is_float(key: object) -> bool:
    return isinstance(key, numbers.Real) and not isinstance(key, numbers.Rational)


def _long(number: int) -> str:
    if not -(2**63) <= number < 2**63:
        raise LookupFailure(Reason.INVALID_KEY, f"an integer of {number.bit_length()} bits is no key of serde long")
    return str(number)


def _exact(number: Any) -> float:  # noqa: ANN401 - an int, or a float of any width
    try:
        found = float(number)
    except OverflowError:
        found = None
    if found is None or (found != number and number == number):  # noqa: PLR0124 - NaN differs from itself
        what = f"an integer of {number.bit_length()} bits" if isinstance(number, int) else f"a {_name(number)}"
        raise LookupFailure(Reason.INVALID_KEY, f"{what} is no key of serde double: it would be rounded")
    return found


def _text(key: str) -> str:
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise LookupFailure(
            Reason.INVALID_KEY, f"the key {shown(key)} is no text: {error.reason}; give bytes"
        ) from None
    return key


def _name(key: object) -> str:
    return type(key).__qualname__
