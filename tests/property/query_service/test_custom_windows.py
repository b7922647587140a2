"""Custom stores on the layouts of windows and sessions: what their queries see, against a model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from response_times.histograms import BUCKETS, added_up
from response_times.store import HistogramStore

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.windows import SESSIONS, TimedStore
from statehouse.contract.topology import SESSION, WINDOW, StoreSpec
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import SessionKey, WindowKey

RETENTION_MS = 200_000
KEYS = (b"a", b"a\0", b"a\0\xff", b"b")
SPEC = StoreSpec("s", "t", 1, 0, "histogram", retention_ms=RETENTION_MS, window_size_ms=10_000, layout=WINDOW)

times = st.integers(0, 60).map(lambda each: each * 10_000)
histograms = st.lists(st.integers(0, 5), min_size=BUCKETS, max_size=BUCKETS)
spans = st.tuples(times, times)


def applied(store: TimedStore[Any], batches: list[list[ChangelogRecord]]) -> None:
    for position, batch in enumerate(batches, 1):
        store.apply(batch, Checkpoint("t", "id", position, 1))


@pytest.mark.feature("custom-kinds-layouts")
@given(
    st.lists(st.lists(st.tuples(st.sampled_from(KEYS), times, st.none() | histograms), max_size=8), max_size=8),
    st.lists(st.tuples(st.sampled_from(KEYS), spans), min_size=1, max_size=5),
)
def test_a_query_adds_up_the_live_windows_of_its_span(batches: list[list[Any]], asked: list[Any]) -> None:
    store = HistogramStore(SPEC, MemoryEngine(10**8))
    records = [
        [
            ChangelogRecord(WindowKey(key, at).to_bytes(), None if counts is None else json.dumps(counts).encode(), 0)
            for key, at, counts in batch
        ]
        for batch in batches
    ]
    applied(store, records)

    model: dict[tuple[bytes, int], list[int]] = {}
    stream_time_ms = -1
    for key, at, counts in (record for batch in batches for record in batch):
        stream_time_ms = max(stream_time_ms, at)
        model.pop((key, at), None)
        if counts is not None and at > stream_time_ms - RETENTION_MS:
            model[key, at] = counts
    live = {each: counts for each, counts in model.items() if each[1] > stream_time_ms - RETENTION_MS}

    for key, (first_ms, last_ms) in asked:
        windows = [counts for (owner, at), counts in live.items() if owner == key and first_ms <= at <= last_ms]
        found = store.query("quantile", key, {"q": 1, "from_ms": first_ms, "to_ms": last_ms})
        if not any(map(any, windows)):
            assert found is None
        else:
            assert isinstance(found, dict)
            total = added_up(windows)
            top = max(place for place, count in enumerate(total) if count)
            assert (found["windows"], found["count"]) == (len(windows), sum(total))
            assert found["from_ms"] == (0 if top == 0 else 2 ** (top - 1))


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), times, st.integers(0, 3), st.none() | st.binary(max_size=4))),
    spans,
    st.booleans(),
)
def test_sessions_of_a_span_of_ends_come_by_their_starts(
    written: list[Any], span: tuple[int, int], reverse: bool
) -> None:
    store: TimedStore[SessionKey] = TimedStore(MemoryEngine(10**8), SESSIONS, RETENTION_MS)
    keys = [SessionKey(key, start, start + length * 5_000) for key, start, length, _ in written]
    applied(store, [[ChangelogRecord(key.to_bytes(), each[3], 0)] for key, each in zip(keys, written, strict=True)])

    model: dict[SessionKey, bytes] = {}
    stream_time_ms = -1
    for key, (*_, value) in zip(keys, written, strict=True):
        stream_time_ms = max(stream_time_ms, key.end_ms)
        model.pop(key, None)
        if value is not None and key.end_ms > stream_time_ms - RETENTION_MS:
            model[key] = value
    live = {key for key in model if key.end_ms > stream_time_ms - RETENTION_MS}

    for key in KEYS:
        expected = [each for each in live if each.key == key and span[0] <= each.end_ms <= span[1]]
        page = store.entries_of(key, *span, reverse=reverse)
        assert not page.more
        assert [entry for entry, _ in page.entries] == sorted(
            expected, key=lambda each: (each.start_ms, each.end_ms), reverse=reverse
        )
        assert all(model[entry] == value for entry, value in page.entries)


def test_a_query_reads_a_bounded_number_of_windows_and_refuses_what_it_cannot_read() -> None:
    spec = StoreSpec("s", "t", 1, 0, "histogram", retention_ms=10**9, window_size_ms=1, layout=WINDOW)
    store = HistogramStore(spec, MemoryEngine(10**9))
    value = json.dumps([1] * BUCKETS).encode()
    applied(store, [[ChangelogRecord(WindowKey(b"k", at).to_bytes(), value, 0) for at in range(1_001)]])
    applied(store, [[ChangelogRecord(WindowKey(b"torn", 5).to_bytes(), b"[1]", 0)]])
    assert store.query("quantile", b"k", {"q": 0.5, "to_ms": 999}) is not None
    for key, arguments, reason in (
        (b"k", {"q": 0.5}, Reason.INVALID_REQUEST),
        (b"k", {"q": 2}, Reason.INVALID_REQUEST),
        (b"k", {"q": True}, Reason.INVALID_REQUEST),
        (b"k", {"q": 0.5, "from_ms": "now"}, Reason.INVALID_REQUEST),
        (b"k", {"q": 0.5, "until": 1}, Reason.INVALID_REQUEST),
        (b"torn", {"q": 0.5}, Reason.VALUE_UNDECODABLE),
    ):
        with pytest.raises(LookupFailure) as refused:
            store.query("quantile", key, arguments)
        assert refused.value.reason is reason, arguments


def test_a_layout_is_that_of_a_built_in_kind() -> None:
    assert SPEC.built_on == WINDOW
    assert StoreSpec("s", "t", 1, 0, SESSION).built_on == SESSION
