"""The OpenAPI document, made from the operations' declarations."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from statehouse.web.api.operations import OPERATIONS, Operation
from statehouse.web.api.parameters import Parameter
from statehouse.web.api.problems import MEDIA_TYPE, RETRY_AFTER_S
from statehouse.web.api.schemas import SCHEMAS, reference
from statehouse.web.api.watches import LAST_EVENT_ID

_PATH_PARAMETER: Final = re.compile(r"{(\w+)}")
_PATH_MEANINGS: Final = {
    "store": "The store's name.",
    "key": "The key, percent-encoded, as its serde writes it: text, a number, JSON, or hex bytes.",
    "query": "The query's name.",
}
_PROBLEMS: Final = {
    400: "The request is wrong; the reason says why.",
    401: "The caller isn't known.",
    403: "The caller may not do this.",
    404: "There is no such store.",
    421: "The server doesn't have this name: see http_allowed_hosts.",
    500: "A defect, a value that can't be shown, or the server's own rights.",
    503: f"The fleet can't answer now, or not within the bounds. Ask again after {RETRY_AFTER_S} s, or widen them.",
    504: "There was no answer in time.",
}
_OF_BODIES: Final = {413: "The body is too large.", 415: "The body is no JSON."}


@cache
def document() -> bytes:
    """Return the document (OpenAPI 3.1)."""
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    whole = {
        "openapi": "3.1.0",
        "info": {
            "title": "Statehouse",
            "version": version("statehouse"),
            "description": "Reads stores of a fleet. docs/http-api.md explains it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        # Empty: everybody may, where there are no rules.
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "responses": {str(status): _problem(meaning) for status, meaning in (_PROBLEMS | _OF_BODIES).items()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return json.dumps(whole, separators=(",", ":")).encode()


def _operation(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *map(_in_path, _PATH_PARAMETER.findall(operation.path)),
            *map(_in_query, operation.parameters),
            *([_LAST_EVENT_ID_HEADER] if operation.answer is None else []),
        ],
        "responses": _responses(operation),
    }
    if operation.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": reference(operation.body)}},
        }
    return found


def _in_path(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _PATH_MEANINGS[name],
        "schema": {"type": "string", "minLength": 1},
    }


def _in_query(parameter: Parameter) -> dict[str, Any]:
    schema = {"type": "array", "items": parameter.schema} if parameter.repeated else parameter.schema
    return {"name": parameter.name, "in": "query", "description": parameter.meaning, "schema": schema}


_LAST_EVENT_ID_HEADER: Final = {
    "name": LAST_EVENT_ID.title(),
    "in": "header",
    "description": "The id of the last event of an earlier watch of the same keys: go on after it.",
    "schema": {"type": "string"},
}


def _responses(operation: Operation) -> dict[str, Any]:
    if operation.answer is None:
        content: dict[str, Any] = {"text/event-stream": {"schema": reference("Event")}}
    else:
        content = {"application/json": {"schema": reference(operation.answer)}}
    answered: dict[str, Any] = {"description": operation.summary, "content": content}
    if operation.links:
        answered["links"] = operation.links
    statuses = [*_PROBLEMS, *(_OF_BODIES if operation.body is not None else ())]
    found = {"200": answered} | {str(each): {"$ref": f"#/components/responses/{each}"} for each in statuses}
    if operation.may_be_absent:
        found["304"] = {"description": "The value is the one whose ETag the caller has (If-None-Match)."}
        found["404"] = {
            "description": "With found: the proof that the key isn't there. Without: there is no such store.",
            "content": {MEDIA_TYPE: {"schema": {"anyOf": [reference("Absent"), reference("Problem")]}}},
        }
    return found


def _problem(meaning: str) -> dict[str, Any]:
    return {"description": meaning, "content": {MEDIA_TYPE: {"schema": reference("Problem")}}}
