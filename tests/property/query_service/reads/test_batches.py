"""Batches: whatever is in one, what is made of its bytes is what the parser would make of them."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from query_service.reads.batches import Batch, batch_of
from statehouse.v1 import query_service_pb2, types_pb2

TEXTS = st.text(max_size=150)
KEYS = st.one_of(
    st.just({}),
    st.builds(lambda text: {"text": text}, TEXTS),
    st.builds(lambda raw: {"raw": raw}, st.binary(max_size=150)),
)
REQUESTS: st.SearchStrategy[query_service_pb2.GetRequest] = st.builds(
    lambda store, key, raw, more: query_service_pb2.GetRequest(store=store, key=key, raw=raw, **more),
    st.one_of(st.just("s"), TEXTS),
    st.one_of(st.none(), KEYS),
    st.booleans(),
    st.sampled_from([{}, {"freshness": {"max_lag": 3}}, {"forwarding": {"epoch": 300, "hops": 1}}]),
)


def asked(batch: Batch) -> list[query_service_pb2.GetRequest]:
    """Put the lookups together again."""
    whole = []
    for key, shape in batch.entries:
        request = query_service_pb2.GetRequest()
        request.CopyFrom(batch.shapes[shape])
        assert not request.HasField("key")
        message = types_pb2.Key(text=key) if isinstance(key, str) else key
        if message.ByteSize():
            request.key.CopyFrom(message)
        whole.append(request)
    return whole


def plain(request: query_service_pb2.GetRequest) -> query_service_pb2.GetRequest:
    """A key that is there and says nothing is none, for any reader."""
    if not request.key.ByteSize():
        request.ClearField("key")
    return request


@given(st.lists(REQUESTS, max_size=6))
def test_a_batch_asks_for_what_was_written(requests: list[query_service_pb2.GetRequest]) -> None:
    data = query_service_pb2.BatchGetRequest(requests=requests).SerializeToString()
    batch = batch_of(data)
    assert asked(batch) == [plain(request) for request in requests]
    assert batch.ByteSize() == len(data)


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=40))
def test_lookups_that_differ_in_their_keys_alone_have_one_shape(keys: list[str]) -> None:
    sender = types_pb2.Forwarding(epoch=5, hops=1)
    requests = [query_service_pb2.GetRequest(store="s", key={"text": key}, forwarding=sender) for key in keys]
    assert len(batch_of(query_service_pb2.BatchGetRequest(requests=requests).SerializeToString()).shapes) == 1


@given(st.lists(st.one_of(st.binary(max_size=40), REQUESTS.map(lambda each: each.SerializeToString())), max_size=4))
def test_any_bytes_are_read_as_the_parser_reads_them(lookups: list[bytes]) -> None:
    """Also fields in another order, given twice, cut off, or with text that is none."""
    data = b"".join(b"\x0a" + bytes([len(each)]) + each for each in lookups if len(each) < 128)
    outcome = _outcome(lambda: [plain(each) for each in query_service_pb2.BatchGetRequest.FromString(data).requests])
    assert _outcome(lambda: asked(batch_of(data))) == outcome


@given(REQUESTS, REQUESTS)
def test_fields_that_come_twice_are_put_together(
    first: query_service_pb2.GetRequest, second: query_service_pb2.GetRequest
) -> None:
    both = first.SerializeToString() + second.SerializeToString()
    data = query_service_pb2.BatchGetRequest(requests=[query_service_pb2.GetRequest.FromString(both)])
    length = len(both)
    framed = b"\x0a" + (bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])) + both
    assert asked(batch_of(framed)) == [plain(each) for each in data.requests]


@pytest.mark.parametrize("text", [b"\xff", b"\xed\xa0\x80"])
def test_a_key_that_is_no_text_makes_the_batch_unreadable(text: bytes) -> None:
    key = b"\x0a" + bytes([len(text)]) + text
    lookup = b"\x0a\x01s\x12" + bytes([len(key)]) + key
    with pytest.raises(DecodeError):
        batch_of(b"\x0a" + bytes([len(lookup)]) + lookup)


def _outcome(read: Any) -> Any:
    try:
        return read()
    except DecodeError:
        return DecodeError
