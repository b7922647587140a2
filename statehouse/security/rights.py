"""What each call needs: its right, and the stores that it is about. Pure.

A request is read with the class that its handler reads it with, so that both see the same store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from statehouse.serdes.wire import lookups_of, refuse_too_many
from statehouse.v1 import fleet_service_pb2, query_service_pb2

BATCH_ENTRIES_MAX: Final = 100_000
"""Lookups of a batch that are read for their stores; that takes 0.1 s, in which nothing else is done."""


class Right(StrEnum):
    """What a caller may be allowed to do."""

    LOOKUP = "lookup"
    SCAN = "scan"
    WATCH = "watch"
    QUERY = "query"
    FLEET = "fleet"
    DRAIN = "drain"
    PROFILE = "profile"
    VERIFY = "verify"
    """To have copies of a store summed. Keys and times of entries are shown, values aren't."""
    RESTORE = "restore"
    FORWARD = "forward"
    """To send requests for somebody else, as routers do: with `forwarding.hops`, or with the other's certificate."""
    ACT_FOR = "act-for"
    """To change the fleet for the owner of a shown certificate, in addition to `FORWARD`, which is for reads."""
    FILES = "files"
    """To take stores as files, as nodes do."""
    METRICS = "metrics"
    HEALTH = "health"
    REFLECTION = "reflection"


STORE_RIGHTS: Final = frozenset({Right.LOOKUP, Right.SCAN, Right.WATCH, Right.QUERY})
"""Rights that are given for stores."""

CHANGES: Final = frozenset({Right.DRAIN, Right.RESTORE})
"""Rights to change the fleet; all others are to read."""

METRICS: Final = "metrics"
"""The method of a request for /metrics, which is no call of gRPC."""

_QUERY: Final = "/statehouse.v1.QueryService/"
_FLEET: Final = "/statehouse.v1.FleetService/"
_NODE: Final = "/statehouse.v1.NodeService/"
_PEER: Final = "/statehouse.v1.PeerService/"
_HEALTH: Final = "/grpc.health.v1.Health/"
HEALTH_CHECK: Final = f"{_HEALTH}Check"
"""The method of a health check, and of a probe over HTTP."""


class Asked(NamedTuple):
    """What a request asks.

    Attributes:
        stores: names of the stores, "" for one without a name. Empty: the request names none, or can't be read, and the
            usual handler refuses it.
        forwarded: whether a router has sent it on.

    """

    stores: frozenset[str]
    forwarded: bool


_BYTES: Final = (bytes, bytearray, memoryview)
_NO_STORE: Final = Asked(frozenset(), forwarded=False)


class _Method(NamedTuple):
    """A method about stores: its right, and how its requests are read."""

    right: Right
    message: type[Message]
    asked: Callable[[Any], Asked]


def _of_reader(request: Any) -> Asked:  # noqa: ANN401 - any request with these two fields
    return Asked(frozenset((request.store,)), request.forwarding.hops > 0)


def _of_located(request: fleet_service_pb2.LocateKeyRequest) -> Asked:
    # Clients send it empty, to see whether a router is there.
    return Asked(frozenset((request.store,)), forwarded=False) if request.store else _NO_STORE


def _about_key(right: Right) -> _Method:
    """Return a method whose requests begin with the fields of GetRequest; routers read no others."""
    return _Method(right, query_service_pb2.GetRequest, _of_reader)


