"""Which windows and sessions the times of a request select, at their limits."""

from __future__ import annotations

import pytest

from query_service.reads.time_ranges import sessions_in, windows_in
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.v1 import query_service_pb2

LEAST, MOST = -(2**63), 2**63 - 1


@pytest.mark.parametrize("kind", [query_service_pb2.FetchWindowsRequest, query_service_pb2.ScanWindowsRequest])
@pytest.mark.parametrize("times", [(1, 0), (0, -1), (MOST, LEAST), (MOST, MOST - 1)])
def test_no_window_starts_from_a_later_to_an_earlier_time(kind: type, times: tuple[int, int]) -> None:
    with pytest.raises(LookupFailure, match="from_ms is after to_ms") as refused:
        windows_in(kind(from_ms=times[0], to_ms=times[1]))
    assert refused.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    ("times", "starts"),
    [
        ({}, [0, 5, 10]),
        ({"from_ms": 5, "to_ms": 5}, [5]),
        ({"from_ms": LEAST, "to_ms": 5}, [0, 5]),
        ({"from_ms": -9, "to_ms": -5}, []),
        ({"to_ms": -1}, []),
        ({"from_ms": MOST}, []),
        ({"from_ms": 6, "to_ms": MOST}, [10]),
    ],
)
def test_windows_start_within_the_times(times: dict[str, int], starts: list[int]) -> None:
    accept = windows_in(query_service_pb2.FetchWindowsRequest(**times)).accept
    assert [start for start in (0, 5, 10) if accept(WindowKey(b"a", start, 0))] == starts


def test_sessions_from_a_later_to_an_earlier_time_are_those_that_last_over_both() -> None:
    accept = sessions_in(query_service_pb2.FetchSessionsRequest(from_ms=10, to_ms=5)).accept
    spans = [(3, 12), (5, 10), (6, 12), (3, 9)]
    assert [span for span in spans if accept(SessionKey(b"a", *span))] == [(3, 12), (5, 10)]
