"""Sums of window and session stores: a replica equals a replay of what is left of its log, unless something is planted.

Logs lose records in three ways. Compaction removes what a later record replaces, and in the end tombstones, too. The
broker deletes the oldest ones by its clock. A replica may have expired more or less than another one, as it writes in
other slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.engine import Engine
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.segments import Segments
from query_service.stores.summed import SummedPart, WantedSums
from query_service.stores.timestamps import timestamped
from query_service.stores.versioned import VersionedStore
from query_service.stores.walk import Walk
from query_service.stores.windows import SESSIONS, WINDOWS, KeyLayout, TimedStore
from statehouse.contract.paging import KeyRange
from statehouse.contract.store_sums import (
    EVERY_ENTRY,
    LOG,
    StoreSums,
    SumBounds,
    Wrong,
    differences,
    differing,
    why_not_summed,
)
from statehouse.contract.topology import KEY_VALUE, SESSION, STORE_KINDS, WINDOW, StoreSpec
from statehouse.keys.composite import SessionKey, WindowKey

RETENTION_MS = 200_000
BUCKETS = 5
KEYS = st.sampled_from([b"", b"\0", b"a", b"b", b"\xff"])
# A grid as wide as a segment, and its neighbours: most expiries happen on a boundary.
TIMES = st.builds(lambda step, off: max(0, step * 100_000 + off), st.integers(0, 8), st.sampled_from([-1, 0, 1]))
WRITE = st.tuples(KEYS, TIMES, TIMES, st.none() | st.binary(max_size=2))
WRITES = st.lists(WRITE, max_size=25)
Write = tuple[bytes, int, int, bytes | None]


def window(key: bytes, start_ms: int, _end_ms: int) -> WindowKey:
    return WindowKey(key, start_ms)


def session(key: bytes, start_ms: int, end_ms: int) -> SessionKey:
    return SessionKey(key, min(start_ms, end_ms), max(start_ms, end_ms))


KINDS: tuple[tuple[KeyLayout[Any], Callable[[bytes, int, int], WindowKey | SessionKey]], ...] = (
    (WINDOWS, window),
    (SESSIONS, session),
)
BOTH = pytest.mark.parametrize(("layout", "key_of"), KINDS, ids=["window", "session"])


def logged(
    writes: Sequence[Write], key_of: Callable[[bytes, int, int], WindowKey | SessionKey]
) -> list[ChangelogRecord]:
    """Return the records of writes; their times are the broker's, which grow."""
    return [
        ChangelogRecord(key_of(key, start_ms, end_ms).to_bytes(), value, 1_000 + offset // 2, offset)
        for offset, (key, start_ms, end_ms, value) in enumerate(writes)
    ]


def left_of(log: Sequence[ChangelogRecord], cleaned: int, tombstones_gone: int, deleted: int) -> list[ChangelogRecord]:
    """Return what is left of a log.

    Its first `cleaned` records were compacted, of these the tombstones among the first `tombstones_gone` were removed,
    and the first `deleted` records were deleted.
    """
    newest = {record.key: record.offset for record in log[:cleaned]}
    return [
        record
        for record in log[deleted:]
        if record.offset >= cleaned
        or (newest[record.key] == record.offset and (record.value is not None or record.offset >= tombstones_gone))
    ]


def replica(
    engine: Engine, layout: KeyLayout[Any], records: Sequence[ChangelogRecord], cuts: Sequence[int]
) -> TimedStore[Any]:
    """Return a store that has taken records, a slice up to each cut."""
    store = TimedStore(engine, layout, RETENTION_MS)
    starts = [0, *sorted(cut % (len(records) + 1) for cut in cuts)]
    for start, stop in zip(starts, [*starts[1:], len(records)], strict=True):
        store.apply(records[start:stop], Checkpoint("t", "id", stop, 1))
    return store


def summed(store: TimedStore[Any], bounds: SumBounds, most_bytes: int = 1) -> tuple[StoreSums, Any, int]:
    """Return a store's sums, its entries by key, and how many bytes were passed over."""
    with store.summing(WantedSums(BUCKETS, range(BUCKETS), bounds)) as summing:
        parts: list[SummedPart] = [summing.go_on(most_bytes)]
        while parts[-1].sums is None:
            parts.append(summing.go_on(most_bytes))
    sums = parts[-1].sums
    assert sums is not None
    assert sums.entries == sum(each.entries for each in parts)
    return sums, dict(entry for each in parts for entry in each.listed), sum(each.passed_over for each in parts)


def common(recorded_from_ms: int, *stores: TimedStore[Any]) -> SumBounds:
    """Return which entries count of all stores."""
    bounds = SumBounds(recorded_from_ms=recorded_from_ms)
    for store in stores:
        bounds |= store.bounded(bounds)
    return bounds


def seen(store: TimedStore[Any]) -> set[bytes]:
    """Return the entry keys of what readers see."""

    page = store.scan(KeyRange(), lambda _key: True, 0, 2**63 - 1, 10**9, 10**9, Walk())
    return {key.to_entry_key() for key, _ in page.entries}


CUTS = st.lists(st.integers(0, 25), max_size=4)
UPTO = st.integers(0, 25)


LAST_IS_GONE: list[Write] = [
    (b"a", 0, 0, b"dropped by the replica alone"),
    (b"b", 800_000, 800_000, b"v"),
    (b"b", 800_000, 800_000, None),
    (b"a", 600_000, 600_000, b"late for the replica alone"),
    (b"c", 700_000, 700_000, b"live"),
]
"""The record with the latest time is deleted, and what remains has seen an earlier stream time."""


@BOTH
@given(WRITES, CUTS, CUTS, UPTO, UPTO, UPTO)
@example(LAST_IS_GONE, [1, 2], [], 25, 25, 0)
@example(LAST_IS_GONE, [1, 2, 3], [3], 25, 25, 1)
def test_a_replica_and_a_replay_of_what_is_left_of_its_log_are_equal(
    layout: KeyLayout[Any],
    key_of: Callable[[bytes, int, int], WindowKey | SessionKey],
    writes: list[Write],
    cuts: list[int],
    others: list[int],
    cleaned: int,
    tombstones_gone: int,
    deleted: int,
) -> None:
    log = logged(writes, key_of)
    left = left_of(log, cleaned, tombstones_gone, deleted)
    lost = log[:deleted]
    # The broker says the time of the first record that is left; one that was deleted may have the same.
    recorded_from_ms = lost[-1].timestamp_ms + 1 if lost else -1
    one, other = replica(MemoryEngine(10**9), layout, log, cuts), replica(MemoryEngine(10**9), layout, left, others)
    bounds = common(recorded_from_ms, one, other)
    (sums, entries, _), (replayed, replayed_entries, _) = summed(one, bounds), summed(other, bounds, 1_000)
    assert differing([sums, replayed]) == []
    assert entries == replayed_entries
    if not lost:
        assert set(entries) == seen(one), "all that readers of the replica see is compared"


@BOTH
@given(WRITES, WRITE, st.integers(-1, 20))
def test_what_is_planted_is_found_unless_it_is_expired_or_from_before_the_log(
    layout: KeyLayout[Any],
    key_of: Callable[[bytes, int, int], WindowKey | SessionKey],
    writes: list[Write],
    planted: Write,
    recorded_from_ms: int,
) -> None:
    log = logged(writes, key_of)
    engine = MemoryEngine(10**9)
    one, other = replica(engine, layout, log, []), replica(MemoryEngine(10**9), layout, log, [])
    bounds = common(recorded_from_ms, one, other)
    key = key_of(*planted[:3])
    entry, time_ms = key.to_entry_key(), layout.time_ms(key)
    family = Segments(RETENTION_MS).family(time_ms)
    before = engine.get(family, entry)
    stored = timestamped(planted[3], 10)
    at = engine.checkpoint()
    engine.write({family: [(entry, stored)]}, at or Checkpoint("t", "id", 0, 1))
    (sums, entries, _), (right, right_entries, _) = summed(one, bounds), summed(other, bounds)
    found = differences({"node-a": entries, LOG: right_entries})
    is_live = time_ms >= Segments(RETENTION_MS).horizon_ms(bounds.stream_time_ms)
    was, now = (
        None if each is None or int.from_bytes(each[:8]) < recorded_from_ms or not is_live else each
        for each in (before, stored)
    )
    if was == now:
        assert (found, differing([sums, right])) == ([], [])
        return
    (difference,) = found
    assert (difference.copy, difference.key) == ("node-a", entry)
    wrong = Wrong.MISSING if now is None else Wrong.EXTRA if was is None else Wrong.TIME
    assert difference.wrong is wrong
    assert len(differing([sums, right])) == 1


def test_what_is_passed_over_is_read_all_the_same() -> None:
    log = logged([(b"k", 0, 0, b"old"), (b"k", 250_000, 0, b"new")], window)
    store = replica(MemoryEngine(10**9), WINDOWS, log, [])
    store.see_stream_time(260_000)
    (_, entries, passed_over) = summed(store, store.bounded(EVERY_ENTRY))
    assert list(entries) == [WindowKey(b"k", 250_000).to_entry_key()]
    assert passed_over == len(WindowKey(b"k", 0).to_entry_key()) + 8 + len(b"old")


def test_versions_can_not_be_compared() -> None:
    """A fresh replica takes what an old one refused as late: compaction removed what had made it late."""

    def latest(records: Sequence[ChangelogRecord]) -> bytes:
        store = VersionedStore(MemoryEngine(10**9), 100)
        for record in records:
            store.apply([record], Checkpoint("t", "id", record.offset + 1, 1))
        found = store.get(b"cold")
        assert found is not None
        return found.value

    first, late = ChangelogRecord(b"cold", b"first", 10, 0), ChangelogRecord(b"cold", b"late", 20, 2)
    hot, hotter = ChangelogRecord(b"hot", b"1", 1_000, 1), ChangelogRecord(b"hot", b"2", 2_000, 3)
    log = [first, hot, late, hotter]
    assert latest(log) == b"first"
    assert latest(left_of(log, cleaned=4, tombstones_gone=0, deleted=0)) == b"late"


def test_an_older_version_that_comes_later_is_all_that_compaction_leaves() -> None:
    newer, older = ChangelogRecord(b"k", b"newer", 60, 0), ChangelogRecord(b"k", b"older", 50, 1)
    stores = VersionedStore(MemoryEngine(10**9), 100), VersionedStore(MemoryEngine(10**9), 100)
    for store, log in zip(stores, ([newer, older], left_of([newer, older], 2, 0, 0)), strict=True):
        store.apply(log, Checkpoint("t", "id", 2, 1))
    replicated, replayed = (store.get(b"k") for store in stores)
    assert (replicated and replicated.value, replayed and replayed.value) == (b"newer", b"older")


def test_duplicates_can_not_be_compared() -> None:
    """A record without a value deletes nothing, but compaction removes the value that it follows."""
    key = WindowKey(b"k", 0, 1).to_bytes()
    log = [ChangelogRecord(key, b"v", 1_000, 0), ChangelogRecord(key, None, 1_000, 1)]
    counts = []
    for records in (log, left_of(log, 2, 0, 0)):
        store = TimedStore(MemoryEngine(10**9), WINDOWS, RETENTION_MS, retain_duplicates=True)
        store.apply(records, Checkpoint("t", "id", 2, 1))
        counts.append(len(seen(store)))
    assert counts == [1, 0]


def test_what_can_be_compared() -> None:
    specs = {kind: StoreSpec("s", "t", 1, 0, kind=kind, retention_ms=1) for kind in STORE_KINDS}
    assert {kind for kind, spec in specs.items() if not why_not_summed(spec)} == {KEY_VALUE, WINDOW, SESSION}
    assert "duplicates" in why_not_summed(StoreSpec("s", "t", 1, 0, kind=WINDOW, retain_duplicates=True))
