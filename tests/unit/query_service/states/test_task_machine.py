"""The task machine, event by event."""

from __future__ import annotations

from types import MappingProxyType

from query_service.states.faults import Fault
from query_service.states.task_events import (
    Action,
    Assigned,
    CheckpointDue,
    Close,
    Closed,
    EndReached,
    Failed,
    FoldersIdle,
    Follow,
    Following,
    NodeStops,
    NodeTask,
    NotSaved,
    Open,
    Opened,
    Remove,
    Removed,
    Restore,
    Restoring,
    RetryAfter,
    RetryDue,
    RoleChanged,
    Save,
    Saved,
    SaveFailed,
    StateChanged,
    Stopped,
)
from query_service.states.task_machine import RETRIES, TaskMachine
from statehouse.contract.assignment import Assignment
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import AnyTaskId, Role, StoreSpec, SubTopology, TaskId

T = TaskId(0, 0)
A, B = (StoreSpec(name, "topic-" + name, 1, 0) for name in "ab")


def assigned(*stores: StoreSpec, role: Role = Role.ACTIVE) -> Assigned:
    """Return an assignment of the one task of these stores to this node; of nothing, without stores."""
    assignment = Assignment(
        1,
        stores=MappingProxyType({each.name: each for each in stores}),
        sub_topologies=MappingProxyType({0: SubTopology(0, "query", 1)}),
    )
    wanted: dict[AnyTaskId, Role] = {T: role} if stores else {}
    return Assigned(assignment, wanted)


def steps(actions: list[Action]) -> list[Action]:
    """Return the actions but those that only tell of a change."""
    return [action for action in actions if not isinstance(action, StateChanged)]


class Driven:
    """A machine whose one task is driven step by step."""

    def __init__(self) -> None:
        self.machine = TaskMachine({})

    @property
    def node_task(self) -> NodeTask:
        return self.machine.tasks[T]

    def opened(self, *stores: StoreSpec) -> NodeTask:
        assert steps(self.machine.handle(assigned(*stores))) == [Open(self.node_task)]
        names = frozenset(each.name for each in stores)
        assert steps(self.machine.handle(Opened(self.node_task, names))) == [Restore(self.node_task)]
        assert self.machine.handle(Restoring(self.node_task)) == []
        return self.node_task

    def running(self, *stores: StoreSpec) -> NodeTask:
        node_task = self.opened(*stores)
        for each in stores:
            assert self.machine.handle(EndReached(node_task, each.name)) == [Follow(node_task, each.name)]
        *first, last = stores
        for each in first:
            assert self.machine.handle(Following(node_task, each.name)) == []
        assert self.machine.handle(Following(node_task, last.name)) == [Save(node_task)]
        assert self.machine.handle(Saved(node_task)) == [
            StateChanged(node_task, TaskState.RESTORING, TaskState.RUNNING)
        ]
        return node_task


def test_a_task_runs_once_all_its_stores_are_followed_and_saved() -> None:
    assert Driven().running(A, B).state is TaskState.RUNNING


def test_an_end_that_is_told_twice_is_taken_once() -> None:
    driven = Driven()
    node_task = driven.opened(A, B)
    assert driven.machine.handle(EndReached(node_task, "a")) == [Follow(node_task, "a")]
    assert driven.machine.handle(EndReached(node_task, "a")) == []


def test_a_task_that_is_assigned_away_while_it_opens_is_closed_when_it_has_opened() -> None:
    machine = TaskMachine({})
    machine.handle(assigned(A))
    node_task = machine.tasks[T]
    assert machine.handle(assigned()) == []
    actions = machine.handle(Opened(node_task, frozenset({"a"})))
    assert steps(actions) == [Close(node_task, has_failed=False)]
    assert steps(machine.handle(Closed(node_task, {"a": 5}))) == []
    assert machine.dormant == {T: {"a": 5}}
    assert machine.states == []


def test_a_task_that_is_assigned_back_while_it_closes_is_opened_anew() -> None:
    driven = Driven()
    node_task = driven.running(A)
    assert steps(driven.machine.handle(assigned())) == [Close(node_task, has_failed=False)]
    assert driven.machine.handle(assigned(A, role=Role.STANDBY)) == [RoleChanged(node_task)]
    assert node_task.role is Role.STANDBY
    [opening] = steps(driven.machine.handle(Closed(node_task, {"a": 9})))
    assert isinstance(opening, Open)
    assert opening.node_task is not node_task
    assert opening.node_task.role is Role.STANDBY
    assert driven.machine.dormant == {}, "what is opened may be wiped: it is not reported"


def test_a_task_with_other_stores_is_closed_and_opened_anew() -> None:
    driven = Driven()
    node_task = driven.running(A)
    assert steps(driven.machine.handle(assigned(A, B))) == [Close(node_task, has_failed=False)]
    [opening] = steps(driven.machine.handle(Closed(node_task, {})))
    assert isinstance(opening, Open)
    assert opening.node_task.partitions == ((A, 0), (B, 0))


def test_a_role_changes_and_the_state_stays() -> None:
    driven = Driven()
    node_task = driven.running(A)
    assert driven.machine.handle(assigned(A, role=Role.STANDBY)) == [RoleChanged(node_task)]
    assert node_task.state is TaskState.RUNNING


