"""The JSON text that stores hold: compact, UTF-8, one form for each number; pure."""

from __future__ import annotations

import json
import math
from typing import Final

# Larger doubles are whole numbers anyway, and shortest with an exponent.
_PLAIN_LIMIT: Final = 1e16
_AS_THEY_ARE: Final = frozenset({str, int, bool, type(None)})
# Made once: `json.dumps` makes a new encoder for each call with options.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def compact_json(value: object) -> str:
    """Return the JSON text without blanks; a whole double has no fraction (4000, not 4000.0).

    JSON has neither NaN nor infinities. With one the text is none, and the sink makes a dead letter of its row: one sum
    that has overflown must not end the query.
    """
    return _ENCODER.encode(_plain(value))


def _plain(value: object) -> object:
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < _PLAIN_LIMIT:
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
