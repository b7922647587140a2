"""When one task reads a batch's events and writes them."""

from __future__ import annotations

import pytest

from processor.sink.batch import is_quickly_read
from processor.spark.checkpoint import Offsets

EIGHT = {("scores", partition): 100 for partition in range(8)}
NINE = EIGHT | {("scores", 8): 100}


def later(ends: Offsets, events: int) -> Offsets:
    return {partition: end + events for partition, end in ends.items()}


@pytest.mark.parametrize(
    ("before", "ends", "expected"),
    [
        (EIGHT, EIGHT, True),
        (EIGHT, later(EIGHT, 1), True),
        (EIGHT, later(EIGHT, 125), True),
        (EIGHT, later(EIGHT, 126), False),
        (NINE, later(NINE, 1), False),
        (NINE, NINE | {("scores", 0): 1_100}, True),
        (NINE, NINE | {("scores", 0): 1_101}, False),
        (EIGHT, NINE, False),
        (NINE, EIGHT, True),
        ({}, EIGHT, False),
        # A source other than Kafka has no offsets; the plan says whether there is such a source.
        ({}, {}, True),
    ],
)
def test_few_events_of_few_partitions_are_read_quickly(before: Offsets, ends: Offsets, expected: bool):
    assert is_quickly_read(before, ends) is expected
