"""Which filters a read takes over, and what it narrows by the others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringEndsWith,
    StringStartsWith,
)

from pyspark_statehouse.filters import Pushed, pushed
from statehouse.contract.paging import KeyRange

ALL: Final = Pushed((KeyRange(),))
KEY: Final = ("key",)
T: Final = datetime(2026, 1, 1, 12, 0, 0, 1_500, tzinfo=UTC)
T_MS: Final = int(T.timestamp() * 1000)


def push(*filters: Filter, before: Pushed = ALL, serde: str = "string", kind: str = "key-value") -> Any:
    return pushed(filters, before, serde, kind)


@pytest.mark.parametrize(
    ("filters", "ranges"),
    [
        ([EqualTo(KEY, "a")], [KeyRange(b"a", b"a\0")]),
        ([EqualNullSafe(KEY, "a")], [KeyRange(b"a", b"a\0")]),
        ([In(KEY, ("b", "a", None))], [KeyRange(b"a", b"a\0"), KeyRange(b"b", b"b\0")]),
        ([StringStartsWith(KEY, "ab")], [KeyRange(b"ab", b"ac")]),
        ([GreaterThan(KEY, "a"), LessThanOrEqual(KEY, "c")], [KeyRange(b"a\0", b"c\0")]),
        ([GreaterThanOrEqual(KEY, "a"), LessThan(KEY, "c"), EqualTo(KEY, "d")], []),
    ],
)
def test_comparisons_of_the_key_are_taken_over(filters: list[Filter], ranges: list[KeyRange]) -> None:
    read, left = push(*filters)
    assert list(read.ranges) == ranges
    assert left == []


@pytest.mark.parametrize(
    "left",
    [
        Not(EqualTo(KEY, "a")),
        IsNotNull(KEY),
        StringEndsWith(KEY, "a"),
        EqualTo(KEY, 1),
        EqualTo(KEY, None),
        EqualTo(("value",), "a"),
        EqualTo(("key", "id"), "a"),
        LessThan(("partition",), 1),
        EqualTo(("start",), "soon"),
        EqualTo(("start",), T.replace(tzinfo=None)),
    ],
    ids=str,
)
def test_the_others_are_left_and_nothing_is_lost_by_them(left: Filter) -> None:
    assert push(left, kind="window") == (ALL, [left])


def test_options_and_filters_hold_together() -> None:
    before = Pushed((KeyRange(b"b", b"d"),), frozenset({0, 1}), 5, 9)
    read, left = push(GreaterThan(KEY, "c"), EqualTo(("partition",), 1), before=before)
    assert read == Pushed((KeyRange(b"c\0", b"d"),), frozenset({1}), 5, 9)
    assert left == []
    assert push(In(("partition",), (1, 2, None)))[0].partitions == {1, 2}


def test_bytes_are_compared_as_bytes() -> None:
    assert push(EqualTo(KEY, bytearray(b"\xff")), serde="bytes") == (
        replace(ALL, ranges=(KeyRange(b"\xff", b"\xff\0"),)),
        [],
    )
    asked = EqualTo(KEY, "a")
    assert push(asked, serde="avro") == (ALL, [asked])


@pytest.mark.parametrize(
    ("asked", "kind", "times"),
    [
        (GreaterThan(("start",), T), "window", (T_MS, None)),
        (GreaterThanOrEqual(("start",), T), "session", (T_MS, None)),
        (LessThan(("start",), T), "window", (None, T_MS)),
        (EqualTo(("start",), T), "window", (T_MS, T_MS)),
        (LessThanOrEqual(("end",), T), "window", (None, T_MS)),
        (GreaterThan(("end",), T), "window", (None, None)),
        (GreaterThan(("end",), T), "session", (T_MS, None)),
        (EqualTo(("end",), T), "session", (T_MS, T_MS)),
    ],
    ids=str,
)
def test_times_narrow_what_is_read_and_are_left_to_spark(asked: Filter, kind: str, times: Any) -> None:
    read, left = push(asked, kind=kind)
    assert (read.from_ms, read.to_ms) == times
    assert left == [asked]


def test_the_narrowest_times_count() -> None:
    later = T + timedelta(seconds=1)
    filters = [
        GreaterThan(("start",), T),
        GreaterThan(("start",), later),
        LessThan(("start",), later + timedelta(seconds=2)),
        LessThan(("start",), later + timedelta(seconds=1)),
    ]
    read, _ = push(*filters, kind="window", before=replace(ALL, from_ms=0, to_ms=2 * T_MS))
    assert (read.from_ms, read.to_ms) == (T_MS + 1_000, T_MS + 2_000)


@pytest.mark.parametrize(("kind", "times"), [("window", (T_MS, None)), ("session", (T_MS, T_MS - 1_000))])
def test_filters_of_times_that_contradict_each_other_are_asked_of_sessions_only(kind: str, times: Any) -> None:
    """A session may end after the one time and begin before the other; of windows nodes refuse it."""
    column = "start" if kind == "window" else "end"
    filters = [GreaterThan((column,), T), LessThan(("start",), T - timedelta(seconds=1))]
    read, left = push(*filters, kind=kind)
    assert (read.from_ms, read.to_ms) == times
    assert left == filters
