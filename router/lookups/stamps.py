"""The stamps in nodes' answers: who answered, and which batch the answer is of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from statehouse.contract.consistency import Freshness
from statehouse.control.v1 import frames_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2

# Answers about one key have one stamp. Those of a page stand where a PageFrames has them.
_OF_KEYS: Final[Mapping[str, Any]] = {
    "Get": query_service_pb2.GetResponse,
    "FetchWindows": query_service_pb2.FetchWindowsResponse,
    "FetchSessions": query_service_pb2.FetchSessionsResponse,
    "GetAsOf": query_service_pb2.GetAsOfResponse,
    "GetHistory": query_service_pb2.GetHistoryResponse,
    "QueryStore": query_service_pb2.QueryStoreResponse,
}
_COUNT: Final = "Count"


def stamps_in(method: str, answer: bytes) -> Sequence[types_pb2.ReplicaStamp]:
    """Return the stamps in a serialized answer to a method.

    Raises:
        DecodeError: it is none.

    """
    if (kind := _OF_KEYS.get(method)) is not None:
        return [kind.FromString(answer).replica]
    if method == _COUNT:
        return query_service_pb2.CountResponse.FromString(answer).replicas
    return [types_pb2.ReplicaStamp.FromString(each) for each in frames_pb2.PageFrames.FromString(answer).replicas]


def checked(method: str, store: str, bound: Freshness, instance_id: str, answer: bytes) -> bytes | LookupFailure:
    """Return a node's answer, or why it is none: the caller asked for one batch, and the answer is of none.

    A node of an earlier version ignores what the caller asked for, and answers with what it has now.
    """
    if bound.moment is None:
        return answer
    try:
        stamps = stamps_in(method, answer)
    except DecodeError as error:
        return LookupFailure(Reason.INTERNAL, f"an answer to {method} can't be read: {error}")
    return answer if stamps and all(each.HasField("moment") for each in stamps) else too_old(store, instance_id)


def too_old(store: str, instance_id: str) -> LookupFailure:
    """Return the failure of a node that can't show a batch."""
    message = f"node {instance_id} is of an earlier version, and shows store {store} only as it is: upgrade it"
    return LookupFailure(Reason.MOMENTS_UNAVAILABLE, message, {"store": store})
