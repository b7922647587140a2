"""The operations of the API, each declared once: routes, checks of parameters and the OpenAPI document come from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from statehouse.web.api import bodies, handlers
from statehouse.web.api.handlers import ApiHandler
from statehouse.web.api.parameters import (
    AS_OF,
    BASE64_KEYS,
    BOUNDS,
    COLUMNS,
    KEY_RANGE,
    PAGES,
    PARTITION,
    RAW,
    REVERSE,
    TIMEOUT,
    TIMES,
    Parameter,
    switch,
    text,
)
from statehouse.web.api.watches import watch

_STORE: Final = "/v1/stores/{store}"
_KEY: Final = f"{_STORE}/keys/{{key}}"
_READ: Final = (*BOUNDS, TIMEOUT)
_KEYED: Final = (BASE64_KEYS, COLUMNS, RAW, *_READ)
Link = Mapping[str, Any]
"""Where an answer leads: OpenAPI's Link Object."""
_LAST_EVENT_ID: Final = text(
    "last_event_id", "For those who can't send the header Last-Event-ID: the id of the last event of an earlier watch."
)
_BY_MOMENT: Final = switch("by_moment", 'Mark where each batch of the store\'s query ends, by an event "moment".')


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation.

    Attributes:
        call: the gRPC method that the caller must have the right to.
        answer: name of the answer's schema; None: server-sent events.
        body: name of the body's schema; None: it has none.
        may_be_absent: its answer may be the proof that the key isn't there.
        links: where its answer leads, by name.

    """

    name: str
    path: str
    summary: str
    call: str
    parameters: tuple[Parameter, ...]
    handle: ApiHandler
    answer: str | None
    body: str | None = None
    may_be_absent: bool = False
    links: Mapping[str, Link] | None = None

    @property
    def method(self) -> str:
        """HTTP's method."""
        return "GET" if self.body is None else "POST"


def _key_pages(name: str, path: str, summary: str, call: str, item_body: handlers.ItemBody, answer: str) -> Operation:
    return Operation(
        name,
        f"{_KEY}/{path}",
        summary,
        call,
        (*TIMES, REVERSE, *PAGES, *_KEYED),
        handlers.key_pages("versions" if path == "history" else path, item_body),
        answer,
        links=_next_page(name, "store", "key"),
    )


def _store_pages(
    name: str,
    path: str,
    summary: str,
    call: str,
    item_body: handlers.ItemBody,
    answer: str,
    *more: Parameter,
) -> Operation:
    return Operation(
        name,
        f"{_STORE}/{path}",
        summary,
        call,
        (*KEY_RANGE, *more, PARTITION, REVERSE, *PAGES, *_KEYED),
        handlers.store_pages(path, item_body),
        answer,
        links=_next_page(name, "store"),
    )


def _next_page(name: str, *path: str) -> dict[str, Link]:
    same = {each: f"$request.path.{each}" for each in path}
    return {"next": _link(name, {**same, "page_token": "$response.body#/next_page_token"})}


def _link(operation: str, parameters: Mapping[str, str]) -> Link:
    """Return a link to an operation, whose parameters are at these places."""
    return {"operationId": operation, "parameters": parameters}


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "listStores",
        "/v1/stores",
        "The stores of the newest assignment.",
        "ListStores",
        (TIMEOUT,),
        handlers.list_stores,
        "Stores",
        links={
            "store": _link("getStore", {"store": "$response.body#/stores/0/name"}),
            "scan": _link("scan", {"store": "$response.body#/stores/0/name"}),
        },
    ),
    Operation(
        "getStore",
        _STORE,
        "One store.",
        "ListStores",
        (TIMEOUT,),
        handlers.get_store,
        "Store",
        links={"scan": _link("scan", {"store": "$response.body#/name"})},
    ),
    Operation(
        "getKey",
        _KEY,
        "The value of a key. 404 with `found` is a proof: a replica that has restored the partition lacks the key.",
        "Get",
        (AS_OF, *_KEYED),
        handlers.get_key,
        "Answer",
        may_be_absent=True,
    ),
    Operation(
        "batch",
        f"{_STORE}/batch",
        "The values of several keys, each with an outcome of its own.",
        "BatchGet",
        _KEYED,
        handlers.batch,
        "Batch",
        body="Keys",
    ),
    _store_pages(
        "scan",
        "entries",
        "A page of entries, in unsigned byte order of the serialized keys.",
        "Scan",
        bodies.entry_body,
        "Entries",
        AS_OF,
    ),
    _store_pages(
        "scanWindows",
        "windows",
        "A page of windows of a range of keys, that start within a span of time.",
        "ScanWindows",
        bodies.keyed_window_body,
        "KeyedWindows",
        *TIMES,
    ),
    _store_pages(
        "scanSessions",
        "sessions",
        "A page of sessions of a range of keys, that overlap a span of time.",
        "ScanSessions",
        bodies.keyed_session_body,
        "KeyedSessions",
        *TIMES,
    ),
    Operation(
        "count",
        f"{_STORE}/count",
        "How many entries a store has: the engines' estimate, or exactly.",
        "Count",
        (switch("exact", "Count by a scan."), PARTITION, *_READ),
        handlers.count,
        "Count",
    ),
    _key_pages(
        "fetchWindows",
        "windows",
        "A page of a key's windows that start within a span of time, oldest first.",
        "FetchWindows",
        bodies.span_body,
        "Windows",
    ),
    _key_pages(
        "fetchSessions",
        "sessions",
        "A page of a key's sessions that overlap a span of time, oldest first.",
        "FetchSessions",
        bodies.span_body,
        "Sessions",
    ),
    _key_pages(
        "history",
        "history",
        "A page of the versions that a key of a versioned store had within a span of time, oldest first.",
        "GetHistory",
        bodies.version_body,
        "History",
    ),
    Operation(
        "queryStore",
        f"{_KEY}/queries/{{query}}",
        "The answer of a custom store to one of its own queries; its arguments are the body.",
        "QueryStore",
        (BASE64_KEYS, COLUMNS, *_READ),
        handlers.query_store,
        "QueryAnswer",
        body="Arguments",
    ),
    Operation(
        "locate",
        f"{_KEY}/locate",
        "Where a key lives, and for each replica whether a lookup within the bounds would use it.",
        "LocateKey",
        (BASE64_KEYS, COLUMNS, *_READ),
        handlers.locate,
        "Location",
    ),
    Operation(
        "explain",
        f"{_KEY}/explain",
        "A lookup, and each step of it. A failed one is an answer, too.",
        "ExplainGet",
        _KEYED,
        handlers.explain,
        "Explanation",
    ),
    Operation(
        "watchKey",
        f"{_KEY}/watch",
        "What a key holds now, then every change as it comes.",
        "Watch",
        (_LAST_EVENT_ID, _BY_MOMENT, PARTITION, *_KEYED),
        watch,
        None,
    ),
    Operation(
        "watch",
        f"{_STORE}/watch",
        "What a store, or the keys with a prefix, hold now, then every change as it comes.",
        "Watch",
        (KEY_RANGE[2], _LAST_EVENT_ID, _BY_MOMENT, PARTITION, *_KEYED),
        watch,
        None,
    ),
    Operation(
        "awaitInput",
        f"{_STORE}/await-input",
        "Waits until records of a store's inputs are processed; returns the token for reads that must see the results.",
        "AwaitInput",
        (text("record", "A record, as TOPIC:PARTITION:OFFSET.", repeated=True), TIMEOUT),
        handlers.await_input,
        "Token",
    ),
)
"""All of them."""
