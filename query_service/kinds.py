"""Which queries a kind of store has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from query_service.replica import StoreReplica
from statehouse.errors import LookupFailure, Reason
from statehouse.topology import KEY_VALUE, SESSION, VERSIONED, WINDOW

QUERIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        KEY_VALUE: ("Get", "BatchGet", "Scan", "Count"),
        WINDOW: ("FetchWindows", "ScanWindows", "Count"),
        SESSION: ("FetchSessions", "Count"),
        VERSIONED: ("Get", "BatchGet", "GetAsOf", "Count"),
    }
)

S = TypeVar("S")


def of_kind(replica: StoreReplica, kind: type[S], query: str, spec_kind: str | None = None) -> S:
    """Return the replica's store if it has this query.

    Raises:
        LookupFailure: WRONG_STORE_KIND.

    """
    spec = replica.spec
    if not isinstance(replica.store, kind) or (spec_kind is not None and spec.kind != spec_kind):
        raise LookupFailure(
            Reason.WRONG_STORE_KIND,
            f"{spec.name} is a {spec.kind} store and has no {query}; it has {', '.join(QUERIES[spec.kind])}",
            {"store": spec.name, "kind": spec.kind, "query": query},
        )
    return replica.store
