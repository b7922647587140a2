"""The record cache against a map with one entry a key, at any size; and its pool against a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from processor.rows import KEY, OFFSET, REASON, VALUE
from processor.sink.record_cache import ROW_BYTES, RecordCache, pool_share
from processor.sink.task_rows import OUTPUT, SINK_PARTITION, TIMESTAMP_MS
from tests.support.examples import given_many
from tests.support.task_rows import type_of

PARTITIONS = 2
CACHED = (0, 1)  # of three outputs
_TYPE = type_of(SINK_PARTITION, OUTPUT, KEY, VALUE, TIMESTAMP_MS, OFFSET, REASON).append(pa.field("number", pa.int64()))


class Row(NamedTuple):
    output: int
    key: int
    value: bytes | None
    time: int
    reason: str | None = None

    @property
    def is_cached(self) -> bool:
        return self.output in CACHED and self.reason is None


_ROWS = st.builds(
    Row,
    output=st.integers(0, 2),
    key=st.integers(0, 5),
    value=st.one_of(st.none(), st.binary(max_size=60)),
    time=st.integers(1, 5),
    reason=st.sampled_from([None, None, None, "bad"]),
)
_BATCHES = st.lists(st.lists(_ROWS, max_size=12), min_size=1, max_size=8)
_MAX_BYTES = st.one_of(st.integers(0, 1_000), st.just(10**9))


def table(rows: Sequence[Row], first: int, *, has_offsets: bool) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                SINK_PARTITION: row.key % PARTITIONS,
                OUTPUT: row.output,
                KEY: b"%d" % row.key,
                VALUE: row.value,
                TIMESTAMP_MS: row.time,
                OFFSET: number if has_offsets else None,
                REASON: row.reason,
                "number": number,
            }
            for number, row in enumerate(rows, first)
        ],
        _TYPE,
    )


@pytest.mark.feature("one-pool-stores")
@given_many(_BATCHES, _MAX_BYTES, st.booleans())
def test_whatever_its_size_the_last_row_of_each_key_is_written_last(
    batches: list[list[Row]], max_bytes: int, has_offsets: bool
) -> None:
    given = [row for batch in batches for row in batch]
    cache, first = RecordCache(max_bytes, CACHED), 0
    for batch in batches:
        cache.put(table(batch, first, has_offsets=has_offsets))
        first += len(batch)
        assert cache.held_bytes <= max_bytes
    written = cache.flush().to_pylist()
    assert cache.held_bytes == 0

    def last_of(rows: list[tuple[int, Row]]) -> dict[tuple[int, int], int]:
        """Return the number of the row that counts, by output and key."""
        order = rows if has_offsets else sorted(rows, key=lambda pair: pair[1].time)
        return {(row.output, row.key): number for number, row in order if row.is_cached}

    numbers = [row["number"] for row in written]
    assert len(set(numbers)) == len(numbers), "no row is written twice"
    expected = last_of(list(enumerate(given)))
    found = {(given[number].output, given[number].key): number for number in numbers if given[number].is_cached}
    assert found == expected
    others = [number for number in numbers if not given[number].is_cached]
    assert others == [number for number, row in enumerate(given) if not row.is_cached], "in their order, all of them"

    def places(rows: list[Row]) -> Counter[tuple[int, int]]:
        return Counter((row.key % PARTITIONS, row.output) for row in rows if row.is_cached)

    assert +cache.saved == places(given) - places([given[number] for number in numbers])
    assert +(cache.early - places([given[number] for number in numbers])) == Counter(), "what was early was written"
    size = sum(len(row.value or b"") + 1 + ROW_BYTES for row in given if row.is_cached)
    if size <= max_bytes:
        assert not +cache.early
        assert sum(places([given[number] for number in numbers]).values()) == len(expected), "one row a key"


@given_many(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_a_key_that_is_updated_again_and_again_is_written_once_however_small_the_cache(sizes: list[int]) -> None:
    """As long as a row takes less than half of it: what was updated last stays."""
    cache = RecordCache(2 * (ROW_BYTES + 1 + 1) + 10, CACHED)
    for first, (before, size) in enumerate(pairwise([0, *sizes])):
        rows = [Row(0, 3, b"v", 1)] * (size - before) if size > before else [Row(0, 3, b"v", 1)]
        cache.put(table(rows, 100 * first, has_offsets=True))
    assert cache.flush().num_rows == 1
    assert not +cache.early


@pytest.mark.feature("one-pool-stores")
@given_many(st.integers(0, 10_000), st.integers(1, 6), st.lists(st.tuples(st.booleans(), st.integers(0, 5))))
def test_the_pool_is_never_overdrawn_and_each_batch_gets_half_its_fair_share(
    max_bytes: int, queries: int, events: list[tuple[bool, int]]
) -> None:
    lent: dict[int, int] = {}
    for begins, query in events:
        if not begins:
            lent.pop(query, None)
        elif query < queries and query not in lent:
            share = pool_share(max_bytes, list(lent.values()), queries)
            assert share >= max_bytes // (2 * queries)
            if queries == 1:
                assert share == max_bytes, "the only query has all of it"
            lent[query] = share
        assert sum(lent.values()) <= max_bytes
