"""How rows are packed on their way to a state operator."""

from __future__ import annotations

import pyarrow as pa
import pytest

from processor.operators.workers import buckets
from processor.operators.workers.packing import arrow_bytes, arrow_table


def batch(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    """Return a batch under names that aren't the operator's, as Spark's are."""
    numbers, names = ([row[place] for row in rows] for place in (0, 1))
    return pa.record_batch([pa.array(numbers, pa.int32()), pa.array(names, pa.string())], names=["_1", "_2"])


def packed(*batches: pa.RecordBatch) -> list[tuple[int, int, list[str | None]]]:
    """Return bucket, side and names of the rows that a packer makes."""
    rows = [row for made in buckets._Packer(1, ("bucket", "name"))(batches) for row in made.to_pylist()]
    return [(row["bucket"], row["side"], arrow_table(row["rows"])["name"].to_pylist()) for row in rows]


def test_a_buckets_rows_become_one_in_their_order():
    rows = packed(batch((2, "a"), (0, "b"), (2, None)), batch(), batch((1, "d"), (2, "e")))
    assert rows == [(0, 1, ["b"]), (1, 1, ["d"]), (2, 1, ["a", None, "e"])]


def test_nothing_becomes_nothing():
    assert packed() == packed(batch()) == []


@pytest.mark.parametrize("bound", ["_ROWS_MAX", "_BYTES_MAX"])
def test_what_is_gathered_is_bounded(bound: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(buckets, bound, 2)
    rows = packed(batch((0, "a"), (0, "b")), batch((0, "c"), (0, "d")))
    assert rows == [(0, 1, ["a", "b"]), (0, 1, ["c", "d"])]


def unpacked(*batches: list[pa.Table]) -> list[pa.RecordBatch]:
    schema = pa.schema([("key", pa.binary()), ("count", pa.int64())])
    streams = (pa.record_batch([pa.array(map(arrow_bytes, tables), pa.binary())], names=["_0"]) for tables in batches)
    return list(buckets._Unpacker(schema)(streams))


def test_what_buckets_put_out_is_unpacked_in_its_order_with_all_columns():
    counted = pa.table({"count": pa.array([1, 2], pa.int64()), "key": pa.array([b"a", b"b"])})
    only_keys = pa.table({"key": pa.array([b"c"])})
    made = unpacked([counted, only_keys], [], [counted])
    assert [row for batch in made for row in batch.to_pylist()] == [
        {"key": b"a", "count": 1},
        {"key": b"b", "count": 2},
        {"key": b"c", "count": None},
        {"key": b"a", "count": 1},
        {"key": b"b", "count": 2},
    ]
    assert len(made) == 1  # each batch costs Spark a conversion


def test_what_is_unpacked_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(buckets, "_ROWS_MAX", 2)
    keys = pa.table({"key": pa.array([b"a", b"b"])})
    assert [batch.num_rows for batch in unpacked([keys, keys, keys])] == [2, 2, 2]
    assert unpacked() == []
