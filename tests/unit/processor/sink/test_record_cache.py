"""Which row of a key counts in the record cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import pyarrow as pa

from processor.rows import KEY, OFFSET, REASON, VALUE
from processor.sink.record_cache import last_of_each_key
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
