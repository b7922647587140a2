"""Refuses rows whose value the store's readers couldn't decode: they become dead letters. Pure, on Arrow tables.

A store must not hold what no door shows. So the serde that decodes a value at the nodes judges it before it is written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from processor.rows import DETAIL, KEY, REASON, VALUE, DeadLetterReason
from processor.sink.store_values import StoreValues
from processor.sink.task_rows import OUTPUT
from statehouse.serdes.json_documents import read_json

_KEY_SHOWN_MAX: Final = 200
_DETAIL_MAX: Final = 1_000


def _read_number(form: struct.Struct, data: bytes) -> None:
    if len(data) != form.size:
        raise ValueError(f"{len(data)} bytes where {form.size} are expected")


# As `statehouse.serdes` decodes them, without making the answer. Other serdes have plug-ins of their own, or take any
# bytes.
_READ: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "json": read_json,
    "string": bytes.decode,
    "long": partial(_read_number, struct.Struct(">q")),
    "double": partial(_read_number, struct.Struct(">d")),
}


def with_unreadable_refused(rows: pa.Table, outputs: Sequence[StoreValues]) -> pa.Table:
    """Return rows; those whose value is not of its store's serde are refused. A null value deletes."""
    reads = [_READ.get(output.serde) for output in outputs]
    if not any(reads):
        return rows
    refused: dict[int, str] = {}
    columns = (rows[name].to_pylist() for name in (OUTPUT, VALUE, REASON))
    for number, (place, value, reason) in enumerate(zip(*columns, strict=True)):
        read = reads[place]
        if read is None or value is None or reason is not None:
            continue
        try:
            read(value)
        except ValueError as error:
            key = rows[KEY][number].as_py()
            refused[number] = _detail(outputs[place], key, error)
    if not refused:
        return rows
    reasons, details = rows[REASON].to_pylist(), rows[DETAIL].to_pylist()
    for number, detail in refused.items():
        reasons[number], details[number] = DeadLetterReason.UNREADABLE_VALUE.value, detail
    for name, texts in ((REASON, reasons), (DETAIL, details)):
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, name, pa.array(texts, rows.schema.field(place).type))
    return rows


def _detail(output: StoreValues, key: bytes | None, error: ValueError) -> str:
    shown = (key or b"").decode(errors="backslashreplace")[:_KEY_SHOWN_MAX]
    return f"store {output.store!r}, key {shown!r}: the value is no {output.serde}: {error}"[:_DETAIL_MAX]
