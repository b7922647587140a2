"""Epochs are counted in a circle: whatever somebody has written, the next epoch is newer to every reader."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from statehouse.contract.assignment import Assignment, AssignmentReader, TaskAssignment, encode
from statehouse.contract.epochs import EPOCH_MAX, OLDER_MAX, following, is_newer, newest
from statehouse.contract.topology import StoreSpec, SubTopology, TaskId

_EDGES: Final = (1, 2, OLDER_MAX, OLDER_MAX + 1, EPOCH_MAX // 2, EPOCH_MAX - OLDER_MAX, EPOCH_MAX - 1, EPOCH_MAX)
EPOCHS: Final = st.one_of(
    st.sampled_from(_EDGES), st.integers(1, 50), st.integers(1, EPOCH_MAX), st.integers(EPOCH_MAX - 50, EPOCH_MAX)
)


@given(EPOCHS, st.lists(EPOCHS, max_size=6))
@example(EPOCH_MAX, [1, 2])
@example(7, [8, 8 + OLDER_MAX - 1, EPOCH_MAX])
def test_the_next_epoch_is_newer_than_all_that_are_known(epoch: int, known: list[int]) -> None:
    after = following(epoch, known)
    assert 1 <= after <= EPOCH_MAX
    assert all(is_newer(after, each) for each in (epoch, *known))
    assert not any(is_newer(each, after) for each in (epoch, *known) if (after - each) % EPOCH_MAX < OLDER_MAX)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_the_epochs_of_a_fleet_are_in_the_order_of_numbers(one: int, other: int) -> None:
    assert is_newer(one, other) == (one > other)
    assert newest(one, other) == max(one, other)
    assert following(one) == one + 1


def assignment(epoch: int, active: str) -> Assignment:
    return Assignment(
        epoch,
        "because",
        "c",
        MappingProxyType({"s": StoreSpec("s", "app-s-changelog", 1, 0)}),
        MappingProxyType({0: SubTopology(0, "q", 1)}),
        MappingProxyType({TaskId(0, 0): TaskAssignment(active)}),
    )


def feed(reader: AssignmentReader, records: list[tuple[bytes, bytes | None]]) -> None:
    for record in records:
        reader.feed(*record)


@given(st.integers(1, 100), st.lists(EPOCHS, min_size=1, max_size=4), st.booleans())
def test_a_controller_is_heard_by_all_whatever_has_been_written(own: int, foreign: list[int], restarted: bool) -> None:
    """Readers that followed all along, and those that found only what somebody wrote last: each takes what comes next.

    The controller is the one that followed, or one that has just started and learns of epochs from heartbeats.
    """
    running = AssignmentReader()
    feed(running, encode(Assignment(), assignment(own, "honest"))[1])
    published = own
    late: list[AssignmentReader] = []
    for epoch in foreign:
        written = encode(Assignment(), assignment(epoch, "foreign"))[1]
        feed(running, written)
        found = AssignmentReader()
        found.begin()
        feed(found, written)
        assert found.end_reached() is not None
        late.append(found)
        readers = (running, *late)
        if restarted:
            published = following(found.epoch, [reader.epoch for reader in readers])
        else:
            published = following(newest(published, running.epoch), [reader.epoch for reader in late])
        again = encode(Assignment(), assignment(published, "honest"))[1]
        for reader in readers:
            feed(reader, again)
            assert reader.current is not None
            assert (reader.epoch, reader.current.tasks[TaskId(0, 0)].active) == (published, "honest")


@given(EPOCHS, EPOCHS)
def test_what_follows_any_epoch_is_taken_without_being_whole(before: int, step: int) -> None:
    """Only what changed is written, unless the count began anew or was led astray."""
    complete, records = encode(Assignment(), assignment(before, "n1"))
    reader = AssignmentReader()
    feed(reader, records)
    after = following(before, [step])
    complete, records = encode(complete, assignment(after, "n2"))
    feed(reader, records)
    assert reader.current == complete
    _, records = encode(complete, assignment(following(after), "n2"))
    feed(reader, records)
    assert reader.epoch == following(after)