def test_a_close_waits_for_the_follower_and_the_save_under_way() -> None:
    driven = Driven()
    node_task = driven.opened(A)
    driven.machine.handle(EndReached(node_task, "a"))
    told = driven.machine.handle(assigned())
    # It answers no more: it would claim the role that it had before.
    assert told == [StateChanged(node_task, TaskState.RESTORING, TaskState.SUSPENDED)]
    assert steps(driven.machine.handle(Following(node_task, "a"))) == [Close(node_task, has_failed=False)]


def test_what_fails_is_closed_and_opened_after_pauses_that_double() -> None:
    driven = Driven()
    machine, pause_s = driven.machine, RETRIES.first_s
    machine.handle(assigned(A))
    for _ in range(7):
        node_task = driven.node_task
        assert steps(machine.handle(Failed(node_task, Fault.BROKER, "away", ends_step=True))) == [
            Stopped(node_task, Fault.BROKER),
            RetryAfter(node_task, pause_s),
        ]
        assert node_task.error == "broker: away"
        assert machine.handle(Failed(node_task, Fault.BROKER, "again")) == []
        assert steps(machine.handle(RetryDue(node_task))) == [Close(node_task, has_failed=True)]
        assert [type(action) for action in steps(machine.handle(Closed(node_task, {})))] == [Open]
        pause_s = min(2 * pause_s, RETRIES.longest_s)
    node_task = driven.node_task
    machine.handle(Opened(node_task, frozenset({"a"})))
    machine.handle(Restoring(node_task))
    machine.handle(EndReached(node_task, "a"))
    machine.handle(Following(node_task, "a"))
    machine.handle(Saved(node_task))
    assert RetryAfter(node_task, RETRIES.first_s) in machine.handle(Failed(node_task, Fault.DEFECT, "later"))


def test_what_fails_in_a_step_is_not_closed_before_the_others_have_ended() -> None:
    driven = Driven()
    node_task = driven.opened(A, B)
    driven.machine.handle(EndReached(node_task, "a"))
    driven.machine.handle(EndReached(node_task, "b"))
    driven.machine.handle(Failed(node_task, Fault.DEFECT, "no", ends_step=True))
    assert driven.machine.handle(RetryDue(node_task)) == []
    assert steps(driven.machine.handle(Following(node_task, "b"))) == [Close(node_task, has_failed=True)]


def test_what_has_failed_and_is_assigned_away_is_closed_at_once() -> None:
    driven = Driven()
    node_task = driven.running(A)
    driven.machine.handle(Failed(node_task, Fault.DEFECT, "no"))
    assert steps(driven.machine.handle(assigned())) == [Close(node_task, has_failed=True)]
    driven.machine.handle(Closed(node_task, {}))
    assert driven.machine.handle(RetryDue(node_task)) == [], "what was to be tried again is gone"


def test_a_first_checkpoint_must_be_written_and_a_later_readable_copy_need_not() -> None:
    driven = Driven()
    node_task = driven.opened(A)
    driven.machine.handle(EndReached(node_task, "a"))
    driven.machine.handle(Following(node_task, "a"))
    driven.machine.handle(SaveFailed(node_task, Fault.DISK_FULL, "full", is_copy=True))
    assert node_task.state is TaskState.ERROR

    driven = Driven()
    node_task = driven.running(A)
    assert driven.machine.handle(CheckpointDue(node_task)) == [Save(node_task)]
    assert driven.machine.handle(CheckpointDue(node_task)) == [], "one at a time"
    late = driven.machine.handle(SaveFailed(node_task, Fault.DISK_FULL, "full", is_copy=True))
    assert late == [NotSaved(node_task, Fault.DISK_FULL, "full")]
    assert node_task.state is TaskState.RUNNING
    driven.machine.handle(CheckpointDue(node_task))
    driven.machine.handle(SaveFailed(node_task, Fault.DEFECT, "broken", is_copy=False))
    assert node_task.state is TaskState.ERROR
    assert driven.machine.handle(CheckpointDue(node_task)) == []


def test_idle_folders_are_removed_and_what_is_wanted_meanwhile_is_opened_afterwards() -> None:
    machine = TaskMachine({T: {"a": 7}})
    assert machine.handle(FoldersIdle([T])) == [Remove(T)]
    assert machine.handle(FoldersIdle([T])) == []
    assert machine.handle(assigned(A)) == []
    assert machine.in_use == {T}
    [opening] = machine.handle(Removed(T, is_gone=True))
    assert isinstance(opening, Open)
    assert machine.handle(FoldersIdle([T])) == []


def test_a_folder_that_stays_is_still_reported() -> None:
    machine = TaskMachine({T: {"a": 7}})
    machine.handle(FoldersIdle([T]))
    machine.handle(Removed(T, is_gone=False))
    assert machine.dormant == {T: {"a": 7}}


def test_a_node_that_stops_takes_no_assignment_any_more() -> None:
    driven = Driven()
    node_task = driven.running(A)
    assert steps(driven.machine.handle(NodeStops())) == [Close(node_task, has_failed=False)]
    assert driven.machine.handle(assigned(A)) == []
    assert steps(driven.machine.handle(Closed(node_task, {}))) == []
    assert driven.machine.tasks == {}


def test_what_is_wanted_and_not_open_yet_counts_as_created() -> None:
    machine = TaskMachine({T: {"a": 7}})
    machine.handle(FoldersIdle([T]))
    machine.handle(assigned(A))
    assert machine.states == [TaskState.CREATED]
    assert not machine.is_settled
