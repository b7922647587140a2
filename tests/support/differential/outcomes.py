"""What a read came to, in the one form that all doors are compared in: as JSON has it. Pure."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from statehouse.client import Answer
from statehouse.errors import LookupFailure
from statehouse.serdes import from_json_value
from statehouse.v1 import query_service_pb2, types_pb2

ABSENT: Final = ("absent",)
_FIELDS: Final = ("key", "start_ms", "end_ms", "value", "timestamp_ms", "valid_from_ms", "valid_to_ms")
_WITHIN: Final = ("window", "session")
_EXACT_TO: Final = 2**53


@dataclass(frozen=True)
class Outcome:
    """`said`: found with its value and time, absent, refused with a reason; of a batch or a page, each of them.

    `status`: the door's own.
    """

    said: Any
    status: str = ""


def in_base64(data: bytes) -> dict[str, str]:
    """Return bytes as the HTTP API has them."""
    return {"base64": base64.urlsafe_b64encode(data).decode()}


def shown(value: Any) -> Any:
    """Return a value of Python as JSON has it: bytes in base64, floats that JSON lacks by their names."""
    match value:
        case bytes():
            return in_base64(value)
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case _:
            return value


def of_value(value: types_pb2.Value) -> Any:
    """Return the value of an answer."""
    match value.WhichOneof("value"):
        case "json":
            return from_json_value(value.json)
        case "json_text":
            return json.loads(value.json_text)
        case None:
            return None
        case name:
            return shown(getattr(value, name))


def of_get(response: query_service_pb2.GetResponse | query_service_pb2.GetAsOfResponse) -> Any:
    """Return a lookup's answer."""
    return ("found", of_value(response.value), response.timestamp_ms) if response.found else ABSENT


def of_answer(answer: Answer | LookupFailure) -> Any:
    """Return the client's answer."""
    if isinstance(answer, LookupFailure):
        return refused(answer)
    return ("found", shown(answer.value), answer.timestamp_ms) if answer.found else ABSENT


def of_message(item: Any) -> dict[str, Any]:
    """Return an entry, window, session or version of a page."""
    found: dict[str, Any] = {}
    for field in item.DESCRIPTOR.fields:
        if field.name in _WITHIN:
            found |= of_message(getattr(item, field.name))
        elif field.name == "key":
            found["key"] = shown(getattr(item.key, item.key.WhichOneof("key")))
        elif field.name == "value":
            found["value"] = of_value(item.value)
        elif field.name in _FIELDS:
            found[field.name] = getattr(item, field.name) if item.HasField(field.name) else None
    return found


def of_object(item: Any) -> dict[str, Any]:
    """Return the client's entry, window, session or version."""
    return {name: shown(getattr(item, name)) for name in _FIELDS if hasattr(item, name)}


def of_body(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry, window, session or version of the HTTP API."""
    return {name: item[name] for name in _FIELDS if name in item}


def refused(failure: LookupFailure) -> tuple[str, str]:
    """Return a failure."""
    return ("refused", failure.reason.name)


def form(said: Any, *, is_exact: bool) -> str:
    """Return what a door said in a form that compares: 1 and 1.0 are the same number, and true is none.

    Unless `is_exact`, an integer beyond 2^53 is its text, as protobuf's JSON has it.
    """
    return json.dumps(_plain(said, is_exact=is_exact), sort_keys=True, allow_nan=False)


def _plain(said: Any, *, is_exact: bool) -> Any:
    match said:
        case bool():
            return said
        case float() if said.is_integer() and abs(said) <= _EXACT_TO:
            return int(said)
        case int() if abs(said) > _EXACT_TO and not is_exact:
            return str(said)
        case list() | tuple():
            return [_plain(each, is_exact=is_exact) for each in said]
        case dict():
            return {name: _plain(each, is_exact=is_exact) for name, each in said.items()}
        case _:
            return said
