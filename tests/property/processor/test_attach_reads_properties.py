"""A follower that may die at any moment, and an older one that lives on: the store only shows states of batches."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from processor.attach.reads import (
    AttachMisfit,
    Identity,
    Position,
    ReadChanges,
    ReadPlanner,
    ReadState,
    StoreCommit,
    continued,
    misfit,
)

PARTITIONS = 2
KEPT = 4
State = dict[int, int]


def partition_of(key: int) -> int:
    return key % PARTITIONS


@dataclass
class Partition:
    """A partition of the changelog: what it adds up to, and its marker."""

    content: State = field(default_factory=dict)
    marker: int = 0
    is_claim: bool = False

    def claim(self, batch_id: int) -> None:
        if self.marker < batch_id:
            self.marker, self.is_claim = batch_id, True

    def write(self, batch_id: int, rows: dict[int, int | None]) -> bool:
        """One transaction, as the sink's protocol has it: nothing if a batch at least as new was written.

        False if it is claimed for a newer batch.
        """
        if self.marker > batch_id:
            return not self.is_claim
        for key, value in rows.items():
            if value is None:
                self.content.pop(key, None)
            else:
                self.content[key] = value
        self.marker, self.is_claim = batch_id + 1, False
        return True


class World:
    """A job with its checkpoint, a changelog and the record of the last batch that is whole."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.partitions = [Partition() for _ in range(PARTITIONS)]
        self.recorded: int | None = None
        self.recorder = 0
        self.has_changes = True

    @property
    def committed(self) -> int | None:
        return len(self.states) - 1 if self.states else None

    def commit(self, changes: dict[int, int | None]) -> None:
        now = dict(self.states[-1]) if self.states else {}
        for key, value in changes.items():
            if value is None:
                now.pop(key, None)
            else:
                now[key] = value
        self.states.append(now)

    def is_readable(self, batch_id: int) -> bool:
        return batch_id > len(self.states) - 1 - KEPT


class Follower:
    """Carries reads out in steps, so that others may come in between."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.planner = ReadPlanner()
        self.published = world.recorded
        self.read: ReadChanges | ReadState | None = None
        self.rows: list[dict[int, int | None]] = []
        self.left: list[int] = []
        self.was_claimed = False

    def begin(self) -> None:
        world = self.world
        read = self.planner.next(Position(world.committed, self.published, world.has_changes))
        if isinstance(read, ReadChanges) and not (world.has_changes and world.is_readable(read.first - 1)):
            read = self.planner.failed(read)
        self.read = read
        if read is None:
            return
        self.rows = [{} for _ in range(PARTITIONS)]
        if isinstance(read, ReadChanges):
            for batch_id in range(read.first, read.last + 1):
                before, now = (world.states[batch_id - 1] if batch_id else {}), world.states[batch_id]
                for key in before.keys() | now.keys():
                    if before.get(key) != now.get(key):
                        self.rows[partition_of(key)][key] = now.get(key)
        else:
            for number, partition in enumerate(world.partitions):
                partition.claim(read.batch_id)
                now = {k: v for k, v in world.states[read.batch_id].items() if partition_of(k) == number}
                for key in partition.content.keys() | now.keys():
                    if partition.content.get(key) != now.get(key):
                        self.rows[number][key] = now.get(key)
        self.left = [number for number in range(PARTITIONS) if self.rows[number]]

    def write_one(self) -> None:
        assert self.read is not None
        number = self.left.pop()
        if not self.world.partitions[number].write(self.read.batch_id, self.rows[number]):
            self.was_claimed = True

    def finish(self) -> bool:
        """Record the batch; False if a newer follower has started since. What others have claimed isn't recorded."""
        assert self.read is not None
        if self.was_claimed:
            self.published, self.read, self.was_claimed = None, None, False
            return True
        if self.world.recorder != self.number:
            return False
        self.published = self.world.recorded = self.read.batch_id
        self.planner.done(self.read)
        self.read = None
        return True


