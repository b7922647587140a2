"""Values that a store's serde can't read become dead letters before they are written."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from processor.sink.store_values import StoreValues
from processor.sink.value_check import with_unreadable_refused

OUTPUTS = [
    StoreValues("documents", "json"),
    StoreValues("texts", "string"),
    StoreValues("longs", "long"),
    StoreValues("doubles", "double"),
    StoreValues("bytes", "bytes"),
    StoreValues("orders", "avro"),
    StoreValues(),
]
JSON, STRING, LONG, DOUBLE, BYTES, PLUGIN, TOPIC = range(7)


def rows(*given: tuple[int, bytes | None, str | None]) -> pa.Table:
    outputs, values, reasons = zip(*given, strict=True)
    return pa.table(
        {
            "_output": pa.array(outputs, pa.int32()),
            "key": pa.array([b"\xffkey" * 100] * len(given), pa.binary()),
            "value": pa.array(values, pa.binary()),
            "reason": pa.array(reasons, pa.string()),
            "detail": pa.array([None] * len(given), pa.string()),
        }
    )


@pytest.mark.parametrize(
    ("output", "value", "is_readable"),
    [
        (JSON, b'{"sum": 1}', True),
        (JSON, b'{"sum": Infinity}', False),
        (JSON, b"plain text", False),
        (JSON, None, True),
        (STRING, "Zoë".encode(), True),
        (STRING, b"\xff", False),
        (STRING, b"", True),
        (LONG, struct.pack(">q", 5), True),
        (LONG, b"5", False),
        (DOUBLE, struct.pack(">d", float("nan")), True),
        (DOUBLE, b"", False),
        (BYTES, b"\xff", True),
        (PLUGIN, b"\xff", True),
        (TOPIC, b"NaN", True),
    ],
)
def test_each_serde_judges_its_values(output: int, value: bytes | None, is_readable: bool) -> None:
    judged = with_unreadable_refused(rows((output, value, None)), OUTPUTS)
    assert (judged["reason"].to_pylist() == [None]) is is_readable
    if not is_readable:
        (detail,) = judged["detail"].to_pylist()
        assert detail.startswith(f"store {OUTPUTS[output].store!r}, key '\\\\xffkey")
        assert len(detail) <= 1_000


def test_other_rows_stay_as_they_are_and_a_letter_keeps_its_reason() -> None:
    given = rows((JSON, b"1", None), (JSON, b"NaN", None), (JSON, b"NaN", "not_json"), (TOPIC, b"x", None))
    judged = with_unreadable_refused(given, OUTPUTS)
    assert judged["reason"].to_pylist() == [None, "unreadable_value", "not_json", None]
    assert judged.schema == given.schema
    assert judged.drop_columns(["reason", "detail"]) == given.drop_columns(["reason", "detail"])
    sound = rows((JSON, b"1", None))
    assert with_unreadable_refused(sound, OUTPUTS) is sound
