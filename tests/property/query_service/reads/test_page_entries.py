"""Entries of pages written as bytes: the same messages that protobuf would have made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from query_service.reads.fleet_view import ServedStore
from query_service.reads.page_responses import entry_writer
from query_service.stores.timestamps import NO_TIMESTAMP, shown_timestamp
from statehouse.contract.topology import StoreSpec
from statehouse.serdes import SERDES, shown_key, shown_value
from statehouse.v1 import query_service_pb2

# Bytes of each serde, and of none.
STORED = st.one_of(
    st.binary(max_size=12),
    st.binary(min_size=8, max_size=8),
    st.text(max_size=300).map(str.encode),
    st.integers(0, 10**6).map(lambda number: b'{"n": [%d]}' % number),
)
TIMES = st.just(NO_TIMESTAMP) | st.integers(0, 2**63 - 1)


@given(
    serdes=st.tuples(st.sampled_from([*SERDES]), st.sampled_from([*SERDES])),
    entries=st.lists(st.tuples(STORED, STORED, TIMES), max_size=5),
    raw=st.booleans(),
)
def test_bytes_are_the_message(serdes: tuple[str, str], entries: list[tuple[bytes, bytes, int]], raw: bool) -> None:
    key_serde, value_serde = (SERDES[name] for name in serdes)
    write = entry_writer(ServedStore(StoreSpec("s", "t", 1, 0, "", *serdes), key_serde, value_serde), raw=raw)
    for key, data, timestamp_ms in entries:
        assert query_service_pb2.Entry.FromString(write((key, data, timestamp_ms))) == query_service_pb2.Entry(
            key=shown_key(key_serde, key, raw=raw),
            value=shown_value(value_serde, data, raw=raw),
            timestamp_ms=shown_timestamp(timestamp_ms),
        )
