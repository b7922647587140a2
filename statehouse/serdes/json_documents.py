"""Which bytes are a JSON document: the one judge that writers, nodes, the HTTP API and the command line ask. Pure.

It is JSON in UTF-8 as RFC 8259 has it, without what some readers can't take: numbers beyond 64-bit floats, halves of
characters, and documents that are nested too deep for the wire. `docs/serdes.md` has the table.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

MESSAGES_DEEP: Final = 90
"""How deep protobuf's messages of a document may be: its readers refuse more than 100, and a value is within up to ten
others. An object is three deep, a list two: thirty objects in each other can be shown, or 45 lists."""
TOO_DEEP: Final = "it is nested too deep to be shown"
_FEWEST_TOO_DEEP: Final = MESSAGES_DEEP // 3


def read_json(data: bytes) -> Any:  # noqa: ANN401 - as json.loads gives it
    """Return a document as Python's json module does. If an object has a name twice, the last value counts.

    Raises:
        ValueError: the bytes are none, with the reason.

    """
    text = data.decode()
    try:
        document = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    # Most documents can have neither, by their text, and need no further look.
    if "\\u" in text or text.count("{") + text.count("[") >= _FEWEST_TOO_DEEP:
        _check(document, MESSAGES_DEEP)
    return document


def named(number: float) -> float | str:
    """Return a number as JSON can have it: NaN, Infinity and -Infinity become text."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _check(document: Any, room: int) -> None:  # noqa: ANN401 - as above
    if room < 0:
        raise ValueError(TOO_DEEP)
    match document:
        case str():
            _check_text(document)
        case list():
            for item in document:
                _check(item, room - 2)
        case dict():
            for name, item in document.items():
                _check_text(name)
                _check(item, room - 3)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text has half of a surrogate pair, which is no character") from error


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large for a 64-bit float")
    return number


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
