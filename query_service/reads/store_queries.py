"""Which queries each kind of store has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from query_service.replicas.replica import StoreReplica
from query_service.stores.custom import CustomQueries
from query_service.stores.key_value import KeyValueStore
from query_service.stores.versioned import BeforeHistory
from query_service.stores.windows import TimedStore
from statehouse.contract.topology import KEY_VALUE, SESSION, VERSIONED, WINDOW
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import JsonValue, from_json_value
from statehouse.v1 import query_service_pb2

QUERIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        KEY_VALUE: ("Get", "BatchGet", "Scan", "Count"),
        WINDOW: ("FetchWindows", "ScanWindows", "Count"),
        SESSION: ("FetchSessions", "ScanSessions", "Count"),
        VERSIONED: ("Get", "BatchGet", "GetAsOf", "GetHistory", "Scan", "Count"),
    }
)

S = TypeVar("S")


def of_kind(replica: StoreReplica, kind: type[S], query: str, spec_kind: str | None = None) -> S:
    """Return the replica's store if it has this query.

    Raises:
        LookupFailure: WRONG_STORE_KIND.

    """
    if not isinstance(replica.store, kind) or (spec_kind is not None and replica.spec.built_on != spec_kind):
        raise wrong_kind(replica, query)
    return replica.store


def wrong_kind(replica: StoreReplica, query: str) -> LookupFailure:
    """Return the failure of a query that the replica's store doesn't have."""
    spec = replica.spec
    return LookupFailure(
        Reason.WRONG_STORE_KIND,
        f"{spec.name} is a {spec.kind} store and has no {query}; it has {', '.join(_queries_of(replica))}",
        {"store": spec.name, "kind": spec.kind, "query": query},
    )


def before_history(error: BeforeHistory) -> LookupFailure:
    """Return the failure of a query about a time before the store's history."""
    return LookupFailure(Reason.BEFORE_HISTORY, str(error), {"history_start_ms": str(error.history_start_ms)})


def refuse_negative(field: str, time_ms: int) -> None:
    """Refuse a time before 1970: no version can be from then.

    Raises:
        LookupFailure: INVALID_REQUEST.

    """
    if time_ms < 0:
        raise LookupFailure(Reason.INVALID_REQUEST, f"{field} must not be negative")


def _queries_of(replica: StoreReplica) -> tuple[str, ...]:
    if replica.spec.kind in QUERIES:
        return QUERIES[replica.spec.kind]
    # A custom store has the queries that it inherits, and its own.
    inherited: tuple[str, ...] = ("Count",)
    if isinstance(replica.store, KeyValueStore):
        inherited = QUERIES[KEY_VALUE]
    elif isinstance(replica.store, TimedStore):
        inherited = QUERIES.get(replica.spec.built_on, inherited)
    return (*inherited, "QueryStore") if isinstance(replica.store, CustomQueries) else inherited


def arguments_of(request: query_service_pb2.QueryStoreRequest) -> dict[str, JsonValue]:
    """Return a query's arguments.

    Raises:
        LookupFailure: INVALID_REQUEST, their text is no JSON object.

    """
    if not request.arguments_text:
        return {field: from_json_value(value) for field, value in request.arguments.fields.items()}
    try:
        found = json.loads(request.arguments_text)
    except (ValueError, RecursionError) as error:
        raise LookupFailure(Reason.INVALID_REQUEST, f"arguments_text is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise LookupFailure(Reason.INVALID_REQUEST, "arguments_text must be a JSON object")
    return found
