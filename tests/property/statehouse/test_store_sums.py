"""Sums of stores: equal copies have equal sums, and what differs is found and named, exactly."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.store_sums import (
    LOG,
    Pace,
    StoreSums,
    SummedEntry,
    Wrong,
    bucket_of,
    differences,
    differing,
    digest_of,
)

STORED = st.tuples(st.integers(-1, 2**62), st.binary(max_size=6)).map(
    lambda each: each[0].to_bytes(8, signed=True) + each[1]
)
STORES = st.dictionaries(st.binary(max_size=4), STORED, max_size=30)
NODES = ("node-a", "node-b", "node-c")


def summed(store: Mapping[bytes, bytes], buckets: int, seed: int = 0) -> StoreSums:
    sums = StoreSums.empty(buckets)
    entries = list(store.items())
    random.Random(seed).shuffle(entries)
    for key, stored in entries:
        sums.add(key, digest_of(key, stored))
    return sums


def listing(store: Mapping[bytes, bytes]) -> dict[bytes, SummedEntry]:
    return {key: SummedEntry.of(key, stored) for key, stored in store.items()}


@given(STORES, st.integers(1, 40), st.integers(0, 99))
def test_equal_copies_never_differ(store: dict[bytes, bytes], buckets: int, seed: int) -> None:
    one, other = summed(store, buckets), summed(store, buckets, seed)
    assert differing([one, other]) == []
    assert StoreSums.of_wire(one.counts, one.packed()) == other
    assert differences({"node-a": listing(store), "node-b": listing(store)}) == []
    assert one.entries == len(store)


@given(STORES, STORES, st.integers(1, 40))
def test_the_buckets_that_differ_are_those_of_the_keys_that_do(
    one: dict[bytes, bytes], other: dict[bytes, bytes], buckets: int
) -> None:
    keys = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    found = differing([summed(one, buckets), summed(other, buckets, 7)])
    assert found == sorted({bucket_of(key, buckets) for key in keys})


@given(STORES, st.data())
def test_what_is_planted_is_named(store: dict[bytes, bytes], data: st.DataObject) -> None:
    copies = {name: dict(store) for name in NODES}
    planted: dict[tuple[str, bytes], Wrong] = {}
    for key in data.draw(st.sets(st.binary(max_size=4), max_size=5)):
        name = data.draw(st.sampled_from(NODES))
        if key not in store:
            copies[name][key] = bytes(8)
            planted[name, key] = Wrong.EXTRA
        elif data.draw(st.booleans()):
            del copies[name][key]
            planted[name, key] = Wrong.MISSING
        else:
            copies[name][key] = store[key] + b"!"
            planted[name, key] = Wrong.VALUE
    listed = {name: listing(copy) for name, copy in copies.items()}
    for with_log in (False, True):
        found = differences(listed | ({LOG: listing(store)} if with_log else {}))
        assert {(each.copy, each.key): each.wrong for each in found} == planted
        assert [each.key for each in found] == sorted(each.key for each in found)


def test_all_replicas_may_be_wrong() -> None:
    right, wrong = {b"k": bytes(8)}, {b"k": bytes(8) + b"x"}
    found = differences({"node-a": listing(wrong), "node-b": listing(wrong), LOG: listing(right)})
    assert [(each.copy, each.wrong) for each in found] == [("node-a", Wrong.VALUE), ("node-b", Wrong.VALUE)]


def test_of_two_replicas_none_is_right() -> None:
    found = differences({"node-a": listing({b"k": bytes(8)}), "node-b": {}})
    assert [(each.copy, each.wrong, each.right) for each in found] == [
        ("node-a", Wrong.UNCLEAR, None),
        ("node-b", Wrong.UNCLEAR, None),
    ]


def test_another_time_is_told_from_another_value() -> None:
    earlier, later = {b"k": (1).to_bytes(8) + b"v"}, {b"k": (2).to_bytes(8) + b"v"}
    (found,) = differences({"node-a": listing(earlier), LOG: listing(later)})
    assert (found.wrong, found.found.timestamp_ms if found.found else None) == (Wrong.TIME, 1)


def test_sums_of_other_numbers_of_buckets_are_not_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        differing([StoreSums.empty(2), StoreSums.empty(3)])
    with pytest.raises(ValueError, match="2 counts and 1 sums"):
        StoreSums.of_wire([0, 0], bytes(16))


def test_a_pace_is_kept_on_average() -> None:
    pace = Pace(1_000, began=50.0)
    assert pace.pause_s(500, 0.1, now=50.1) == pytest.approx(0.4)
    assert pace.pause_s(500, 0.0, now=52.0) == 0.0
    assert pace.pause_s(2_000, 0.1, now=52.0) == pytest.approx(1.0)
    assert Pace(0, began=0.0).pause_s(10**9, 1.0, now=0.0) == 0.0


def test_what_is_behind_does_not_catch_up() -> None:
    assert Pace(1_000_000, began=0.0).pause_s(1, 0.5, now=100.0) == pytest.approx(1.5)
