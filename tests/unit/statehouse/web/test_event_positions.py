"""Ids of events: what they say, and that nothing else is read as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.client.answers import Host, Stamp, Update, WatchPosition
from statehouse.contract.moments import MomentToken
from statehouse.v1 import query_service_pb2, types_pb2
from statehouse.web.api.event_positions import PARTITIONS_MAX, MarkedProgress, Progress, positions_of, text_of

_TOPICS = st.text("abcXYZ019_-+/=", max_size=22)
_POSITIONS = st.builds(WatchPosition, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), _TOPICS)
_SETS = st.lists(_POSITIONS, max_size=50, unique_by=lambda each: each.partition)


@given(_SETS)
def test_an_id_is_read_as_it_was_written(positions: list[WatchPosition]):
    assert set(positions_of(text_of(positions))) == set(positions)


@given(st.text(max_size=60))
def test_any_other_text_is_refused_with_a_value_error(text: str):
    try:
        found = positions_of(text)
    except ValueError:
        return
    assert {each.partition: each for each in positions_of(text_of(found))} == {each.partition: each for each in found}


@pytest.mark.parametrize(
    "text",
    ["1:2", "t/", "t/1", "t/1:", "t/1:2,", "t/1:2,1:3", "t/1:2;u/1:3", "t/-1:2", "t/1:99999999999999999999", " "],
)
def test_what_is_no_id(text: str):
    with pytest.raises(ValueError, match="no id of an event"):
        positions_of(text)


def test_an_id_is_bounded_and_fits_into_a_header():
    most = [WatchPosition(each, 10**9 + each, "VTFF9ALFRKqGoEJ0lkWc8Q") for each in range(PARTITIONS_MAX)]
    assert len(text_of(most)) < 16_000
    with pytest.raises(ValueError, match="at most"):
        positions_of(text_of([*most, WatchPosition(PARTITIONS_MAX, 1, "VTFF9ALFRKqGoEJ0lkWc8Q")]))


def update(partition: int, position: int | None, *, current: bool = False) -> Update:
    stamp = Stamp(partition, 1, Host("node-a", "", 0), "ACTIVE", position, 0, 0)
    at = None if position is None else WatchPosition(partition, position, "t")
    return Update(partition, (), current, False, False, at, stamp)


@pytest.mark.feature("watch-server-sent")
def test_positions_move_on_and_incomplete_values_have_none():
    progress = Progress(positions_of("t/0:5,1:6"))

    progress.note(update(0, 7))
    assert progress.id == "t/0:7,1:6"
    progress.note(update(1, None, current=True))
    assert progress.id == "t/0:7"
    progress.note(update(1, 9, current=True))
    assert progress.id == "t/0:7,1:9"
    assert Progress().id == ""


def test_by_moment_an_id_is_the_last_mark_s_and_fits_into_a_header():
    moment = types_pb2.Moment(query_id="3f1d5b1a-7f3b-4a52-9a3e-0a8d7b9c2e11", batch_id=123_456)
    positions = [
        query_service_pb2.WatchPosition(
            partition=each, position=10**9 + 7919 * each, topic_id="VTFF9ALFRKqGoEJ0lkWc8Q", after=moment
        )
        for each in range(PARTITIONS_MAX)
    ]
    progress = MarkedProgress("")
    assert (progress.id, progress.moment, progress.positions) == ("", None, ())
    progress.note(update(0, 7))
    assert progress.id == "", "it is between marks"
    progress.marked(query_service_pb2.WatchMark(moment=moment, positions=positions))
    assert len(progress.id) < 16_000
    resumed = MarkedProgress(progress.id)
    assert resumed.moment == moment
    after = MomentToken({moment.query_id: moment.batch_id})
    assert resumed.positions[1] == WatchPosition(1, 10**9 + 7919, "VTFF9ALFRKqGoEJ0lkWc8Q", after)
    with pytest.raises(ValueError, match="not a mark"):
        MarkedProgress("t/0:5")
