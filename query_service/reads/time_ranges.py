"""Which windows and sessions a request's times select, and where a store has to look for them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from statehouse.contract import paging
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.v1 import query_service_pb2

K = TypeVar("K", WindowKey, SessionKey)


@dataclass(frozen=True, slots=True)
class TimeRange(Generic[K]):
    """A range of times. `first_ms` and `last_ms` bound the times that entries are stored by, epoch milliseconds."""

    accept: Callable[[K], bool]
    """Whether an entry is in the range."""
    first_ms: int
    last_ms: int


def windows_in(request: paging.TimedRequest) -> TimeRange[WindowKey]:
    """Return the range of the windows that start within the request's times.

    Raises:
        LookupFailure: INVALID_REQUEST, none can.

    """
    refuse_exchanged(request)
    first_ms, last_ms = paging.time_span(request)
    return TimeRange(lambda window: first_ms <= window.start_ms <= last_ms, first_ms, last_ms)


def sessions_in(request: paging.TimedRequest) -> TimeRange[SessionKey]:
    """Return the range of the sessions that overlap the request's times.

    From a later to an earlier time there are some, too: those that last over both. Spark's filters may ask so.
    A session is stored by its end, which may be long after the range: only the first bound limits the segments.
    """
    first_ms, last_ms = paging.time_span(request)
    return TimeRange(
        lambda session: session.end_ms >= first_ms and session.start_ms <= last_ms, first_ms, paging.LAST_MS
    )


def refuse_exchanged(request: paging.TimedRequest | query_service_pb2.GetHistoryRequest) -> None:
    """Refuse a time after the latest as the earliest: an empty answer would look like a proof.

    Raises:
        LookupFailure: INVALID_REQUEST.

    """
    if request.HasField("from_ms") and request.HasField("to_ms") and request.from_ms > request.to_ms:
        raise LookupFailure(
            Reason.INVALID_REQUEST,
            f"no time is from {request.from_ms} to {request.to_ms}: from_ms is after to_ms; exchange them (reverse "
            "turns only the order of the answer)",
        )
