"""Answers made as bytes: the same messages that protobuf would have made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query_service.reads.fleet_view import ServedStore
from query_service.reads.get_responses import answer, stamped
from query_service.stores.timestamps import NO_TIMESTAMP
from statehouse.contract.topology import StoreSpec
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import SERDES
from statehouse.serdes.wire import framed, frames, result_of
from statehouse.v1 import query_service_pb2, types_pb2

# Around the lengths at which a length takes a byte more, or is no longer at hand.
LENGTHS = st.one_of(
    st.integers(0, 300),
    st.sampled_from([0x7F, 0x80, 0x7FF, 0x800, 0x3FFF, 0x4000]).flatmap(lambda n: st.integers(n - 9, n + 9)),
)
STAMPS = st.builds(
    types_pb2.ReplicaStamp,
    partition=st.integers(0, 99),
    epoch=st.integers(0, 2**64 - 1),
    host=st.builds(types_pb2.Host, instance_id=st.text(max_size=300), port=st.integers(0, 65535)),
    role=st.sampled_from([types_pb2.REPLICA_ROLE_ACTIVE, types_pb2.REPLICA_ROLE_STANDBY]),
    position=st.none() | st.integers(-(2**63), 2**63 - 1),
    lag=st.none() | st.integers(0, 2**63 - 1),
)


def _served(name: str) -> ServedStore:
    return ServedStore(StoreSpec("s", "t", 1, 0, value_serde=name), SERDES["string"], SERDES[name])


def _stored(name: str, length: int) -> bytes:
    if name in {"long", "double"}:
        return length.to_bytes(8, "big")
    return f'"{"v" * length}"'.encode()


# Around the numbers at which a time takes a byte more, those of our days, and none.
TIMES = st.one_of(
    st.just(NO_TIMESTAMP),
    st.integers(1_600_000_000_000, 1_900_000_000_000),
    st.integers(0, 63).flatmap(lambda bits: st.integers(max(0, 2**bits - 2), 2**bits - 1)),
)
ANSWERS = st.tuples(st.sampled_from([*SERDES]), st.none() | LENGTHS, TIMES, st.booleans(), STAMPS)


@pytest.mark.feature("routers-pass-answers")
@given(st.lists(ANSWERS, max_size=5))
def test_bytes_are_the_message(answers: list[tuple[str, int | None, int, bool, types_pb2.ReplicaStamp]]) -> None:
    expected = query_service_pb2.BatchGetResponse()
    results = []
    for name, length, timestamp_ms, raw, stamp in answers:
        data = None if length is None else _stored(name, length)
        message = query_service_pb2.GetResponse(found=data is not None, replica=stamp)
        if data is not None:
            value = types_pb2.Value(raw=data) if raw else SERDES[name].value(data)
            message.value.CopyFrom(value)
            if timestamp_ms >= 0:
                message.timestamp_ms = timestamp_ms
        found = None if data is None else (data, timestamp_ms)
        made = answer(_served(name), found, raw=raw, stamp=stamped(stamp))
        assert query_service_pb2.GetResponse.FromString(made) == message
        results.append(result_of(made))
        expected.results.add().response.CopyFrom(message)
    failure = LookupFailure(Reason.PARTITION_RESTORING, "not yet")
    results.append(result_of(failure))
    expected.results.add(error=failure.to_proto())
    batch = framed(results)
    assert query_service_pb2.BatchGetResponse.FromString(batch) == expected
    assert list(frames(batch)) == results
