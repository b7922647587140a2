"""A watch goes from one batch's end to another: it sends each record once, none of them beyond an end that it marks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query_service.replicas.tail import TailRecords
from query_service.stores.base import ChangelogRecord
from query_service.watches.batch_steps import BatchSteps
from statehouse.contract.committed_moments import CommittedMoments
from statehouse.contract.moments import NEWEST, NONE, Asked, MomentBound, MomentToken
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import types_pb2

STORE, QUERY, PARTITION = "store", "q", 1
SEEDS = st.integers(0, 2**32).map(random.Random)


def commit(batch_id: int, end: int, query_id: str = QUERY) -> commits_pb2.Commit:
    ends = [commits_pb2.TopicOffset(partition=PARTITION, offset=end)]
    return commits_pb2.Commit(store=STORE, query_id=query_id, batch_id=batch_id, changelog_ends=ends, is_moment=True)


def log_of(sizes: list[int], rng: random.Random) -> tuple[list[ChangelogRecord], list[int]]:
    """Return records of batches of these sizes, with a marker after each, and where the batches end."""
    records: list[ChangelogRecord] = []
    ends, offset = list[int](), 0
    for batch_id, size in enumerate(sizes):
        for _ in range(size):
            records.append(ChangelogRecord(b"k", b"v", 0, offset, batch_id))
            offset += 1
        at = offset + rng.randint(0, 1) if size else offset  # before or after the marker
        ends.append(max(at, ends[-1] if ends else 0))
        offset += bool(size)
    return records, ends


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(0, 8), SEEDS)
def test_it_marks_batches_where_they_end(sizes: list[int], late: int, rng: random.Random) -> None:
    """`late`: a batch whose end is told too late. Readers see some of the log, and some batches, as they come."""
    records, ends = log_of(sizes, rng)
    told = list(ends)
    if late < len(told) - 1:
        told[late] = rng.randint(told[late], told[late + 1])
    steps, committed = BatchSteps(STORE, PARTITION, None), CommittedMoments()
    position, sent, marked, unheard = 0, list[ChangelogRecord](), list[int](), list(enumerate(told))
    readable = 0
    log_end = (records[-1].offset if records else 0) + 2
    known = None
    for _ in range(400):
        if unheard and rng.random() < 0.4:
            committed.take(commit(*unheard.pop(0)))
            known = committed.of(STORE)
        readable = min(log_end, readable + rng.randint(0, 3))
        if known is None or (step := steps.due(known, position)) is None:
            continue
        if step.end > position:
            there = [each for each in records if position <= each.offset < readable]
            part, rest = TailRecords(there, max(position, readable)).cut(step.end)
            assert [*part.records, *(rest.records if rest is not None else ())] == there
            if steps.refuse(step, [each.batch for each in part.records]):
                continue
            assert all(each.batch <= step.batch_id for each in part.records)
            sent += part.records
            position = part.position
        if steps.reached(position):
            marked.append(step.batch_id)
            assert sent == [each for each in records if each.batch <= step.batch_id]
    assert marked == sorted(set(marked))
    assert marked[-1:] == [len(sizes) - 1], "the last end is right, so it comes there"
    missing = set(range(len(sizes))) - set(marked)
    assert missing <= {late}, "only one of which nobody knows where it ends"


def test_it_goes_on_after_a_batch_and_waits_until_a_later_one_is_known() -> None:
    committed = CommittedMoments()
    for batch_id, end in ((4, 10), (5, 10), (6, 12)):
        committed.take(commit(batch_id, end))
    known = committed.of(STORE)
    steps = BatchSteps(STORE, PARTITION, types_pb2.Moment(query_id=QUERY, batch_id=5))
    assert not steps.is_other_query(known)
    assert steps.bound(NEWEST) == MomentBound(Asked.AT_LEAST, MomentToken({QUERY: 5}))
    step = steps.due(known, 10)
    assert step is not None
    assert (step.batch_id, step.end, steps.shows) == (6, 12, 6)
    assert not steps.reached(11)
    assert steps.reached(12)
    assert steps.due(known, 12) is None
    assert BatchSteps(STORE, PARTITION, None).due(known, 11) == step, "earlier ones end before the position"
    assert BatchSteps(STORE, PARTITION, None).bound(NEWEST) is NEWEST


@pytest.mark.parametrize(("batch_id", "query_id"), [(3, QUERY), (9, "other")])
def test_batches_that_begin_anew_end_it(batch_id: int, query_id: str) -> None:
    committed = CommittedMoments()
    committed.take(commit(5, 10))
    steps = BatchSteps(STORE, PARTITION, None)
    steps.begin(QUERY, 4)
    assert steps.due(committed.of(STORE), 10) is not None
    committed.take(commit(batch_id, 20, query_id))
    assert steps.is_other_query(committed.of(STORE)) == (query_id != QUERY)
    with pytest.raises(LookupFailure) as failure:
        steps.due(committed.of(STORE), 10)
    assert failure.value.reason is Reason.MOMENT_GONE


@pytest.mark.parametrize(("batch_id", "query_id"), [(3, QUERY), (3, "other"), (9, QUERY)])
def test_a_watch_goes_on_once_its_batch_is_known_to_be_committed(batch_id: int, query_id: str) -> None:
    committed = CommittedMoments()
    record = commit(batch_id, 10, query_id)
    record.is_moment = False
    committed.take(record)
    known = committed.known(STORE)
    assert known is not None
    steps = BatchSteps(STORE, PARTITION, types_pb2.Moment(query_id=QUERY, batch_id=8))
    assert steps.has_heard(known) == ((batch_id, query_id) != (3, QUERY))
    assert BatchSteps(STORE, PARTITION, None).has_heard(known)


def test_what_precedes_the_first_batch() -> None:
    assert BatchSteps(STORE, PARTITION, None).shows == NONE
