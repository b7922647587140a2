"""From input records to positions."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from router.fleet_api.commit_tail import CommitTail, latest, named
from statehouse.contract.moments import MomentToken
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import fleet_service_pb2, types_pb2
from tests.unit.router.commits import CLICKS, VIEWS, commit


@pytest.fixture
def tail() -> CommitTail:
    tail = CommitTail()
    tail.feed(commit(0, {CLICKS: 5, VIEWS: 1}, {0: 10, 1: 20}))
    tail.feed(commit(1, {CLICKS: 8, VIEWS: 1}, {0: 15, 1: 20}))
    tail.feed(commit(2, {CLICKS: 8, VIEWS: 4}, {0: 15, 1: 30}))
    return tail


@pytest.mark.feature("commits-topic-input")
@pytest.mark.parametrize(
    ("records", "found"),
    [
        ({CLICKS: 4}, {0: 10, 1: 20}),
        ({CLICKS: 5}, {0: 15, 1: 20}),
        ({CLICKS: 7}, {0: 15, 1: 20}),
        ({CLICKS: 8}, None),
        ({VIEWS: 2}, {0: 15, 1: 30}),
        ({CLICKS: 4, VIEWS: 2}, {0: 15, 1: 30}),
        ({CLICKS: 4, VIEWS: 4}, None),
        ({("clicks", 3): 0}, None),
    ],
)
def test_the_first_commit_that_has_all_records_counts(
    tail: CommitTail, records: Mapping[tuple[str, int], int], found: Mapping[int, int] | None
) -> None:
    assert tail.positions(records) == found


def test_of_batches_with_a_record_the_first_that_reads_can_be_of_counts() -> None:
    tail = CommitTail()
    for batch, is_moment in ((1, True), (2, False), (3, True), (4, True)):
        tail.feed(commit(batch, {CLICKS: batch * 10}, {0: batch}, is_moment=is_moment))
    assert tail.moment_with({CLICKS: 9}) == MomentToken({"q": 1})
    assert tail.moment_with({CLICKS: 10}) == MomentToken({"q": 3})
    assert tail.moment_with({CLICKS: 40}) == MomentToken()


def test_a_topic_that_is_no_input_is_refused(tail: CommitTail) -> None:
    with pytest.raises(LookupFailure, match="clicks, views") as caught:
        tail.positions({("scores", 0): 1})
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_of_several_records_of_a_partition_the_last_counts_and_a_negative_offset_is_refused() -> None:
    records = [fleet_service_pb2.InputRecord(topic="clicks", offset=offset) for offset in (0, 4, 2)]
    assert latest(records) == {CLICKS: 4}
    records.append(fleet_service_pb2.InputRecord(topic="clicks", offset=-1))
    with pytest.raises(LookupFailure, match="offset -1 of clicks:0 is negative") as caught:
        latest(records)
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_records_of_so_many_partitions_and_no_more_are_looked_for() -> None:
    """For each commit the router compares all of them."""
    record = fleet_service_pb2.InputRecord
    most = [record(topic="clicks", partition=number, offset=1) for number in range(1_000)]
    assert len(latest(most * 3)) == 1_000, "of each partition only the last counts"
    with pytest.raises(LookupFailure, match="more than 1,000 topic partitions") as caught:
        latest([*most, record(topic="clicks", partition=1_000)])
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_a_repeated_batch_says_nothing_new(tail: CommitTail) -> None:
    tail.feed(commit(2, {CLICKS: 8, VIEWS: 4}, {0: 99, 1: 99}))
    assert tail.positions({VIEWS: 3}) == {0: 15, 1: 30}


def test_a_query_that_began_anew_has_read_nothing_yet(tail: CommitTail) -> None:
    tail.feed(commit(0, {CLICKS: 2, VIEWS: 0}, {0: 40, 1: 40}, query="another"))
    assert tail.positions({CLICKS: 1}) == {0: 40, 1: 40}
    assert tail.positions({CLICKS: 4}) is None


def test_for_a_record_from_before_the_tail_its_oldest_commit_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.fleet_api.commit_tail._TAIL", 2)
    tail = CommitTail()
    for batch in range(5):
        tail.feed(commit(batch, {CLICKS: batch}, {0: 10 * batch}))
    assert tail.positions({CLICKS: 0}) == {0: 30}


@pytest.fixture
def moments(tail: CommitTail) -> CommitTail:
    for batch in (3, 4):
        tail.feed(commit(batch, {CLICKS: 8 + batch, VIEWS: 4}, {0: 15, 1: 30}, is_moment=batch == 3))
    return tail


@pytest.mark.parametrize("asked", [MomentToken(), MomentToken({"q": 3}), MomentToken({"q": 3, "another": 9})])
def test_a_batch_tells_what_it_includes_of_the_inputs(moments: CommitTail, asked: MomentToken) -> None:
    found = moments.moment("boards", asked)
    assert (found.moment.query_id, found.moment.batch_id) == ("q", 3)
    assert {(each.topic, each.partition): each.offset for each in found.source_ends} == {CLICKS: 11, VIEWS: 4}


def test_a_batch_whose_end_is_told_later_is_one_from_then_on(moments: CommitTail) -> None:
    moments.feed(commit(4, {CLICKS: 12, VIEWS: 4}, {0: 15, 1: 30}, is_moment=True))
    assert moments.moment("boards", MomentToken()).moment.batch_id == 4


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (MomentToken({"q": 2}), Reason.MOMENT_GONE),
        (MomentToken({"another": 3}), Reason.MOMENT_GONE),
        (MomentToken({"q": 4}), Reason.MOMENT_NOT_REACHED),
    ],
)
def test_a_batch_that_is_not_known_is_refused(moments: CommitTail, asked: MomentToken, reason: Reason) -> None:
    with pytest.raises(LookupFailure, match="knows 1 batches of store boards, the newest is 3 of query q") as caught:
        moments.moment("boards", asked)
    assert caught.value.reason is reason


def test_without_moments_none_is_told(tail: CommitTail) -> None:
    with pytest.raises(LookupFailure, match="store boards") as caught:
        tail.moment("boards", MomentToken())
    assert caught.value.reason is Reason.MOMENTS_UNAVAILABLE


def test_a_negative_batch_is_refused() -> None:
    with pytest.raises(LookupFailure, match="must not be negative") as caught:
        named(types_pb2.Moments(moments=[types_pb2.Moment(query_id="q", batch_id=-1)]))
    assert caught.value.reason is Reason.INVALID_REQUEST
