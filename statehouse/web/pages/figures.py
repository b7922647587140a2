"""Numbers as people read them. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from statehouse.client.answers import KeyLike, StoreValue

UNKNOWN: Final = "–"  # noqa: RUF001 - a dash
VALUE_MAX: Final = 2_000
"""Characters of a value that a page shows."""

Number = TypeVar("Number", int, float)


def larger(one: Number | None, other: Number | None) -> Number | None:
    """Return the larger of two numbers, or the one that is known."""
    return max((each for each in (one, other) if each is not None), default=None)


def number(value: float | None) -> str:
    """Return a whole number with separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a number per second: below a thousand with a decimal, and what is hardly anything not as nothing."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:,.1f}" if 0 < value < 1_000 and value != int(value) else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """Return a share as percents; 100 % only if it is all."""
    return UNKNOWN if share is None else f"{min(share, 0.999 if share < 1 else 1.0) * 100:.1f} %"


def duration(ms: float | None) -> str:
    """Return a time in the unit that people would use."""
    if ms is None:
        return UNKNOWN
    if ms < 0:
        return "−" + duration(-ms)  # noqa: RUF001 - a minus
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(count: float | None) -> str:
    """Return bytes in the unit that people would use."""
    if count is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1_024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_024
    return f"{count:.1f} TiB"


def clock(epoch_ms: int | None) -> str:
    """Return a time of day, UTC."""
    return UNKNOWN if epoch_ms is None else f"{datetime.fromtimestamp(epoch_ms / 1_000, UTC):%H:%M:%S}"


def instant(epoch_ms: int | None) -> str:
    """Return date and time, UTC; a time that no calendar has stays a number."""
    if epoch_ms is None:
        return UNKNOWN
    try:
        return f"{datetime.fromtimestamp(epoch_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{epoch_ms} ms"


def key_text(key: KeyLike) -> str:
    """Return a key as text; bytes in hexadecimal."""
    return f"0x{key.hex()}" if isinstance(key, bytes) else str(key)


def value_text(value: StoreValue) -> str:
    """Return a value as text, its beginning if it is long."""
    if isinstance(value, bytes):
        text = f"0x{value[:VALUE_MAX].hex()}"
    elif isinstance(value, str):
        text = value
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_MAX else f"{text[:VALUE_MAX]}… ({len(text):,} characters)"


@dataclass(frozen=True, slots=True)
class Folded:
    """A JSON document for people: what stands there while it is folded, and the whole with indents."""

    summary: str
    indented: str


def folded(text: str) -> Folded | None:
    """Return a text that is an object or a list of JSON, as this product writes it, with indents; None for any other.

    A text that would not read the same again stays as it is: 1.10 is not 1.1.
    """
    if not text.startswith(("{", "[")):
        return None
    try:
        value = json.loads(text)
        if not value or json.dumps(value, ensure_ascii=False) != text:
            return None
        indented = json.dumps(value, ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return None
    what = "field" if isinstance(value, dict) else "item"
    return Folded(f"{len(value):,} {what}{'' if len(value) == 1 else 's'}", indented)


FILTERS: Final = {
    "number": number,
    "rate": rate,
    "percent": percent,
    "duration": duration,
    "size": size,
    "clock": clock,
    "instant": instant,
}