class AttachMachine(RuleBasedStateMachine):
    """At most two followers: the newest, and the one before it, which nobody has stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.followers: list[Follower] = []
        self.start()

    def start(self) -> None:
        self.world.recorder += 1
        self.followers = [*self.followers[-1:], Follower(self.world, self.world.recorder)]

    @rule(changes=st.dictionaries(st.integers(0, 2), st.none() | st.integers(0, 1), max_size=2))
    def job_commits(self, changes: dict[int, int | None]) -> None:
        self.world.commit(changes)

    @rule(has=st.booleans())
    def provider_writes_changes(self, has: bool) -> None:
        self.world.has_changes = has

    @rule()
    def newest_dies_and_another_starts(self) -> None:
        self.followers.pop()
        self.start()

    @rule()
    def newest_freezes_and_another_starts(self) -> None:
        self.start()

    @rule(which=st.integers(0, 1), steps=st.integers(1, PARTITIONS + 2))
    def follower_goes_on(self, which: int, steps: int) -> None:
        follower = self.followers[min(which, len(self.followers) - 1)]
        for _ in range(steps):
            if follower.read is None:
                follower.begin()
                if follower.read is None:
                    return
            elif follower.left:
                follower.write_one()
            elif not follower.finish():
                self.followers.remove(follower)
                return

    @precondition(lambda self: self.world.states)
    @rule()
    def job_rests_until_all_is_published(self) -> None:
        newest = self.followers[-1]
        while newest.published != self.world.committed:
            self.follower_goes_on(len(self.followers) - 1, 1)
        # What an older one had begun does no harm any more.
        for older in self.followers[:-1]:
            while older.left:
                older.write_one()
        content = {key: value for partition in self.world.partitions for key, value in partition.content.items()}
        assert content == self.world.states[-1]

    @invariant()
    def each_partition_shows_a_batch(self) -> None:
        states = [{}, *self.world.states]
        for number, partition in enumerate(self.world.partitions):
            shown = [{k: v for k, v in state.items() if partition_of(k) == number} for state in states]
            assert partition.content in shown


TestAttach = AttachMachine.TestCase
TestAttach.settings = settings(max_examples=400, stateful_step_count=50)


@pytest.mark.feature("batch-published-once")
def test_a_follower_that_was_frozen_does_not_write_an_older_batch() -> None:
    world = World()
    world.has_changes = False
    world.recorder = 1
    world.commit({0: 0})
    frozen = Follower(world, 1)
    frozen.begin()
    frozen.write_one()
    frozen.finish()
    world.commit({0: 1})
    frozen.begin()
    world.recorder = 2
    newer = Follower(world, 2)
    world.commit({0: 0})
    newer.begin()
    # The value is what it was: there is nothing to write, and so no marker but the claim's.
    assert newer.left == []
    newer.finish()
    frozen.write_one()
    assert world.partitions[0].content == {0: 0}


def test_a_claim_of_an_older_follower_is_not_taken_for_a_batch() -> None:
    world = World()
    world.recorder = 1
    world.commit({0: 0})
    older = Follower(world, 1)
    older.begin()
    older.write_one()
    older.finish()
    world.recorder = 2
    newest = Follower(world, 2)
    world.commit({0: None})
    newest.begin()
    world.commit({2: 0})
    world.has_changes = False
    older.begin()
    world.has_changes = True
    newest.write_one()
    newest.finish()
    assert world.recorded == 0
    newest.begin()
    while newest.left:
        newest.write_one()
    newest.finish()
    assert world.partitions[0].content == {2: 0}
    assert world.recorded == 2


@pytest.mark.feature("changes-batch-where")
@given(failures=st.integers(1, 20))
def test_a_provider_without_changes_is_tried_ever_more_rarely(failures: int) -> None:
    planner, published, tries = ReadPlanner(), 0, 0
    for batch_id in range(1, 200):
        read = planner.next(Position(batch_id, published))
        if isinstance(read, ReadChanges):
            tries += 1
            read = planner.failed(read) if tries <= failures else read
        assert read is not None
        planner.done(read)
        published = batch_id
    assert tries <= failures + 1 + 198
    if failures == 20:
        assert tries < 15
    else:
        # Once changes can be read, they are read from then on.
        assert tries > 8 or failures > 6


@pytest.mark.feature("batch-published-once")
@given(
    committed=st.none() | st.integers(0, 9),
    published=st.none() | st.integers(0, 9),
    has_changes=st.booleans(),
    same_partitions=st.booleans(),
)
def test_a_read_ends_at_the_newest_batch(
    committed: int | None,
    published: int | None,
    has_changes: bool,
    same_partitions: bool,
) -> None:
    read = ReadPlanner().next(Position(committed, published, has_changes, same_partitions))
    if committed is None or (published is not None and committed <= published):
        assert read is None
        return
    assert read is not None
    assert read.batch_id == committed
    if isinstance(read, ReadChanges):
        assert published is not None
        assert read.first == published + 1
        assert has_changes
        assert same_partitions


LAST = StoreCommit("q.form.abc", 5)


@pytest.mark.feature("isn-t-checkpoint")
@pytest.mark.parametrize(
    ("last", "query_id", "form", "committed", "written", "expected"),
    [
        (None, "q", "form", 3, None, None),
        (LAST, "q", "form", 5, None, None),
        (LAST, "q", "form", 7, 6, None),
        (LAST, "q", "form", 4, None, AttachMisfit.ROLLED_BACK),
        (LAST, "q", "form", None, None, AttachMisfit.ROLLED_BACK),
        (LAST, "q", "form", 5, 6, AttachMisfit.ROLLED_BACK),
        (LAST, "q", "other", 4, None, None),
        (LAST, "q2", "form", 9, None, AttachMisfit.QUERY_REPLACED),
        (StoreCommit("5a1e", 5), "5a1e", "form", 9, None, AttachMisfit.OTHER_PROGRAM),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    last: StoreCommit | None,
    query_id: str,
    form: str,
    committed: int | None,
    written: int | None,
    expected: AttachMisfit | None,
) -> None:
    assert misfit(last, query_id, form, committed, written) is expected


@pytest.mark.feature("batch-published-once")
def test_a_store_goes_on_only_with_the_same_state_in_the_same_form() -> None:
    assert continued(LAST, "q", "form") == Identity("q", "form", "abc")
    assert str(continued(LAST, "q", "form")) == LAST.query_id
    assert continued(LAST, "q", "other") is None
    assert continued(None, "q", "form") is None
