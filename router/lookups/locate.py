"""Finds the partition for a serialized request: the steps that every lookup needs, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from google.protobuf.message import DecodeError

from router.fleet.table import PartitionRoutes, RoutingTable
from router.lookups.dispatch import Call
from statehouse.contract.consistency import ANY, Freshness
from statehouse.contract.paging import bound_of_page, refuse_other_version, serialized_key
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2

# Methods about one key whose answers are pages.
_PAGED: Final[Mapping[str, Any]] = {
    "FetchWindows": query_service_pb2.FetchWindowsRequest,
    "FetchSessions": query_service_pb2.FetchSessionsRequest,
    "GetHistory": query_service_pb2.GetHistoryRequest,
}


def parse_keyed(data: bytes) -> query_service_pb2.GetRequest:
    """Read the fields that all requests about one key have in common.

    Raises:
        LookupFailure: INVALID_REQUEST or HOP_LIMIT.

    """
    try:
        request = query_service_pb2.GetRequest.FromString(data)
    except DecodeError as error:
        raise LookupFailure(Reason.INVALID_REQUEST, f"not a request about a key: {error}") from error
    refuse_forwarded(request.forwarding)
    return request


def refuse_forwarded(forwarding: types_pb2.Forwarding) -> None:
    """Let a request pass one router only.

    Raises:
        LookupFailure: HOP_LIMIT or INVALID_REQUEST.

    """
    if forwarding.hops >= 1:
        raise LookupFailure(
            Reason.HOP_LIMIT,
            f"the request has already passed {forwarding.hops} router(s): a node's advertised address is a router's",
            {"hops": str(forwarding.hops)},
        )
    if forwarding.HasField("partition"):
        raise LookupFailure(Reason.INVALID_REQUEST, "forwarding.partition is what routers say to nodes: leave it out")


def freshness_of(message: types_pb2.Freshness) -> Freshness:
    """Read the caller's bounds.

    Raises:
        LookupFailure: INVALID_REQUEST, a bound is negative.

    """
    try:
        return Freshness.from_proto(message)
    except ValueError as error:
        raise LookupFailure(Reason.INVALID_REQUEST, str(error)) from error


def locate(
    table: RoutingTable,
    request: query_service_pb2.GetRequest | query_service_pb2.WatchRequest | fleet_service_pb2.LocateKeyRequest,
) -> PartitionRoutes:
    """Return the partition a request's key is in.

    Raises:
        LookupFailure: UNKNOWN_STORE or INVALID_KEY.

    """
    return table.locate(request.store, serialized_key(request.key, table.store(request.store).key_serde))


def keyed_call(table: RoutingTable, method: str, data: bytes) -> Call:
    """Return the call for a serialized request about one key; all such requests begin with the fields of GetRequest.

    Raises:
        LookupFailure: the request can't be routed.

    """
    request = parse_keyed(data)
    routes = locate(table, request)
    freshness = ANY
    if request.HasField("freshness"):
        freshness = freshness_of(request.freshness).in_version(routes.store, table.store(routes.store).version)
    if method in _PAGED:
        freshness = _of_walk(_PAGED[method], data, freshness, table.store(routes.store).version)
    return Call(method, routes.store, routes.partition, data, freshness)


def _of_walk(kind: Any, data: bytes, freshness: Freshness, version: str) -> Freshness:  # noqa: ANN401 - a type of requests
    """Return the bounds of a page: the pages after the first one show the batch that its token names.

    Raises:
        LookupFailure: VERSION_CHANGED or INVALID_PAGE_TOKEN.

    """
    try:
        request = kind.FromString(data)
    except DecodeError:
        return freshness  # which the node says
    if not request.page_token:
        return freshness
    refuse_other_version(request, version)
    return replace(freshness, moment=bound_of_page(request))
