"""What a read came to, in the one form that all doors are compared in: as JSON has it. Pure."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from typing import Any, Final

from statehouse.client import Answer, Entry
from statehouse.errors import LookupFailure
from statehouse.serdes import from_json_value
from statehouse.v1 import query_service_pb2, types_pb2

ABSENT: Final = ("absent",)


@dataclass(frozen=True)
class Outcome:
    """`said`: found with its value and time, absent, refused with a reason; of a batch or a page, each of them.

    `status`: the door's own; the same reason has the same one at each door of its kind.
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
    kind = value.WhichOneof("value")
    return shown(from_json_value(value.json) if kind == "json" else getattr(value, kind))


def of_key(key: types_pb2.Key) -> Any:
    """Return the key of an entry."""
    return shown(getattr(key, key.WhichOneof("key")))


def of_get(response: query_service_pb2.GetResponse) -> Any:
    """Return a lookup's answer."""
    return ("found", of_value(response.value), response.timestamp_ms) if response.found else ABSENT


def of_answer(answer: Answer | LookupFailure) -> Any:
    """Return the client's answer."""
    if isinstance(answer, LookupFailure):
        return refused(answer)
    return ("found", shown(answer.value), answer.timestamp_ms) if answer.found else ABSENT


def of_entry(entry: Entry) -> Any:
    """Return an entry of the client's page."""
    return (shown(entry.key), shown(entry.value), entry.timestamp_ms)


def refused(failure: LookupFailure) -> tuple[str, str]:
    """Return a failure."""
    return ("refused", failure.reason.name)


def of_problem(body: Any) -> tuple[str, str] | tuple[str]:
    """Return what a problem of the HTTP API says."""
    return ABSENT if body["reason"] == "NO_SUCH_KEY" else ("refused", body["reason"])


def form(said: Any) -> str:
    """Return what a door said in a form that compares: 1 and 1.0 are the same number, and true is none."""
    return json.dumps(_plain(said), sort_keys=True, allow_nan=False)


def _plain(said: Any) -> Any:
    match said:
        case float() if said.is_integer():
            return int(said)
        case list() | tuple():
            return [_plain(each) for each in said]
        case dict():
            return {name: _plain(each) for name, each in said.items()}
        case _:
            return said
