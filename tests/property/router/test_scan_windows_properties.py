"""ScanWindows over several partitions, from the nodes' stores to the router's pages, against a sorted list."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query_service.stores.base import ChangelogRecord
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.windows import WINDOWS, TimedStore
from router.lookups.scatter import Scatter
from statehouse.contract.topology import WINDOW, StoreSpec
from statehouse.keys.composite import WindowKey
from statehouse.v1 import query_service_pb2
from tests.property.router.partitioned import PARTITIONS, Nodes, ordered_bounds, page_of, router

SPEC = StoreSpec("s", "t", PARTITIONS, 0, WINDOW, "bytes", "bytes", retention_ms=10**9, window_size_ms=10)
WRITTEN_MS = 1_700_000_000_000
# Keys that are each other's prefixes, with the bytes that escaping is about.
KEY = st.sampled_from([b"", b"\0", b"\0\0", b"\0\1", b"\0\xff", b"a", b"a\0", b"a\1", b"a\xff", b"ab", b"\xff"])
WINDOW_KEY = st.builds(WindowKey, KEY, st.integers(0, 4), st.sampled_from([0, 1, 2**31 - 1, 2**32 - 1]))


def nodes_with(windows: set[WindowKey], node_page_bytes: int) -> Nodes:
    nodes = Nodes(
        SPEC,
        lambda: TimedStore(MemoryEngine(10**9), WINDOWS, SPEC.retention_ms, retain_duplicates=True),
        node_page_bytes,
    )
    nodes.write([(each.key, ChangelogRecord(each.to_bytes(), repr(each).encode(), WRITTEN_MS)) for each in windows])
    return nodes


async def pages(scatter: Scatter, request: query_service_pb2.ScanWindowsRequest, most: int) -> list[WindowKey]:
    found: list[WindowKey] = []
    for _ in range(most + 1):
        page = await page_of(scatter, request)
        assert len(page.windows) <= request.page_size
        for each in page.windows:
            raw_key = each.key.raw if request.raw else bytes.fromhex(each.key.text)
            key = WindowKey(raw_key, each.window.start_ms, each.sequence)
            assert each.window.value.raw == repr(key).encode()
            assert each.window.timestamp_ms == WRITTEN_MS
            assert each.window.end_ms == key.start_ms + SPEC.window_size_ms
            found.append(key)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token
    raise AssertionError("more pages than windows")


@pytest.mark.feature("fetchwindows-scanwindows")
@settings(max_examples=150, deadline=None)
@given(
    windows=st.sets(WINDOW_KEY, max_size=25),
    low=st.none() | KEY,
    high=st.none() | KEY,
    prefix=st.none() | KEY,
    span=st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(0, 4)),
    reverse=st.booleans(),
    page_size=st.integers(1, 9),
    node_page_bytes=st.sampled_from([1, 100, 10**6]),
    raw=st.booleans(),
)
def test_pages_are_the_range_in_order(
    windows: set[WindowKey],
    low: bytes | None,
    high: bytes | None,
    prefix: bytes | None,
    span: tuple[int | None, int | None],
    reverse: bool,
    page_size: int,
    node_page_bytes: int,
    raw: bool,
) -> None:
    first, last = span if None in span else sorted(span)
    request = query_service_pb2.ScanWindowsRequest(
        store="s", reverse=reverse, page_size=page_size, from_ms=first, to_ms=last, raw=raw
    )
    expected = [
        each
        for each in windows
        if (first is None or first <= each.start_ms) and (last is None or each.start_ms <= last)
    ]
    if prefix is not None:
        request.prefix.raw = prefix
        expected = [each for each in expected if each.key.startswith(prefix)]
    else:
        low, high = ordered_bounds(low, high)
        if low is not None:
            request.from_key.raw = low
            expected = [each for each in expected if each.key >= low]
        if high is not None:
            request.to_key.raw = high
            expected = [each for each in expected if each.key <= high]
    scatter = router(nodes_with(windows, node_page_bytes))
    found = asyncio.run(pages(scatter, request, len(windows)))
    assert found == sorted(expected, reverse=reverse)
