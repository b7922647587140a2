"""The forms of an export's files: Parquet, and a document of JSON a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from statehouse.cli import output
from statehouse.cli.export_files import PartFile
from statehouse.client.columns import arrow, is_document
from statehouse.client.store_frame import StoreFrame
from statehouse.serdes.json_documents import read_json

# A row group of Parquet has so many rows, or so many bytes, whichever is less.
_GROUP_ROWS: Final = 65_536
_GROUP_BYTES: Final = 16 * 1024 * 1024
NOT_IN_FILES: Final = frozenset({"partition", "position"})
"""Columns of a frame that the manifest has once for each file."""


class ExportFormat(StrEnum):
    """The form of the files."""

    PARQUET = "parquet"
    NDJSON = "ndjson"


class _ParquetWriter:
    """Writes batches of rows as groups of many."""

    def __init__(self, file: PartFile, frame: StoreFrame) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

        schema = arrow().schema([column for column in frame.schema if column.name not in NOT_IN_FILES])
        self._schema = schema
        self._writer = pq.ParquetWriter(file.sink, schema)
        self._batches: list[Any] = []
        self._rows = self._bytes = 0

    def write(self, batch: Any) -> None:  # noqa: ANN401 - a pyarrow.RecordBatch
        self._batches.append(batch)
        self._rows, self._bytes = self._rows + batch.num_rows, self._bytes + batch.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._batches:
            self._writer.write_table(arrow().Table.from_batches(self._batches, self._schema))
            self._batches, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


class _LinesWriter:
    """Writes a document of JSON a row: values that are documents as they are, as `statehouse scan -o json` does."""

    def __init__(self, file: PartFile, frame: StoreFrame) -> None:
        self._file = file
        self._has_documents = not frame.raw and is_document(frame.store.value_serde)

    def write(self, batch: Any) -> None:  # noqa: ANN401 - a pyarrow.RecordBatch
        pa = arrow()
        columns: dict[str, list[Any]] = {}
        for name in batch.schema.names:
            column = batch.column(name)
            if pa.types.is_timestamp(column.type):
                columns[f"{name}_ms"] = [
                    None if each is None else each // 1_000 for each in column.cast(pa.int64()).to_pylist()
                ]
            else:
                columns[name] = column.to_pylist()
        if self._has_documents:
            columns["value"] = [None if each is None else read_json(each.encode()) for each in columns["value"]]
        rows = zip(*columns.values(), strict=True)
        lines = (json.dumps(output.jsonable(dict(zip(columns, row, strict=True))), ensure_ascii=False) for row in rows)
        self._file.sink.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        """All is written."""


WRITERS: Final[Mapping[ExportFormat, Callable[[PartFile, StoreFrame], Any]]] = MappingProxyType(
    {ExportFormat.PARQUET: _ParquetWriter, ExportFormat.NDJSON: _LinesWriter}
)
