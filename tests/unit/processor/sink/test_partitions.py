"""Places of records: by the key, by the number of the source partition, in each output's own count."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from processor.rows import KEY, PARTITION, REASON
from processor.sink.partitions import placed
from processor.sink.task_rows import OUTPUT, SINK_PARTITION, SUFFIX
from statehouse.contract.partitioning import partition_for
from tests.support.task_rows import type_of

COUNTS = (3, 7, 1)
TYPE = type_of(OUTPUT, KEY, SUFFIX, PARTITION, REASON)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            OUTPUT: st.integers(0, len(COUNTS) - 1),
            KEY: st.none() | st.binary(max_size=9),
            SUFFIX: st.just(b"") | st.binary(min_size=12, max_size=12),
            PARTITION: st.none() | st.integers(0, 11),
            REASON: st.none() | st.just("not_json"),
        }
    ),
    min_size=1,
)


@given(RECORDS, st.integers(1, 9), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_each_record_has_its_place_and_its_whole_key(
    rows: list[dict[str, object]], size: int, key_type: pa.DataType
) -> None:
    kind = pa.schema([field.with_type(key_type) if field.name in {KEY, SUFFIX} else field for field in TYPE])
    given_rows = pa.Table.from_pylist(rows, kind)
    chunked = pa.Table.from_batches(given_rows.to_batches(size), kind)
    found = placed(chunked, COUNTS).to_pylist()
    for row, record in zip(rows, found, strict=True):
        key, is_refused = row[KEY], row[REASON] is not None
        count = max(COUNTS) if is_refused else COUNTS[row[OUTPUT]]
        by_key = isinstance(key, bytes) and not is_refused
        assert record[SINK_PARTITION] == (partition_for(key, count) if by_key else (row[PARTITION] or 0) % count)
        assert record[KEY] == (key + row[SUFFIX] if by_key else key)
        assert SUFFIX not in record


def test_rows_that_spark_has_placed_stay_there() -> None:
    row = {OUTPUT: 0, KEY: b"key", SUFFIX: b"", PARTITION: None, REASON: None}
    by_spark = pa.Table.from_pylist([row], TYPE).append_column(SINK_PARTITION, pa.array([2], pa.int32()))
    assert placed(by_spark, COUNTS).to_pylist() == [
        {OUTPUT: 0, KEY: b"key", PARTITION: None, REASON: None, SINK_PARTITION: 2}
    ]
