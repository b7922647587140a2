"""Pages put together without reading their entries are those that come of reading all of them."""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.lookups.pages import joined
from statehouse.contract.paging import RangeRequest, next_page_token, page_size
from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.batches import BatchCapacity
from statehouse.serdes import SERDES, json_value
from statehouse.v1 import query_service_pb2, types_pb2

KEY = st.binary(max_size=3)
VALUE = st.one_of(
    st.builds(lambda text: types_pb2.Value(text=text), st.text(max_size=200)),
    st.builds(lambda raw: types_pb2.Value(raw=raw), st.binary(max_size=200)),
    st.builds(lambda number: types_pb2.Value(long=number), st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda number: types_pb2.Value(json=json_value({"n": [number]})), st.integers(0, 9)),
)
ENTRY = st.builds(
    lambda text, value, timestamp_ms: query_service_pb2.Entry(
        key=types_pb2.Key(text=text), value=value, timestamp_ms=timestamp_ms
    ),
    st.text(max_size=3),
    VALUE,
    st.none() | st.integers(0, 2**62),
)
PART = st.tuples(st.dictionaries(KEY, ENTRY, max_size=12), st.booleans())


def page_of(
    held: dict[bytes, query_service_pb2.Entry], number: int, *, has_more: bool, reverse: bool
) -> query_service_pb2.ScanResponse:
    keys = sorted(held, reverse=reverse)
    return query_service_pb2.ScanResponse(
        entries=[held[key] for key in keys],
        entry_keys=keys,
        next_page_token="more" if has_more else "",
        replicas=[types_pb2.ReplicaStamp(partition=number, epoch=7)],
    )


def by_reading_all(
    request: query_service_pb2.ScanRequest, pages: list[query_service_pb2.ScanResponse], max_bytes: int
) -> query_service_pb2.ScanResponse:
    """Return the page, made of parsed entries, one after the other."""
    response = query_service_pb2.ScanResponse(replicas=[stamp for page in pages for stamp in page.replicas])
    ends = [page.entry_keys[-1] for page in pages if page.next_page_token]
    known_to = (max if request.reverse else min)(ends) if ends else None
    parts = [zip(page.entry_keys, page.entries, strict=True) for page in pages]
    in_order = heapq.merge(*parts, key=lambda item: item[0], reverse=request.reverse)
    limit = page_size(request)
    room = BatchCapacity(limit, max_bytes, 8)
    last, has_more = b"", bool(ends) or sum(len(page.entries) for page in pages) > limit
    for key, entry in islice(in_order, limit):
        is_known = known_to is None or (key >= known_to if request.reverse else key <= known_to)
        if not is_known or not room.takes(entry.ByteSize()):
            has_more = True
            break
        response.entries.append(entry)
        last = key
    if has_more:
        response.next_page_token = next_page_token(request, last)
    return response


@given(
    parts=st.lists(PART, min_size=1, max_size=4),
    size=st.integers(1, 20),
    reverse=st.booleans(),
    max_bytes=st.sampled_from([1, 100, 1_000, 10**6]),
)
def test_as_by_reading_all(
    parts: list[tuple[dict[bytes, query_service_pb2.Entry], bool]], size: int, reverse: bool, max_bytes: int
) -> None:
    pages = [
        page_of(held, number, has_more=has_more and bool(held), reverse=reverse)
        for number, (held, has_more) in enumerate(parts)
    ]
    request = query_service_pb2.ScanRequest(store="s", page_size=size, reverse=reverse)
    page = joined(request, [each.SerializeToString() for each in pages], max_bytes, SERDES["string"])
    assert query_service_pb2.ScanResponse.FromString(page) == by_reading_all(request, pages, max_bytes)


@pytest.mark.feature("rolling-upgrade-last")
@given(
    texts=st.lists(st.sets(st.text(max_size=3), max_size=8), min_size=1, max_size=3),
    without=st.lists(st.booleans(), min_size=3, max_size=3),
    size=st.integers(1, 20),
    reverse=st.booleans(),
)
def test_pages_without_entry_keys_are_joined_as_well(
    texts: list[set[str]], without: list[bool], size: int, reverse: bool
) -> None:
    request = query_service_pb2.ScanRequest(store="s", page_size=size, reverse=reverse)
    pages = [
        page_of(
            {text.encode(): query_service_pb2.Entry(key=types_pb2.Key(text=text)) for text in each},
            number,
            has_more=False,
            reverse=reverse,
        )
        for number, each in enumerate(texts)
    ]
    expected = by_reading_all(request, pages, 10**6)
    for page, has_none in zip(pages, without, strict=False):
        if has_none:
            page.ClearField("entry_keys")
    found = joined(request, [each.SerializeToString() for each in pages], 10**6, SERDES["string"])
    assert query_service_pb2.ScanResponse.FromString(found) == expected


def test_windows_without_entry_keys_are_in_the_order_of_keys_and_starts() -> None:
    def page_with(*starts: int) -> bytes:
        windows = [
            query_service_pb2.KeyedWindow(
                key=types_pb2.Key(raw=b"k"), window=query_service_pb2.Window(start_ms=start_ms), sequence=1
            )
            for start_ms in starts
        ]
        return query_service_pb2.ScanWindowsResponse(windows=windows).SerializeToString()

    request = query_service_pb2.ScanWindowsRequest(store="s")
    page = joined(request, [page_with(20, 300), page_with(10, 100)], 10**6, SERDES["string"])
    found = query_service_pb2.ScanWindowsResponse.FromString(page)
    assert [each.window.start_ms for each in found.windows] == [10, 20, 100, 300]


@pytest.mark.parametrize(
    ("request_", "page", "message"),
    [
        (query_service_pb2.ScanRequest(), page_of({}, 0, has_more=True, reverse=False), "returned none"),
        (
            query_service_pb2.ScanRequest(as_of_ms=1),
            query_service_pb2.ScanResponse(entries=[query_service_pb2.Entry()]),
            "can't scan as of a time",
        ),
        (
            query_service_pb2.ScanSessionsRequest(),
            query_service_pb2.ScanSessionsResponse(sessions=[query_service_pb2.KeyedSession()]),
            "can't scan sessions",
        ),
    ],
)
def test_a_page_that_cant_be_is_refused(request_: RangeRequest, page: Any, message: str) -> None:
    with pytest.raises(LookupFailure, match=message) as failure:
        joined(request_, [page.SerializeToString()], 10**6, SERDES["string"])
    assert failure.value.reason is Reason.INTERNAL
