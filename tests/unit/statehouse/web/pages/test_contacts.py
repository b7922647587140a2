"""How many lookups a node had between two of its answers."""

from __future__ import annotations

from statehouse.web.pages.contacts import answered_between
from tests.unit.statehouse.web.pages.fleets import reading, replica


def test_lookups_are_counted_from_the_first_answer_on():
    assert answered_between(None, reading("n1", 0.0, replica(lookups=100))) == {}
    counted = answered_between(
        reading("n1", 0.0, replica(lookups=100)), reading("n1", 1.0, replica(lookups=130), replica(1, lookups=4))
    )
    assert counted == {("counts", 0): 30, ("counts", 1): 4}


def test_a_replica_that_was_opened_anew_and_a_process_that_was_started_anew_count_from_zero():
    before = reading("n1", 0.0, replica(lookups=100))
    assert answered_between(before, reading("n1", 1.0, replica(lookups=5))) == {("counts", 0): 5}
    assert answered_between(before, reading("n1", 1.0, replica(lookups=120), incarnation="next")) == {
        ("counts", 0): 120
    }
