"""Each source record gives one dead letter in a batch."""

from __future__ import annotations

import pyarrow as pa

from processor.rows import OFFSET, PARTITION, REASON, TOPIC
from processor.sink.dead_letters import refused_rows

TYPES = pa.schema([(TOPIC, pa.string()), (PARTITION, pa.int32()), (OFFSET, pa.int64()), (REASON, pa.string())])


def letters(*rows: tuple[str | None, int | None, int | None, str | None]) -> list[tuple[object, ...]]:
    table = pa.Table.from_pylist([dict(zip(TYPES.names, row, strict=True)) for row in rows], schema=TYPES)
    return [tuple(row.values()) for row in refused_rows(table)]


def test_a_record_in_twelve_windows_gives_one_dead_letter() -> None:
    assert letters(*[("orders", 3, 812, "not_json")] * 12) == [("orders", 3, 812, "not_json")]


def test_of_several_reasons_the_first_is_told() -> None:
    assert letters(("orders", 3, 812, "late"), ("orders", 3, 812, "raised")) == [("orders", 3, 812, "late")]


def test_an_accepted_row_hides_no_refused_one_of_its_record() -> None:
    assert letters(("orders", 3, 812, None), ("orders", 3, 812, "late")) == [("orders", 3, 812, "late")]


def test_records_that_differ_in_one_part_of_their_place_are_all_written() -> None:
    rows = [("a", 0, 0, "late"), ("b", 0, 0, "late"), ("a", 1, 0, "late"), ("a", 0, 1, "late")]
    assert letters(*rows) == rows


def test_rows_of_no_record_are_all_written() -> None:
    rows = [(None, None, None, "expression_failed")] * 2
    assert letters(*rows) == rows


def test_a_record_is_found_again_across_slices_of_the_batch() -> None:
    rows = [("orders", 0, offset, "late") for offset in range(1500)]
    assert letters(*rows, *rows) == rows
