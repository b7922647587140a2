"""Which row of a key counts in the record cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import pyarrow as pa

from processor.rows import KEY, OFFSET, REASON, VALUE
from processor.sink.record_cache import ROW_BYTES, RecordCache, last_of_each_key
from processor.sink.task_rows import OUTPUT, SINK_PARTITION, TASK_COLUMNS, TIMESTAMP_MS
from tests.support.task_rows import type_of


def rows_of(
    *rows: tuple[int, str | None, str], times: Sequence[int | None] = (), offset: int | None = None
) -> pa.Table:
    """Rows of (output, key, value); a value that begins with ! is a dead letter."""
    columns = dict.fromkeys(TASK_COLUMNS)
    given = [
        {
            OUTPUT: output,
            KEY: key and key.encode(),
            VALUE: value.encode(),
            REASON: "bad" if value[0] == "!" else None,
            TIMESTAMP_MS: time,
            OFFSET: offset,
        }
        for (output, key, value), time in zip_longest(rows, times)
    ]
    schema = type_of(SINK_PARTITION, OUTPUT, KEY, VALUE, TIMESTAMP_MS, OFFSET, REASON)
    return pa.Table.from_pylist([columns | {SINK_PARTITION: 0} | row for row in given], schema=schema)


def test_of_rows_without_offsets_the_latest_by_time_is_the_last():
    given = [(0, "a", "new"), (0, "b", "first"), (0, "a", "old"), (0, "b", "second"), (0, "c", "1"), (0, "c", "2")]
    times = [9, 5, 3, 5, None, None]
    kept = last_of_each_key(rows_of(*given, times=times), [0])[VALUE].to_pylist()
    assert kept == [b"new", b"second", b"2"]
    of_a_source = last_of_each_key(rows_of(*given, times=times, offset=7), [0])[VALUE].to_pylist()
    assert of_a_source == [b"old", b"second", b"2"], "as they came"


def test_the_record_cache_keeps_the_last_row_of_each_key_of_its_outputs():
    given = [(0, "a", "1"), (1, "a", "2"), (0, "b", "3"), (0, "a", "4"), (1, "a", "5"), (0, "a", "!6"), (0, "a", "!7")]
    rows = rows_of(*given)
    kept = [value.decode() for value in last_of_each_key(rows, [0])[VALUE].to_pylist()]
    assert kept == ["2", "3", "4", "5", "!6", "!7"], "dead letters and other outputs go on as they are"
    assert last_of_each_key(rows, [0, 1])[VALUE].to_pylist() == [b"3", b"4", b"5", b"!6", b"!7"]


def test_a_full_cache_writes_what_was_updated_longest_ago():
    given = [(0, key, f"{key}{nth}") for nth in range(3) for key in "abcdefgh"] + [(0, "a", "a3")]
    cache = RecordCache(max_bytes=4 * (ROW_BYTES + 3), cached_outputs=[0])
    for row in given:
        cache.put(rows_of(row, offset=7))
    assert cache.early[0, 0] > 0
    assert cache.held_bytes <= 4 * (ROW_BYTES + 3)
    written = [value.decode() for value in cache.flush()[VALUE].to_pylist()]
    assert written[-1] == "a3"
    assert {value[0]: value for value in written} == {key: f"{key}2" for key in "bcdefgh"} | {"a": "a3"}


def test_a_cache_of_0_bytes_writes_every_row():
    cache = RecordCache(max_bytes=0, cached_outputs=[0])
    cache.put(rows_of((0, "a", "1"), (0, "a", "2")))
    assert cache.flush()[VALUE].to_pylist() == [b"1", b"2"]
    assert (cache.saved.total(), cache.early.total()) == (0, 0)
