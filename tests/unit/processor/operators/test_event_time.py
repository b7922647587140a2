"""The stream time that events without a time of their own get."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.operators.event_time import _EVENT_MS, _RECORD_MS, MISSING, _StreamTime, fill

TIMES = st.integers(0, 50)
# (the event's own time, its record's)
EVENTS = st.lists(st.tuples(TIMES | st.just(MISSING), TIMES), max_size=30)


def filled(events: list[tuple[int, int]], stream_time: int = MISSING) -> tuple[list[int], int]:
    own, records = (np.array([event[each] for event in events], np.int64) for each in (0, 1))
    times, after = fill(own, records, stream_time)
    return times.tolist(), after


def one_by_one(events: list[tuple[int, int]]) -> tuple[list[int], int]:
    largest, times = MISSING, []
    for own, record in events:
        if own != MISSING:
            times.append(own)
        elif largest != MISSING:
            times.append(largest)
        else:
            times.append(record)
        largest = max(largest, times[-1])
    return times, largest


def test_a_missing_time_is_the_largest_so_far():
    assert filled([(10, 0), (MISSING, 99), (5, 0), (MISSING, 99), (12, 0)]) == ([10, 10, 5, 10, 12], 12)


def test_a_missing_time_before_any_other_is_its_records():
    assert filled([(MISSING, 7), (MISSING, 9), (3, 0)]) == ([7, 7, 3], 7)


def test_stream_time_goes_on_from_batch_to_batch():
    assert filled([(MISSING, 99), (5, 0)], stream_time=20) == ([20, 5], 20)
    assert filled([], stream_time=20) == ([], 20)


@pytest.mark.feature("event-times-payload")
@given(EVENTS, st.data())
def test_batches_give_what_events_one_by_one_give(events: list[tuple[int, int]], data: st.DataObject):
    cut = data.draw(st.integers(0, len(events)))
    first, between = filled(events[:cut])
    second, after = filled(events[cut:], between)
    assert (first + second, after) == one_by_one(events)


class Value:
    """A state value of Spark's."""

    def __init__(self) -> None:
        self.row: tuple[int] | None = None

    def get(self) -> tuple[int] | None:
        return self.row

    def update(self, row: tuple[int]) -> None:
        self.row = row


def batch(*rows: tuple[int, int, str | None]) -> pd.DataFrame:
    """Rows of (offset, event time, reason), named as Spark names computed columns, in an order of its own."""
    shuffled = [(offset, time, 99, reason) for offset, time, reason in reversed(rows)]
    return pd.DataFrame(shuffled, columns=["offset", "_1", "_2", "reason"])


def test_a_batch_is_filled_in_the_order_of_offsets_and_refused_rows_pass():
    stream_time, state = _StreamTime(["offset", _EVENT_MS, _RECORD_MS, "reason"]), Value()
    handle: Any = SimpleNamespace(getValueState=lambda _name, _schema: state)
    stream_time.init(handle)

    def run(*frames: pd.DataFrame) -> dict[int, int]:
        out = pd.concat(list(stream_time.handleInputRows(("t", 0), iter(frames), None)))
        assert list(out.columns) == ["offset", _EVENT_MS, "reason"]
        return dict(zip(out["offset"].tolist(), out[_EVENT_MS].tolist(), strict=True))

    found = run(batch((2, MISSING, None), (3, 5, None)), batch((0, 20, None), (1, 70, "future_time")))
    assert found == {0: 20, 1: 70, 2: 20, 3: 5}
    assert state.row == (20,), "what was refused says nothing of the stream's time"
    assert run(batch((4, MISSING, None), (5, 30, None), (6, MISSING, None))) == {4: 20, 5: 30, 6: 30}
    assert run(batch((7, 90, "future_time"))) == {7: 90}
    assert state.row == (30,)
