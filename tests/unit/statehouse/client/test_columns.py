"""The columns of each kind of store and serde, and what becomes of what doesn't decode."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pytest

from statehouse.client.answers import Store
from statehouse.client.columns import PageColumns, checked_columns, columns_of
from statehouse.client.store_frame import StoreFrame
from statehouse.contract.paging import KeyRange
from statehouse.errors import ConfigurationError
from statehouse.serdes import json_value
from statehouse.v1 import query_service_pb2, types_pb2

MOMENT: Final = pa.timestamp("us", tz="UTC")
EVERY: Final = KeyRange()
STAMP: Final = types_pb2.ReplicaStamp(partition=2, position=17)


def store_of(key_serde: str = "string", value_serde: str = "json", kind: str = "key-value") -> Store:
    return Store("s", kind, key_serde, value_serde, "t", 3, 0, partitioner="murmur2")


def entry(key: bytes | str, value: Any, timestamp_ms: int | None = None) -> query_service_pb2.Entry:
    """Return an entry: bytes as they are sent raw, the rest as nodes decode it."""
    wire = value if isinstance(value, types_pb2.Value) else types_pb2.Value(raw=value)
    shown = types_pb2.Key(raw=key) if isinstance(key, bytes) else types_pb2.Key(text=key)
    return query_service_pb2.Entry(key=shown, value=wire, timestamp_ms=timestamp_ms)


def rows_of(
    store: Store, *entries: query_service_pb2.Entry, keys: KeyRange = EVERY, **options: Any
) -> list[dict[str, Any]]:
    frame = StoreFrame(store, columns_of(store, **options), options.get("raw", False))
    response = query_service_pb2.ScanResponse(entries=entries, replicas=[STAMP])
    found: list[dict[str, Any]] = PageColumns(frame).batch(response, keys).to_pylist()
    return found


@pytest.mark.parametrize(
    ("serde", "data", "expected_type", "expected"),
    [
        ("string", "Zoë".encode(), pa.string(), "Zoë"),
        ("json", b'{"a":1}', pa.string(), '{"a":1}'),
        ("long", struct.pack(">q", -5), pa.int64(), -5),
        ("double", struct.pack(">d", 1.5), pa.float64(), 1.5),
        ("bytes", b"\xff\x00", pa.binary(), b"\xff\x00"),
    ],
)
def test_a_column_has_the_type_of_its_serde(serde: str, data: bytes, expected_type: Any, expected: Any) -> None:
    store = store_of(serde, serde)
    assert columns_of(store).field("key").type == columns_of(store).field("value").type == expected_type
    (row,) = rows_of(store, entry(data, data, 1_500))
    moment = datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert row == {"key": expected, "value": expected, "timestamp": moment, "partition": 2, "position": 17}
    (row,) = rows_of(store, entry(data, data), raw=True)
    assert (row["key"], row["value"], row["timestamp"]) == (data, data, None)


@pytest.mark.parametrize("serde", ["string", "json", "long", "double"])
def test_what_does_not_decode_is_null_and_the_others_are_there(serde: str) -> None:
    good = {"long": struct.pack(">q", 7), "double": struct.pack(">d", 7.0)}.get(serde, b"7")
    rows = rows_of(store_of(serde, serde), entry(b"\xff", b"\xff"), entry(good, b"\xff"), entry(good, good))
    assert [row["key"] is None for row in rows] == [True, False, False]
    assert [row["value"] is None for row in rows] == [True, True, False]


def test_a_key_that_does_not_decode_is_in_no_range() -> None:
    page = [entry(b"a", b"1"), entry(b"a\xff", b"2"), entry(b"b", b"3")]
    assert [row["key"] for row in rows_of(store_of(), *page)] == ["a", None, "b"]
    assert [row["key"] for row in rows_of(store_of(), *page, keys=KeyRange(b"a"))] == ["a", "b"]
    assert [row["key"] for row in rows_of(store_of(), *page, keys=KeyRange(b"a", b"b"))] == ["a"]


def test_a_document_may_have_a_type() -> None:
    wanted = pa.struct({"score": pa.float64(), "tags": pa.list_(pa.string())})
    page = [
        entry(b"a", b'{"score":1,"tags":["x"]}'),
        entry(b"b", b"[1]"),
        entry(b"c", b"{"),
        entry(b"d", b"[" * 10_000),
    ]
    rows = rows_of(store_of(), *page, value_type=wanted)
    assert [row["value"] for row in rows] == [{"score": 1.0, "tags": ["x"]}, None, None, None]


def test_a_plug_in_s_serdes_come_decoded_by_the_node() -> None:
    def shown(document: Any) -> types_pb2.Value:
        return types_pb2.Value(json=json_value(document))

    page = [entry('{"id":1}', shown({"b": "ë", "a": 2})), entry(b"\x00\x01", types_pb2.Value(raw=b"\x00"))]
    store = store_of("avro", "avro")
    assert not StoreFrame(store, columns_of(store)).reads_bytes
    rows = rows_of(store, *page)
    assert [row["key"] for row in rows] == ['{"id":1}', None]
    assert [row["value"] for row in rows] == ['{"a":2,"b":"ë"}', None]
    rows = rows_of(store, *page, value_type=pa.struct({"a": pa.int64()}))
    assert [row["value"] for row in rows] == [{"a": 2}, None]


def test_what_was_asked_for_by_the_bytes_of_a_plug_in_s_key_is_there() -> None:
    asked = b"\x00\x01"
    rows = rows_of(store_of("avro"), entry("one", b"1"), keys=KeyRange(asked, asked + b"\0"))
    assert [row["key"] for row in rows] == ["one"]


@pytest.mark.parametrize(
    ("serde", "value", "expected"),
    [
        ("string", types_pb2.Value(text="x"), "x"),
        ("long", types_pb2.Value(long=3), 3),
        ("double", types_pb2.Value(double=1.5), 1.5),
        ("bytes", types_pb2.Value(raw=b"\xff"), b"\xff"),
        ("json", types_pb2.Value(json=json_value([1])), "[1]"),
        ("long", types_pb2.Value(raw=b"\xff"), None),
    ],
)
def test_beside_a_plug_in_s_keys_our_own_values_come_decoded(serde: str, value: types_pb2.Value, expected: Any) -> None:
    (row,) = rows_of(store_of("avro", serde), entry("1", value))
    assert row["value"] == expected


@pytest.mark.parametrize(
    ("serde", "text", "key"), [("long", "-7", -7), ("bytes", "ff00", b"\xff\x00"), ("string", "x", "x")]
)
def test_beside_a_plug_in_s_values_our_own_keys_have_their_types(serde: str, text: str, key: Any) -> None:
    rows = rows_of(store_of(serde, "avro"), entry(text, types_pb2.Value(json=json_value(1))), entry(b"\xfe", b""))
    assert rows[0]["key"] == key
    assert rows[1]["key"] == (b"\xfe" if serde == "bytes" else None)


def test_windows_and_sessions_have_their_times() -> None:
    window = query_service_pb2.Window(start_ms=1_000, end_ms=2_000, value=types_pb2.Value(raw=b"3"), timestamp_ms=5)
    key = types_pb2.Key(raw=b"a")
    store = store_of(kind="window")
    assert columns_of(store).names == ["key", "value", "start", "end", "sequence", "timestamp", "partition", "position"]
    page = query_service_pb2.ScanWindowsResponse(
        windows=[query_service_pb2.KeyedWindow(key=key, window=window, sequence=4)], replicas=[STAMP]
    )
    (row,) = PageColumns(StoreFrame(store, columns_of(store))).batch(page, KeyRange()).to_pylist()
    assert (row["start"].timestamp(), row["end"].timestamp(), row["sequence"], row["value"]) == (1.0, 2.0, 4, "3")

    store = store_of(kind="session")
    assert columns_of(store).names == ["key", "value", "start", "end", "timestamp", "partition", "position"]
    session = query_service_pb2.Session(start_ms=1_000, end_ms=2**62, value=types_pb2.Value(raw=b"3"))
    keyed = query_service_pb2.KeyedSession(key=key, session=session)
    answer = query_service_pb2.ScanSessionsResponse(sessions=[keyed], replicas=[STAMP])
    (row,) = PageColumns(StoreFrame(store, columns_of(store))).batch(answer, KeyRange()).to_pylist()
    assert (row["start"].timestamp(), row["end"], row["timestamp"]) == (1.0, None, None), "too large for a timestamp"


def test_a_page_of_several_partitions_has_no_position_and_one_without_says_none() -> None:
    store = store_of()
    frame = StoreFrame(store, columns_of(store))
    for stamps in ([STAMP, types_pb2.ReplicaStamp(partition=0, position=3)], [types_pb2.ReplicaStamp(partition=2)]):
        page = query_service_pb2.ScanResponse(entries=[entry(b"a", b"1")], replicas=stamps)
        (row,) = PageColumns(frame).batch(page, KeyRange()).to_pylist()
        assert (row["partition"], row["position"]) == (2 if len(stamps) == 1 else None, None)


def test_some_columns_are_enough_in_any_order() -> None:
    store = store_of()
    schema = checked_columns(pa.schema([("position", pa.int64()), ("value", pa.map_(pa.string(), pa.int64()))]), store)
    page = query_service_pb2.ScanResponse(entries=[entry(b"a", json.dumps({"x": 1}).encode())], replicas=[STAMP])
    batch = PageColumns(StoreFrame(store, schema)).batch(page, KeyRange(b"a", b"b"))
    assert batch.to_pylist() == [{"position": 17, "value": [("x", 1)]}]
    assert batch.schema == schema


@pytest.mark.parametrize(
    ("field", "serde", "raw", "message"),
    [
        (("score", pa.int64()), "json", False, "no column 'score'; it has key, value, timestamp"),
        (("key", pa.int64()), "json", False, "column key of store s is string, not int64"),
        (("value", pa.int32()), "long", False, "only documents"),
        (("value", pa.string()), "json", True, "raw"),
        (("value", pa.binary()), "json", False, "JSON can't be read as binary"),
    ],
)
def test_columns_that_can_not_be_are_refused(field: tuple[str, Any], serde: str, raw: bool, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        checked_columns(pa.schema([field]), store_of(value_serde=serde), raw=raw)
    if field[0] == "value":
        with pytest.raises(ConfigurationError, match=message):
            columns_of(store_of(value_serde=serde), raw=raw, value_type=field[1])


def test_a_plugins_document_comes_as_it_is_written() -> None:
    document = '{"id":1234567890123456789,"few":[9007199254740993,"9007199254740993",1.0]}'
    (row,) = rows_of(store_of(value_serde="avro"), entry("one", types_pb2.Value(json_text=document)))
    assert row["value"] == document
    typed = pa.struct([("id", pa.int64()), ("few", pa.list_(pa.string()))])
    (row,) = rows_of(store_of(value_serde="avro"), entry("one", types_pb2.Value(json_text=document)), value_type=typed)
    assert row["value"]["id"] == 1234567890123456789
