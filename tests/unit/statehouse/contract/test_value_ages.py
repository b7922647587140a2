"""Values older than a caller allows are refused, never returned."""

from __future__ import annotations

import pytest

from statehouse.contract.consistency import Freshness, refuse_too_old
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import types_pb2

NOW_MS = 1_000_000


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ([NOW_MS - 501], "501 ms old"),
        ([NOW_MS, NOW_MS - 600, NOW_MS - 700], "700 ms old"),
        ([NOW_MS, -1], "has no time"),
    ],
)
def test_what_is_older_or_has_no_time_is_refused(times: list[int], why: str) -> None:
    with pytest.raises(LookupFailure, match=why) as failed:
        refuse_too_old(types_pb2.Freshness(max_value_age_ms=500), "s", times, NOW_MS)
    assert failed.value.reason is Reason.VALUE_TOO_OLD


@pytest.mark.parametrize("times", [[], [NOW_MS - 500], [NOW_MS + 5]])
def test_what_is_young_enough_is_returned(times: list[int]) -> None:
    refuse_too_old(types_pb2.Freshness(max_value_age_ms=500), "s", times, NOW_MS)


def test_without_a_bound_any_age_will_do() -> None:
    refuse_too_old(types_pb2.Freshness(), "s", [0, -1], NOW_MS)


def test_the_bound_is_read_and_is_not_negative() -> None:
    assert Freshness.from_proto(types_pb2.Freshness(max_value_age_ms=0)).max_value_age_ms == 0
    with pytest.raises(ValueError, match="negative"):
        Freshness.from_proto(types_pb2.Freshness(max_value_age_ms=-1))
