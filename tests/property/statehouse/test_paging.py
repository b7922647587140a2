"""Ranges and page tokens: pages of any size, over any split into partitions, give the range once, in order."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract import paging
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.contract.scan_ranges import key_range
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import SERDES
from statehouse.v1 import query_service_pb2, types_pb2

KEYS = st.sets(st.binary(max_size=3), max_size=30)
OPTIONAL_KEY = st.none() | st.binary(max_size=2)
BYTES = SERDES["bytes"]


def inside(keys: set[bytes], bounds: paging.KeyRange) -> list[bytes]:
    found = [key for key in keys if key >= bounds.start and (bounds.stop is None or key < bounds.stop)]
    return sorted(found, reverse=bounds.reverse)


@pytest.mark.feature("scan-ranges-prefixes")
@given(KEYS, OPTIONAL_KEY, OPTIONAL_KEY, st.booleans(), st.integers(1, 5))
def test_pages_of_a_range(keys: set[bytes], low: bytes | None, high: bytes | None, reverse: bool, size: int) -> None:
    request = query_service_pb2.ScanRequest(store="s", reverse=reverse)
    if low is not None and high is not None and low > high:
        low, high = high, low  # the other way round it is refused
    if low is not None:
        request.from_key.raw = low
    if high is not None:
        request.to_key.raw = high
    got: list[bytes] = []
    for _ in range(len(keys) + 1):
        page = inside(keys, key_range(request, BYTES))[:size]
        got += page
        if not page:
            break
        request.page_token = paging.next_page_token(request, page[-1])
    expected = [key for key in keys if (low is None or key >= low) and (high is None or key <= high)]
    assert got == sorted(expected, reverse=reverse)


@pytest.mark.feature("scan-ranges-prefixes")
@given(KEYS, st.binary(max_size=2))
def test_prefix(keys: set[bytes], prefix: bytes) -> None:
    request = query_service_pb2.ScanRequest(store="s", prefix=types_pb2.Key(raw=prefix))
    assert inside(keys, key_range(request, BYTES)) == sorted(key for key in keys if key.startswith(prefix))


def test_prefix_of_highest_bytes_has_no_upper_end() -> None:
    assert paging.after_prefix(b"\xff\xff") is None
    assert paging.after_prefix(b"a\xff") == b"b"
    assert paging.after_prefix(b"") is None


@pytest.mark.feature("pages-one-moment")
def test_a_token_with_a_letter_that_no_token_has_is_refused() -> None:
    request = query_service_pb2.ScanRequest(store="s")
    token = paging.next_page_token(request, b"key")
    request.page_token = token[:4] + "!" + token[4:]
    with pytest.raises(LookupFailure) as refused:
        key_range(request, BYTES)
    assert refused.value.reason is Reason.INVALID_PAGE_TOKEN


@given(st.binary(max_size=3), st.text(min_size=1, max_size=5), st.integers(0, 2**62))
def test_the_pages_of_a_walk_show_the_batch_of_the_first(last: bytes, query_id: str, batch_id: int) -> None:
    bounds = types_pb2.Freshness(moment=types_pb2.MomentBound(newest=True, wait_ms=5))
    request = query_service_pb2.ScanRequest(store="s", freshness=bounds)
    assert paging.bound_of_page(request) == MomentBound(wait_ms=5)
    plain, moment = deepcopy(request), types_pb2.Moment(query_id=query_id, batch_id=batch_id)
    plain.page_token = paging.next_page_token(request, last)
    assert paging.bound_of_page(plain) == MomentBound(wait_ms=5)
    request.page_token = paging.next_page_token(request, last, moment)
    assert paging.bound_of_page(request) == MomentBound(Asked.EXACTLY, MomentToken({query_id: batch_id}), wait_ms=5)
    assert key_range(request, BYTES) == key_range(plain, BYTES)
    request.ClearField("freshness")
    assert paging.bound_of_page(request) == MomentBound(Asked.EXACTLY, MomentToken({query_id: batch_id}))
    plain.ClearField("freshness")
    assert paging.bound_of_page(plain) is None


def test_a_page_of_nothing_that_is_a_moment_is_refused() -> None:
    request = query_service_pb2.ScanRequest(store="s", freshness=types_pb2.Freshness(moment=types_pb2.MomentBound()))
    with pytest.raises(LookupFailure, match="moment is missing"):
        paging.bound_of_page(request)
    request.page_token = paging.next_page_token(request, b"", types_pb2.Moment(query_id="q", batch_id=-1))
    request.ClearField("freshness")
    with pytest.raises(LookupFailure, match="must not be negative"):
        paging.bound_of_page(request)
