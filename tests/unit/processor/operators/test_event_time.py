"""The stream time that events without a time of their own get."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from processor.operators.event_time import MISSING, fill

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


@given(EVENTS, st.data())
def test_batches_give_what_events_one_by_one_give(events: list[tuple[int, int]], data: st.DataObject):
    cut = data.draw(st.integers(0, len(events)))
    first, between = filled(events[:cut])
    second, after = filled(events[cut:], between)
    assert (first + second, after) == one_by_one(events)
