"""A store's columns, and pages of it as Arrow record batches. pyarrow is imported when it is first used."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from statehouse.client.answers import Store
from statehouse.client.store_frame import StoreFrame
from statehouse.client.typed_json import typed_by
from statehouse.contract.paging import KeyRange
from statehouse.contract.topology import SESSION, WINDOW
from statehouse.errors import ConfigurationError
from statehouse.serdes import SERDES, from_json_value
from statehouse.serdes.json_documents import read_json
from statehouse.v1 import query_service_pb2, types_pb2

ScanResponse = (
    query_service_pb2.ScanResponse | query_service_pb2.ScanWindowsResponse | query_service_pb2.ScanSessionsResponse
)
_LONG, _DOUBLE = struct.Struct(">q"), struct.Struct(">d")
_LAST_MS: Final = (2**63 - 1) // 1_000  # of a timestamp in microseconds
# The serde of documents, whose readers see JSON.
_DOCUMENT: Final = "json"


def arrow() -> Any:  # noqa: ANN401 - a module without types
    """Return pyarrow.

    Raises:
        ConfigurationError: it isn't installed.

    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            "stores as tables and frames need pyarrow and pandas: install statehouse[dataframe]"
        ) from error
    return pa


def columns_of(store: Store, *, raw: bool = False, value_type: Any = None) -> Any:  # noqa: ANN401 - of pyarrow
    """Return all columns of a store as a pyarrow.Schema.

    `value_type`: a pyarrow.DataType for values that are documents, in place of text.

    Raises:
        ConfigurationError: the values aren't documents, or JSON can't be read as `value_type`.

    """
    pa = arrow()
    key_type = pa.binary() if raw else _type_of(pa, store.key_serde)
    if value_type is None:
        value_type = pa.binary() if raw else _type_of(pa, store.value_serde)
    else:
        _refuse_type(store, raw=raw)
        typed_by(value_type)
    moment = pa.timestamp("us", tz="UTC")
    times: dict[str, Any] = {}
    if store.kind in {WINDOW, SESSION}:
        times = {"start": moment, "end": moment}
    if store.kind == WINDOW:
        times["sequence"] = pa.int64()
    columns = {"key": key_type, "value": value_type, **times, "timestamp": moment}
    return pa.schema([*columns.items(), ("partition", pa.int32()), ("position", pa.int64())])


def checked_columns(schema: Any, store: Store, *, raw: bool = False) -> Any:  # noqa: ANN401 - of pyarrow
    """Return a pyarrow.Schema of some of a store's columns, if they can be read so: documents may have another type.

    Raises:
        ConfigurationError: the store has no such column, or the column has another type.

    """
    known = columns_of(store, raw=raw)
    for field in schema:
        if field.name not in known.names:
            raise ConfigurationError(
                f"store {store.name} has no column {field.name!r}; it has {', '.join(known.names)}"
            )
        wanted = known.field(field.name).type
        if field.type == wanted:
            continue
        if field.name != "value":
            raise ConfigurationError(f"column {field.name} of store {store.name} is {wanted}, not {field.type}")
        _refuse_type(store, raw=raw)
        typed_by(field.type)
    return schema


def _refuse_type(store: Store, *, raw: bool) -> None:
    if raw:
        raise ConfigurationError("raw values are bytes: ask for raw, or for a type")
    if not is_document(store.value_serde):
        raise ConfigurationError(
            f"values of store {store.name} have the serde {store.value_serde}: only documents can have another type"
        )


def _form(serde: str) -> str:
    """Return the serde by which we read the bytes that we get of a value: a plug-in's is a document when it comes."""
    return serde if serde in SERDES else _DOCUMENT


def is_document(serde: str) -> bool:
    """Whether readers see values of a serde as documents."""
    return _form(serde) == _DOCUMENT


def _type_of(pa: Any, serde: str) -> Any:  # noqa: ANN401 - of pyarrow
    return {"long": pa.int64(), "double": pa.float64(), "bytes": pa.binary()}.get(serde, pa.string())


