"""Which parts of a store are read, and by which requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from statehouse.client.answers import Store
from statehouse.client.store_frame import FramePart, StoreFrame, named_store, parts_of, scan_request
from statehouse.contract.paging import KeyRange
from statehouse.contract.partitioning import partition_for
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2

STORE = Store("s", "key-value", "string", "json", "t", 3, 0, partitioner="murmur2")
EVERY = KeyRange()


def one(key: bytes) -> KeyRange:
    return KeyRange(key, key + b"\0")


def test_all_is_read_partition_by_partition() -> None:
    assert parts_of(STORE) == tuple(FramePart(number, (EVERY,)) for number in range(3))
    some = KeyRange(b"a", b"b")
    assert parts_of(STORE, [some], {2, 0}) == (FramePart(0, (some,)), FramePart(2, (some,)))
    assert parts_of(STORE, []) == parts_of(STORE, [EVERY], []) == ()


def test_single_keys_are_asked_for_where_they_are() -> None:
    keys = [one(b"%d" % number) for number in range(20)]
    parts = parts_of(STORE, keys)
    assert [part.partition for part in parts] == [0, 1, 2]
    for part in parts:
        assert part.ranges == tuple(each for each in keys if partition_for(each.start, 3) == part.partition)
    home = partition_for(b"7", 3)
    assert parts_of(STORE, [one(b"7")]) == (FramePart(home, (one(b"7"),)),)
    assert parts_of(STORE, [one(b"7")], {(home + 1) % 3}) == ()


def test_keys_of_a_partitioner_that_is_not_known_may_be_anywhere() -> None:
    unknown = replace(STORE, partitioner="another")
    assert parts_of(unknown, [one(b"7")]) == tuple(FramePart(number, (one(b"7"),)) for number in range(3))


def test_a_global_store_is_read_as_a_whole() -> None:
    everywhere = replace(STORE, is_global=True)
    assert parts_of(everywhere) == (FramePart(None, (EVERY,)),)
    assert parts_of(everywhere, [one(b"7")]) == (FramePart(None, (one(b"7"),)),)
    with pytest.raises(LookupFailure, match="global"):
        parts_of(everywhere, partitions=[0])


@pytest.mark.parametrize("partition", [3, -1])
def test_a_partition_that_is_not_there_is_refused(partition: int) -> None:
    with pytest.raises(LookupFailure, match=f"partition {partition} of 3"):
        parts_of(STORE, partitions=[0, partition])


@pytest.mark.parametrize(
    ("kind", "fields", "request_type"),
    [
        ("key-value", {}, query_service_pb2.ScanRequest),
        ("versioned", {"as_of_ms": 5}, query_service_pb2.ScanRequest),
        ("window", {"from_ms": 1, "to_ms": 2}, query_service_pb2.ScanWindowsRequest),
        ("session", {"from_ms": 1}, query_service_pb2.ScanSessionsRequest),
    ],
)
def test_each_kind_has_its_request(kind: str, fields: dict[str, Any], request_type: Any) -> None:
    frame = StoreFrame(replace(STORE, kind=kind), None, **fields)
    request = scan_request(frame, 1, EVERY, 50)
    assert request == request_type(store="s", page_size=50, raw=True, partition=1, **fields)
    assert not scan_request(frame, None, EVERY).HasField("partition")


@pytest.mark.parametrize(
    ("keys", "first", "last"),
    [
        (one(b"a"), b"a", b"a"),
        (one(b""), None, b""),
        (KeyRange(b"a", b"b"), b"a", b"b"),
        (KeyRange(b"a\0"), b"a\0", None),
    ],
)
def test_ranges_are_sent_with_inclusive_ends(keys: KeyRange, first: bytes | None, last: bytes | None) -> None:
    request = scan_request(StoreFrame(STORE, None), 0, keys)
    assert (request.from_key.raw if request.HasField("from_key") else None) == first
    assert (request.to_key.raw if request.HasField("to_key") else None) == last


def test_the_end_of_a_prefix_of_plug_in_s_keys_is_left_to_servers() -> None:
    frame = StoreFrame(replace(STORE, key_serde="avro"), None)
    request = scan_request(frame, 0, KeyRange(b"a", b"b"))
    assert (request.prefix.raw, request.HasField("from_key"), request.HasField("to_key")) == (b"a", False, False)
    assert scan_request(frame, 0, one(b"a")).to_key.raw == b"a"
    assert not scan_request(frame, 0, EVERY).HasField("prefix")


@pytest.mark.parametrize("kind", ["window", "session"])
def test_what_has_no_versions_is_not_read_as_of_a_time(kind: str) -> None:
    with pytest.raises(LookupFailure, match="as_of_ms is for versioned stores") as caught:
        StoreFrame(replace(STORE, kind=kind), None, as_of_ms=1)
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_what_has_no_windows_has_no_times() -> None:
    with pytest.raises(LookupFailure) as caught:
        StoreFrame(STORE, None, to_ms=1)
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_a_store_is_found_by_its_name() -> None:
    assert named_store([STORE], "s") is STORE
    with pytest.raises(LookupFailure, match="there are: s"):
        named_store([STORE], "t")
    with pytest.raises(LookupFailure, match="there are: none"):
        named_store([], "t")