_BATCH_GET: Final = f"{_QUERY}BatchGet"
_METHODS: Final[Mapping[str, _Method]] = MappingProxyType(
    {
        f"{_QUERY}Get": _about_key(Right.LOOKUP),
        f"{_QUERY}FetchWindows": _about_key(Right.LOOKUP),
        f"{_QUERY}FetchSessions": _about_key(Right.LOOKUP),
        f"{_QUERY}GetAsOf": _about_key(Right.LOOKUP),
        f"{_QUERY}GetHistory": _about_key(Right.LOOKUP),
        f"{_QUERY}QueryStore": _about_key(Right.QUERY),
        f"{_QUERY}Scan": _Method(Right.SCAN, query_service_pb2.ScanRequest, _of_reader),
        f"{_QUERY}Count": _Method(Right.SCAN, query_service_pb2.CountRequest, _of_reader),
        f"{_QUERY}ScanWindows": _Method(Right.SCAN, query_service_pb2.ScanWindowsRequest, _of_reader),
        f"{_QUERY}ScanSessions": _Method(Right.SCAN, query_service_pb2.ScanSessionsRequest, _of_reader),
        f"{_QUERY}Watch": _Method(Right.WATCH, query_service_pb2.WatchRequest, _of_reader),
        f"{_FLEET}LocateKey": _Method(Right.LOOKUP, fleet_service_pb2.LocateKeyRequest, _of_located),
        f"{_FLEET}AwaitInput": _Method(
            Right.LOOKUP,
            fleet_service_pb2.AwaitInputRequest,
            lambda request: Asked(frozenset((request.store,)), forwarded=False),
        ),
        f"{_FLEET}ExplainGet": _Method(
            Right.LOOKUP, fleet_service_pb2.ExplainGetRequest, lambda request: _of_reader(request.lookup)
        ),
    }
)

RIGHTS: Final[Mapping[str, Right]] = MappingProxyType(
    {
        **{path: method.right for path, method in _METHODS.items()},
        _BATCH_GET: Right.LOOKUP,
        f"{_FLEET}GetFleet": Right.FLEET,
        f"{_FLEET}WatchFleet": Right.FLEET,
        f"{_FLEET}ListStores": Right.FLEET,
        f"{_FLEET}ListNodes": Right.FLEET,
        f"{_FLEET}ListPartitions": Right.FLEET,
        f"{_FLEET}ListChangelogs": Right.FLEET,
        f"{_FLEET}GetMoment": Right.FLEET,
        f"{_NODE}GetNode": Right.FLEET,
        f"{_NODE}Drain": Right.DRAIN,
        f"{_NODE}Profile": Right.PROFILE,
        f"{_NODE}SumStore": Right.VERIFY,
        f"{_NODE}RestoreReplica": Right.RESTORE,
        f"{_PEER}OfferStore": Right.FILES,
        f"{_PEER}ReadFile": Right.FILES,
        HEALTH_CHECK: Right.HEALTH,
        f"{_HEALTH}List": Right.HEALTH,
        f"{_HEALTH}Watch": Right.HEALTH,
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Right.REFLECTION,
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Right.REFLECTION,
        METRICS: Right.METRICS,
    }
)
"""The right that each method needs. Nobody may call another method."""


def stores_asked(method: str, request: object) -> Asked:
    """Return the stores that a request is about.

    `request`: serialized or parsed. Anything else stands for a request that couldn't be read, and names no store.

    Raises:
        LookupFailure: INVALID_REQUEST, a batch has more than 100,000 lookups.

    """
    how = _METHODS.get(method)
    if how is None:
        return _of_batch(request) if method == _BATCH_GET else _NO_STORE
    message = _read(how.message, request)
    return _NO_STORE if message is None else how.asked(message)


def _read(kind: type[Message], request: object) -> Message | None:
    """Return a request as a message; None if it can't be read."""
    if isinstance(request, _BYTES):
        try:
            return kind.FromString(bytes(request))
        except DecodeError:
            return None
    return request if isinstance(request, Message) else None


def _of_batch(request: object) -> Asked:
    """Return what a batch asks.

    Each entry is read alone, as routers do: one that can't be read fails alone there, and the others are answered.
    """
    entries: Any = ()
    if isinstance(request, _BYTES):
        try:
            entries = lookups_of(bytes(request), BATCH_ENTRIES_MAX)
        except DecodeError:
            return _NO_STORE
    elif isinstance(request, query_service_pb2.BatchGetRequest):
        entries = request.requests
        refuse_too_many(len(entries), BATCH_ENTRIES_MAX)
    found: list[Any] = [entry for each in entries if (entry := _read(query_service_pb2.GetRequest, each)) is not None]
    return Asked(frozenset([each.store for each in found]), forwarded=any(each.forwarding.hops for each in found))