class PageColumns:
    """Makes record batches of a frame's pages. A key or value that doesn't decode is null."""

    def __init__(self, frame: StoreFrame) -> None:
        """Prepare.

        Raises:
            ConfigurationError: pyarrow isn't installed.

        """
        self._pa = arrow()
        self._frame = frame
        self._schema = frame.schema
        self._key_serde, self._value_serde = frame.store.key_serde, _form(frame.store.value_serde)
        value_type = next((field.type for field in frame.schema if field.name == "value"), None)
        is_typed = self._value_serde == _DOCUMENT and not frame.raw and value_type not in {None, self._pa.string()}
        self._typed = typed_by(value_type) if is_typed else None

    def batch(self, response: ScanResponse, keys: KeyRange) -> Any:  # noqa: ANN401 - a pyarrow.RecordBatch
        """Return the entries of a page within the range as a RecordBatch.

        A key that doesn't decode compares with nothing, and so is in no range except the range of all keys.
        """
        found: Any = _entries(response)
        data = [self._key(entry.key) for entry in found]
        stop = keys.stop if self._frame.reads_bytes or self._key_serde in SERDES else None  # see `scan_request`
        while data and stop is not None and data[-1] is not None and data[-1] >= stop:
            data.pop()
        entries = [_timed(entry) for entry in found[: len(data)]]
        size, stamps = len(entries), response.replicas
        stamp = stamps[0] if len(stamps) == 1 else None
        position = stamp.position if stamp and stamp.HasField("position") else None
        made: Mapping[str, Callable[[], Any]] = {
            "key": lambda: self._bytes(data) if self._frame.raw else self._keys(data),
            "value": lambda: self._values([self._value(entry.value) for entry in entries]),
            "start": lambda: self._times([entry.start_ms for entry in entries]),
            "end": lambda: self._times([entry.end_ms for entry in entries]),
            "sequence": lambda: self._pa.array([entry.sequence for entry in found[:size]], self._pa.int64()),
            "timestamp": lambda: self._times(
                [entry.timestamp_ms if entry.HasField("timestamp_ms") else None for entry in entries]
            ),
            "partition": lambda: self._constant(stamp.partition if stamp else None, size, self._pa.int32()),
            "position": lambda: self._constant(position, size, self._pa.int64()),
        }
        batch = self._pa.RecordBatch.from_arrays([made[name]() for name in self._schema.names], schema=self._schema)
        if keys != KeyRange():
            decoded = self._keys(data)
            if decoded.null_count:
                batch = batch.filter(decoded.is_valid())
        return batch

    def _key(self, key: types_pb2.Key) -> bytes | None:
        """Return a key's bytes: those in the changelog, of a plug-in's serde its text."""
        serde = SERDES.get(self._key_serde)
        if self._frame.reads_bytes or (serde is not None and key.WhichOneof("key") == "raw"):
            return key.raw
        if serde is not None:
            return serde.parse(key.text)
        return key.text.encode() if key.WhichOneof("key") == "text" else None

    def _value(self, value: types_pb2.Value) -> bytes | None:  # noqa: PLR0911 - a table of forms
        """Return a value's bytes: those in the changelog, of a plug-in's serde its document's."""
        if self._frame.reads_bytes:
            return value.raw
        match value.WhichOneof("value"):
            case "json_text":
                return value.json_text.encode()
            case "json":
                return json.dumps(from_json_value(value.json), separators=(",", ":"), ensure_ascii=False).encode()
            case "text":
                return value.text.encode()
            case "long":
                return _LONG.pack(value.long)
            case "double":
                return _DOUBLE.pack(value.double)
            case _:
                return value.raw if self._frame.store.value_serde in SERDES else None

    def _keys(self, data: Sequence[bytes | None]) -> Any:  # noqa: ANN401 - a pyarrow.Array
        return self._decoded(self._key_serde, data)

    def _values(self, data: Sequence[bytes | None]) -> Any:  # noqa: ANN401 - a pyarrow.Array
        if self._frame.raw:
            return self._bytes(data)
        if self._typed is None:
            if self._value_serde == _DOCUMENT:
                data = [each if each is None or _is_json(each) else None for each in data]
            return self._decoded(self._value_serde, data)
        field = self._schema.field("value")
        return self._pa.array([self._document(each) for each in data], field.type)

    def _document(self, data: bytes | None) -> Any:  # noqa: ANN401 - as pyarrow takes it
        assert self._typed is not None  # noqa: S101 - the caller has checked
        try:
            return None if data is None else self._typed(read_json(data))
        except ValueError:
            return None

    def _decoded(self, serde: str, data: Sequence[bytes | None]) -> Any:  # noqa: ANN401 - a pyarrow.Array
        match serde:
            case "long":
                return self._pa.array(_unpacked(_LONG, data), self._pa.int64())
            case "double":
                return self._pa.array(_unpacked(_DOUBLE, data), self._pa.float64())
            case "bytes":
                return self._bytes(data)
        try:
            return self._bytes(data).cast(self._pa.string())
        except self._pa.ArrowInvalid:
            return self._pa.array([_text(each) for each in data], self._pa.string())

    def _bytes(self, data: Sequence[bytes | None]) -> Any:  # noqa: ANN401 - a pyarrow.Array
        return self._pa.array(data, self._pa.binary())

    def _times(self, times_ms: Sequence[int | None]) -> Any:  # noqa: ANN401 - a pyarrow.Array
        """Return times; those that a column of timestamps can't hold are null."""
        kept = [None if each is None or abs(each) > _LAST_MS else each * 1_000 for each in times_ms]
        return self._pa.array(kept, self._pa.int64()).cast(self._pa.timestamp("us", tz="UTC"))

    def _constant(self, value: int | None, size: int, kind: Any) -> Any:  # noqa: ANN401 - of pyarrow
        return self._pa.nulls(size, kind) if value is None else self._pa.repeat(self._pa.scalar(value, kind), size)


def _entries(response: ScanResponse) -> Any:  # noqa: ANN401 - repeated messages of either kind
    if isinstance(response, query_service_pb2.ScanWindowsResponse):
        return response.windows
    return response.sessions if isinstance(response, query_service_pb2.ScanSessionsResponse) else response.entries


def _timed(entry: Any) -> Any:  # noqa: ANN401 - as above
    """Return the message with an entry's value and times."""
    if isinstance(entry, query_service_pb2.KeyedWindow):
        return entry.window
    return entry.session if isinstance(entry, query_service_pb2.KeyedSession) else entry


def _unpacked(form: struct.Struct, data: Sequence[bytes | None]) -> list[Any]:
    unpack, size = form.unpack, form.size
    return [unpack(each)[0] if each is not None and len(each) == size else None for each in data]


def _is_json(data: bytes) -> bool:
    try:
        read_json(data)
    except ValueError:
        return False
    return True


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None
