"""JSON schemas of the API's bodies, by name. Pure. Fields that aren't named here may come with later versions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from statehouse.client.answers import Explanation, Host, Location, Stamp, Store
from statehouse.contract.moments import MomentToken
from statehouse.errors import Reason
from statehouse.web.api.parameters import BATCH_KEYS_MAX
from statehouse.web.api.problems import NO_SUCH_KEY

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_INTEGER: Final[Schema] = {"type": "integer"}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
_MAYBE_INTEGER: Final[Schema] = {"type": ["integer", "null"]}
_SCALARS: Final[Mapping[type, Schema]] = {
    str: _TEXT,
    int: _INTEGER,
    bool: _BOOLEAN,
    float: {"type": "number"},
    MomentToken: _TEXT,
}


def reference(name: str) -> Schema:
    """Return a reference to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: Schema, optional: Schema | None = None, description: str = "") -> Schema:
    found: Schema = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": sorted(required),
    }
    return {**found, "description": description} if description else found


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _page(name: str, item: Schema) -> Schema:
    return _object(
        {
            name: _list(item),
            "next_page_token": _MAYBE_TEXT,
            "replicas": _list(reference("Stamp")),
            "token": _TEXT,
            "moment": _MAYBE_TEXT,
        },
        description="A page. next_page_token is null on the last one.",
    )


def _key_page(name: str, item: Schema, **more: Schema) -> Schema:
    return _object(
        {
            name: _list(item),
            "next_page_token": _MAYBE_TEXT,
            "replica": reference("Stamp"),
            "token": _TEXT,
            "moment": _MAYBE_TEXT,
            **more,
        },
        description="A page. next_page_token is null on the last one.",
    )


def _fields(cls: type, but: Collection[str] = ()) -> Schema:
    """Return the schemas of a data class' fields: of those that the client's answers have, bodies have the same."""
    return {name: _of(kind) for name, kind in get_type_hints(cls).items() if name not in but}


def _of(kind: Any) -> Schema:  # noqa: ANN401 - a type, or what an annotation says instead
    if isinstance(kind, UnionType):
        (one,) = (_of(each) for each in kind.__args__ if each is not NoneType)
        return {"type": [one["type"], "null"]} if one.keys() == {"type"} else {"anyOf": [one, {"type": "null"}]}
    if get_origin(kind) is tuple:
        return _list(_of(get_args(kind)[0]))
    if kind in (Host, Location):
        return reference(kind.__name__)
    return _SCALARS[kind] if kind in _SCALARS else _object(_fields(kind))


_STAMP: Final = _fields(Stamp)
_ABOUT_KEY: Final[Schema] = {"store": _TEXT, "key": reference("Key"), "token": _TEXT, **_STAMP}
_ANSWER: Final[Schema] = {
    "found": {"const": True},
    "value": reference("Value"),
    "timestamp_ms": _MAYBE_INTEGER,
    **_ABOUT_KEY,
}
_SPAN: Final[Schema] = {
    "start_ms": _INTEGER,
    "end_ms": _INTEGER,
    "value": reference("Value"),
    "timestamp_ms": _MAYBE_INTEGER,
}
_PROBLEM: Final[Schema] = {
    "type": {"type": "string", "format": "uri"},
    "title": _TEXT,
    "status": _INTEGER,
    "reason": _TEXT,
    "detail": _TEXT,
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Key": {
        "description": "A key: text as its serde writes it; an object with the bytes if they were asked for, or don't "
        "decode.",
        "anyOf": [_TEXT, reference("Bytes")],
    },
    "Value": {"description": "Any JSON. Bytes are an object with the member base64."},
    "Bytes": _object({"base64": _TEXT}),
    "Host": _object(_fields(Host)),
    "Stamp": _object(_STAMP, description="Who answered for a partition, and how fresh that copy was. null: unknown."),
    "Answer": _object(_ANSWER, description="A value, and who answered."),
    "Absent": _object(
        {**_PROBLEM, "reason": {"const": NO_SUCH_KEY}, "found": {"const": False}, **_ABOUT_KEY},
        description="The proof that a key isn't there.",
    ),
    "Problem": _object(
        _PROBLEM,
        {"remedy": _TEXT, "metadata": {"type": "object"}, "candidates": _list({"type": "object"})},
        description="A failure (RFC 9457). Its reason is one of docs/errors.md: "
        + ", ".join(sorted(reason.name for reason in Reason)),
    ),
    "Store": _object(_fields(Store, but={"key_columns"})),
    "Stores": _object({"epoch": _INTEGER, "stores": _list(reference("Store"))}),
    "Keys": {
        **_object({"keys": {**_list(_TEXT), "maxItems": BATCH_KEYS_MAX}}),
        "additionalProperties": False,
    },
    "Batch": _object(
        {
            "results": _list(_object({"status": _INTEGER, "store": _TEXT, "key": reference("Key")})),
            "token": _TEXT,
            "moment": _MAYBE_TEXT,
        },
        description="The outcomes in the order of the keys: an Answer, Absent or Problem, each with its status.",
    ),
    "Entries": _page(
        "entries",
        _object({"key": reference("Key"), "value": reference("Value"), "timestamp_ms": _MAYBE_INTEGER}),
    ),
    "KeyedWindows": _page("windows", _object({"key": reference("Key"), **_SPAN, "sequence": _INTEGER})),
    "KeyedSessions": _page("sessions", _object({"key": reference("Key"), **_SPAN})),
    "Windows": _key_page("windows", _object(_SPAN)),
    "Sessions": _key_page("sessions", _object(_SPAN)),
    "History": _key_page(
        "versions",
        _object({"value": reference("Value"), "valid_from_ms": _INTEGER, "valid_to_ms": _MAYBE_INTEGER}),
        history_start_ms=_INTEGER,
    ),
    "Count": _object(
        {
            "count": _INTEGER,
            "exact": _BOOLEAN,
            "replicas": _list(reference("Stamp")),
            "token": _TEXT,
            "moment": _MAYBE_TEXT,
        },
    ),
    "Arguments": {"type": "object", "description": "The query's arguments by name."},
    "QueryAnswer": _object({"result": reference("Value"), "replica": reference("Stamp"), "token": _TEXT}),
    "Location": _object(_fields(Location)),
    "Explanation": _object(
        {
            "answer": {"anyOf": [reference("Answer"), reference("Absent"), {"type": "null"}]},
            "failure": {"anyOf": [reference("Problem"), {"type": "null"}]},
            **_fields(Explanation, but={"answer", "failure"}),
        },
    ),
    "Token": _object({"token": _TEXT}),
    "Event": _object(
        {"event": {"enum": ["current", "change", "gap", "moment", "problem"]}, "data": _TEXT},
        {"id": _TEXT},
        "An event. Its data is JSON: values, changes, a moment's mark, or a Problem. Its id says where to go on.",
    ),
}
