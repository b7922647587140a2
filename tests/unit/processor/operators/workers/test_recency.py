import random

import pytest

from processor.operators.aggregators import Count
from processor.operators.workers.lru import _placed
from processor.operators.workers.recency import StoreUpdate, UpdateOrder, bounded, folded, in_order
from statehouse.errors import ConfigurationError


def put(key: str, value: str | None = "v", at_ms: int | None = 1) -> StoreUpdate:
    return StoreUpdate(key.encode(), None if value is None else value.encode(), at_ms)


def keys(text: str) -> list[bytes]:
    return [key.encode() for key in text]


@pytest.mark.feature("store-whose-partitions")
def test_the_least_recently_updated_is_displaced_with_a_tombstone():
    publish, kept = bounded(keys("abc"), [put("a", "again", 7), put("d", "new", 8)], 3)
    assert publish == [put("a", "again", 7), put("d", "new", 8), put("b", None, 8)]
    assert kept == keys("cad")


def test_a_key_displaced_and_updated_in_one_batch_nets_out():
    publish, kept = bounded(keys("ab"), [put("c"), put("a", "back")], 2)
    assert publish == [put("c"), put("a", "back"), put("b", None)]
    assert kept == keys("ca")


def test_a_key_that_comes_and_goes_in_one_batch_is_not_published():
    publish, kept = bounded([], [put("a"), put("b"), put("a", None)], 5)
    assert publish == [put("b")]
    assert kept == keys("b")
    publish, kept = bounded(keys("x"), [put("a"), put("b"), put("c")], 1)
    assert publish == [put("x", None), put("c")]
    assert kept == keys("c")


def test_a_tombstone_makes_room_and_one_for_an_absent_key_is_nothing():
    publish, kept = bounded(keys("ab"), [put("a", None), put("c"), put("nobody", None)], 2)
    assert publish == [put("a", None), put("c")]
    assert kept == keys("bc")


def test_a_smaller_bound_applies_with_the_next_update():
    publish, kept = bounded(keys("abcd"), [put("d")], 2)
    assert publish == [put("d"), put("a", None), put("b", None)]
    assert kept == keys("cd")


def event(key: str, value: str | None, at_ms: int | None, *origin: int | str) -> tuple[UpdateOrder, StoreUpdate]:
    """Return a row's update; its origin is partition, offset and topic, if it says any."""
    partition, offset, topic = origin or (None, None, None)
    data = None if value is None else value.encode()
    return _placed((key.encode(), data, at_ms, topic, partition, offset, None, None))


def test_updates_of_one_millisecond_apply_in_the_order_of_their_offsets():
    history = [
        event("a", "put", 1, 0, 7, "t"),
        event("a", None, 1, 0, 8, "t"),
        event("b", "9", 1, 0, 9, "t"),
        event("b", "10", 1, 0, 10, "t"),
        event("c", "later", 2, 0, 3, "t"),
        event("c", "earlier", 1, 0, 4, "t"),
    ]
    for seed in range(20):
        ordered = in_order(random.Random(seed).sample(history, len(history)))
        last = {update.key: update.value for _, update in ordered}
        assert last == {b"a": None, b"b": b"10", b"c": b"later"}


def test_offsets_order_rows_without_a_time_and_topics_those_of_equal_offsets():
    rows = [event("a", "2", None, 0, 2, "t"), event("a", "1", None, 0, 1, "t"), event("a", "3", None, 0, 2, "u")]
    assert [update.value for _, update in in_order(rows)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("at_ms", [5, None])
@pytest.mark.parametrize("values", [("9", "10"), ("v", None), (None, "v")])
def test_updates_of_a_key_that_nothing_orders_are_refused(values: tuple[str | None, ...], at_ms: int | None):
    rows = [event("z", "between", at_ms), *(event("a", value, at_ms) for value in values)]
    with pytest.raises(ConfigurationError, match=r"b'a' has two updates .* partition and offset"):
        in_order(rows)


def test_an_aggregates_rows_need_no_origin_and_a_repeated_row_is_no_contradiction():
    rows = [event("b", "1", None), event("a", "1", None), event("a", "1", None), event("a", "2", 1)]
    assert [(update.key, update.value) for _, update in in_order(rows)] == [
        (b"a", b"1"),
        (b"a", b"1"),
        (b"b", b"1"),
        (b"a", b"2"),
    ]


def counted(entries: dict[bytes, str], text: str, max_entries: int = 2):
    """Count events of one-letter keys, in their order."""
    events = [(UpdateOrder(number, 0, number, ""), put(letter, "{}", number)) for number, letter in enumerate(text)]
    publish, after = folded(entries, events, Count(), max_entries)
    return {update.key.decode(): update.value and update.value.decode() for update in publish}, after


def test_a_displaced_keys_count_begins_anew():
    published, entries = counted({}, "aaab")
    assert (published, entries) == ({"a": "3", "b": "1"}, {b"a": "3", b"b": "1"})
    published, entries = counted(entries, "c")
    assert (published, entries) == ({"a": None, "c": "1"}, {b"b": "1", b"c": "1"})
    published, entries = counted(entries, "ab")
    assert (published, entries) == ({"a": "1", "b": "1", "c": None}, {b"a": "1", b"b": "1"}), "b was displaced by a"


def test_a_key_displaced_and_counted_anew_in_one_batch_is_published_as_it_is_in_the_end():
    assert counted({b"a": "7", b"b": "1"}, "bca") == ({"a": "1", "c": "1", "b": None}, {b"c": "1", b"a": "1"})
