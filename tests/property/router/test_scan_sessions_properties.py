"""ScanSessions over several partitions, against a sorted list; also while the sessions change between the pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query_service.stores.base import ChangelogRecord
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.windows import SESSIONS, TimedStore
from statehouse.contract.topology import SESSION, StoreSpec
from statehouse.keys.composite import SessionKey
from statehouse.v1 import query_service_pb2
from tests.property.router.partitioned import PARTITIONS, Nodes, ordered_bounds, page_of, router

SPEC = StoreSpec("s", "t", PARTITIONS, 0, SESSION, "bytes", "bytes", retention_ms=10**9)
KEY = st.sampled_from([b"", b"\0", b"\0\0", b"\0\1", b"\0\xff", b"a", b"a\0", b"a\1", b"a\xff", b"ab", b"\xff"])
SESSION_KEY = st.builds(
    lambda key, start, length: SessionKey(key, start, start + length), KEY, *[st.integers(0, 4)] * 2
)
# Times of records: of our days, the first one, and none.
WRITTEN = st.sampled_from([1_700_000_000_000, 0, -1])
Change = tuple[SessionKey, int, bool]
"""A session, the time of its record, and whether the record has a value."""
CHANGES = st.lists(st.tuples(SESSION_KEY, WRITTEN, st.booleans()), max_size=4)


def in_order(session: SessionKey) -> tuple[bytes, int, int]:
    return session.key, session.start_ms, session.end_ms


class Model:
    """The sessions as they are, and all values that each has ever had."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.now: dict[SessionKey, int] = {}
        self.ever: set[tuple[SessionKey, int]] = set()
        self.touched: set[SessionKey] = set()

    def write(self, changes: Sequence[Change]) -> None:
        for session, written_ms, has_value in changes:
            self.touched.add(session)
            self.now.pop(session, None)
            if has_value:
                self.now[session] = written_ms
                self.ever.add((session, written_ms))
        self._nodes.write(
            [
                (each.key, ChangelogRecord(each.to_bytes(), repr(each).encode() if has_value else None, written_ms))
                for each, written_ms, has_value in changes
            ]
        )


@pytest.mark.feature("sessions-range-keys")
@settings(max_examples=150, deadline=None)
@given(
    first=st.lists(st.tuples(SESSION_KEY, WRITTEN, st.just(value=True)), max_size=25),
    between=st.lists(CHANGES, max_size=6),
    low=st.none() | KEY,
    high=st.none() | KEY,
    prefix=st.none() | KEY,
    span=st.tuples(st.none() | st.integers(0, 8), st.none() | st.integers(0, 8)),
    reverse=st.booleans(),
    page_size=st.integers(1, 9),
    node_page_bytes=st.sampled_from([1, 100, 10**6]),
)
def test_pages_are_the_range_in_order_also_while_it_changes(
    first: list[Change],
    between: list[list[Change]],
    low: bytes | None,
    high: bytes | None,
    prefix: bytes | None,
    span: tuple[int | None, int | None],
    reverse: bool,
    page_size: int,
    node_page_bytes: int,
) -> None:
    from_ms, to_ms = span
    low, high = ordered_bounds(low, high)
    request = query_service_pb2.ScanSessionsRequest(
        store="s", reverse=reverse, page_size=page_size, from_ms=from_ms, to_ms=to_ms
    )
    if prefix is not None:
        request.prefix.raw = prefix
    else:
        if low is not None:
            request.from_key.raw = low
        if high is not None:
            request.to_key.raw = high

    def is_asked_for(session: SessionKey) -> bool:
        key = session.key
        keyed = key.startswith(prefix) if prefix is not None else (low or b"") <= key and (high is None or key <= high)
        return keyed and (from_ms is None or session.end_ms >= from_ms) and (to_ms is None or session.start_ms <= to_ms)

    nodes = Nodes(SPEC, lambda: TimedStore(MemoryEngine(10**9), SESSIONS, SPEC.retention_ms), node_page_bytes)
    model = Model(nodes)
    model.write(first)
    initial, model.touched = dict(model.now), set()
    scatter, found = router(nodes), list[SessionKey]()

    async def read() -> None:
        changes = iter(between)
        for _ in range(len(first) + sum(map(len, between)) + 1):
            page = await page_of(scatter, request)
            assert len(page.sessions) <= page_size
            for each in page.sessions:
                key = SessionKey(bytes.fromhex(each.key.text), each.session.start_ms, each.session.end_ms)
                assert each.session.value.raw == repr(key).encode()
                written_ms = each.session.timestamp_ms if each.session.HasField("timestamp_ms") else -1
                assert (key, written_ms) in model.ever
                found.append(key)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
            model.write(next(changes, []))
        raise AssertionError("more pages than sessions")

    asyncio.run(read())
    assert [in_order(each) for each in found] == sorted(map(in_order, set(found)), reverse=reverse)
    assert all(map(is_asked_for, found))
    untouched = {each for each in initial if is_asked_for(each) and each not in model.touched}
    assert set(found) >= untouched, "nothing is missed that was there all the time"
    if not model.touched:
        assert set(found) == untouched
