"""Outcomes of calls as text that can be kept and compared."""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import Message

from statehouse.errors import LookupFailure
from tests.conformance.subject import Node

_AGES: Final = ("staleness_ms", "processor_age_ms")
_MINUTE_MS: Final = 60_000
_AGE_IN_TEXT: Final = re.compile(r"(staleness|processor age) (\d+) ms")


async def outcome(node: Node, method: str, request: Message) -> tuple[dict[str, Any], Message | None]:
    """Make a call; return its outcome as JSON, and the answer if it is one.

    Ages are cut to minutes, as time goes on, and engines estimate in different ways.
    """
    try:
        answer = await node.answer(method, request)
    except LookupFailure as failure:
        return {"refused": _refused(failure)}, None
    shown = _cut(as_json(answer))
    if method == "Count" and not shown["exact"]:
        shown["count"] = "an estimate"
    return {"answer": shown}, answer


def as_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON, by the names of its fields."""
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def _refused(failure: LookupFailure) -> dict[str, Any]:
    text = _AGE_IN_TEXT.sub(lambda found: f"{found[1]} {_minutes(int(found[2]))} ms", failure.message)
    refused: dict[str, Any] = {"reason": failure.reason.name, "message": text}
    if failure.metadata:
        refused["metadata"] = failure.metadata
    if failure.route is not None:
        refused["route"] = as_json(failure.route)
    return refused


def _cut(shown: Any) -> Any:
    """Cut the ages in an answer."""
    if isinstance(shown, dict):
        return {
            name: str(_minutes(int(value)))
            if name in _AGES
            else _AGE_IN_TEXT.sub(lambda found: f"{found[1]} {_minutes(int(found[2]))} ms", value)
            if name == "message"
            else _cut(value)
            for name, value in shown.items()
        }
    return [_cut(each) for each in shown] if isinstance(shown, list) else shown


def _minutes(age_ms: int) -> int:
    return age_ms // _MINUTE_MS * _MINUTE_MS
