"""Scans of a versioned store as of a time: what comes later, between the pages too, does not show."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query_service.stores.base import ChangelogRecord
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.versioned import VersionedStore
from router.lookups.scatter import Scatter
from statehouse.contract.topology import VERSIONED, StoreSpec
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2
from tests.property.router.partitioned import PARTITIONS, Nodes, ordered_bounds, page_of, router

SPEC = StoreSpec("s", "t", PARTITIONS, 0, VERSIONED, "bytes", "bytes", retention_ms=1_000)
KEY = st.sampled_from([b"", b"\0", b"\0\1", b"\0\xff", b"a", b"a\0", b"a\xff", b"ab", b"\xff"])
Put = tuple[bytes, int, bytes | None]
"""Key, time, value."""


def puts(first_ms: int, last_ms: int, most: int) -> st.SearchStrategy[list[Put]]:
    return st.lists(st.tuples(KEY, st.integers(first_ms, last_ms), st.none() | st.binary(max_size=2)), max_size=most)


def records(given_puts: list[Put]) -> list[tuple[bytes, ChangelogRecord]]:
    return [(key, ChangelogRecord(key, value, at_ms)) for key, at_ms, value in given_puts]


async def _read(
    scatter: Scatter, nodes: Nodes, request: query_service_pb2.ScanRequest, between: list[list[Put]], most: int
) -> list[tuple[bytes, bytes, int]]:
    found: list[tuple[bytes, bytes, int]] = []
    changes = iter(between)
    for _ in range(most + 1):
        page = await page_of(scatter, request)
        assert len(page.entries) <= request.page_size
        found += [(bytes.fromhex(each.key.text), each.value.raw, each.timestamp_ms) for each in page.entries]
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token
        nodes.write(records(next(changes, [])))
    raise AssertionError("more pages than keys")


@pytest.mark.feature("scans-versioned-stores")
@settings(max_examples=150, deadline=None)
@given(
    before=puts(0, 500, 25),
    between=st.lists(puts(501, 900, 4), max_size=6),
    as_of_ms=st.none() | st.integers(0, 500),
    low=st.none() | KEY,
    high=st.none() | KEY,
    reverse=st.booleans(),
    page_size=st.integers(1, 9),
    node_page_bytes=st.sampled_from([1, 100, 10**6]),
)
def test_pages_are_the_store_at_that_time(
    before: list[Put],
    between: list[list[Put]],
    as_of_ms: int | None,
    low: bytes | None,
    high: bytes | None,
    reverse: bool,
    page_size: int,
    node_page_bytes: int,
) -> None:
    nodes = Nodes(SPEC, lambda: VersionedStore(MemoryEngine(10**9), SPEC.retention_ms), node_page_bytes)
    nodes.write(records(before))
    request = query_service_pb2.ScanRequest(store="s", reverse=reverse, page_size=page_size, as_of_ms=as_of_ms)
    low, high = ordered_bounds(low, high)
    if low is not None:
        request.from_key.raw = low
    if high is not None:
        request.to_key.raw = high
    versions: dict[bytes, dict[int, bytes | None]] = defaultdict(dict)
    for key, at_ms, value in before:
        versions[key][at_ms] = value
    at = {
        key: max((each for each in times if as_of_ms is None or each <= as_of_ms), default=None)
        for key, times in versions.items()
        if (low or b"") <= key and (high is None or key <= high)
    }
    expected = sorted(
        (
            (key, value, at_ms)
            for key, at_ms in at.items()
            if at_ms is not None and (value := versions[key][at_ms]) is not None
        ),
        reverse=reverse,
    )
    found = asyncio.run(_read(router(nodes), nodes, request, between if as_of_ms is not None else [], len(before) + 30))
    assert found == expected


def test_a_partition_whose_history_begins_later_is_named() -> None:
    nodes = Nodes(SPEC, lambda: VersionedStore(MemoryEngine(10**9), SPEC.retention_ms), 10**6)
    nodes.write(records([(b"a", 100, b"1"), (b"a", 5_000, b"2")]))
    request = query_service_pb2.ScanRequest(store="s", page_size=5, as_of_ms=200)
    with pytest.raises(LookupFailure, match="the history starts at 4000") as failure:
        asyncio.run(page_of(router(nodes), request))
    assert failure.value.reason is Reason.BEFORE_HISTORY
    assert failure.value.metadata["history_start_ms"] == "4000"
