"""The task machine under any order of events: no step disturbs another, and in the end all is as wanted."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from query_service.states.faults import Fault
from query_service.states.task_events import (
    Action,
    Assigned,
    CheckpointDue,
    Close,
    Closed,
    EndReached,
    Event,
    Failed,
    FoldersIdle,
    Follow,
    Following,
    NodeTask,
    Open,
    Opened,
    Remove,
    Removed,
    Restore,
    Restoring,
    RetryAfter,
    RetryDue,
    Save,
    Saved,
    SaveFailed,
)
from query_service.states.task_machine import TaskMachine
from statehouse.contract.assignment import Assignment
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import AnyTaskId, Role, StoreSpec, SubTopology, TaskId

TASKS = [TaskId(0, partition) for partition in range(3)]
STORES = [StoreSpec(name, "topic-" + name, 3, 0) for name in "ab"]
STEPS = (Open, Restore, Follow, Save, Close, Remove)
ALONE = (Open, Close, Remove)


class Tasks(RuleBasedStateMachine):
    """Drives the machine as somebody would who knows only what each action asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = TaskMachine({TASKS[2]: {"a": 1}})
        self.under_way: list[Any] = []
        self.pauses: list[NodeTask] = []
        self.wanted: dict[AnyTaskId, Role] = {}
        self.on_disk: set[AnyTaskId] = {TASKS[2]}

    def take(self, event: Event) -> None:
        for action in self.machine.handle(event):
            self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        if isinstance(action, RetryAfter):
            assert action.node_task.error
            self.pauses.append(action.node_task)
        elif isinstance(action, STEPS):
            others = [each for each in self.under_way if task_of(each) == task_of(action)]
            if isinstance(action, ALONE):
                assert not others, f"{action} during {others}"
            assert not any(isinstance(each, ALONE) for each in others), f"{action} during {others}"
            if isinstance(action, Open):
                assert task_of(action) in self.wanted
                self.on_disk.add(task_of(action))
            self.under_way.append(action)

    def end(self, action: Any, *, well: bool) -> None:
        """End a step."""
        self.under_way.remove(action)
        match action:
            case Open(node_task):
                names = frozenset(spec.name for spec, _ in node_task.partitions)
                self.take(
                    Opened(node_task, names) if well else Failed(node_task, Fault.DISK_FULL, "full", ends_step=True)
                )
            case Restore(node_task):
                self.take(Restoring(node_task) if well else Failed(node_task, Fault.DEFECT, "ended", ends_step=True))
            case Follow(node_task, store):
                done = (
                    Following(node_task, store)
                    if well
                    else Failed(node_task, Fault.LOG_TRUNCATED, "lost", ends_step=True)
                )
                self.take(done)
            case Save(node_task):
                self.take(Saved(node_task) if well else SaveFailed(node_task, Fault.DISK_FULL, "full", is_copy=True))
            case Close(node_task):
                self.take(Closed(node_task, {"a": 1} if well else {}))
            case Remove(task):
                self.on_disk -= {task} if well else set()
                self.take(Removed(task, is_gone=well))

    @rule(
        wanted=st.dictionaries(st.sampled_from(TASKS), st.sampled_from([Role.ACTIVE, Role.STANDBY, Role.WARM_UP])),
        stores=st.lists(st.sampled_from(STORES), min_size=1, unique_by=lambda spec: spec.name),
    )
    def assign(self, wanted: dict[AnyTaskId, Role], stores: list[StoreSpec]) -> None:
        assignment = Assignment(
            1,
            stores=MappingProxyType({each.name: each for each in stores}),
            sub_topologies=MappingProxyType({0: SubTopology(0, "query", 3)}),
        )
        self.wanted = wanted
        self.take(Assigned(assignment, wanted))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), well=st.booleans())
    def step_ends(self, data: st.DataObject, well: bool) -> None:
        self.end(data.draw(st.sampled_from(self.under_way)), well=well)

    @precondition(lambda self: self.machine.tasks)
    @rule(data=st.data())
    def end_is_reached(self, data: st.DataObject) -> None:
        node_task = data.draw(st.sampled_from(list(self.machine.tasks.values())))
        if node_task.stores:
            self.take(EndReached(node_task, data.draw(st.sampled_from(sorted(node_task.stores)))))

    @precondition(lambda self: self.machine.tasks)
    @rule(data=st.data())
    def task_fails(self, data: st.DataObject) -> None:
        self.take(Failed(data.draw(st.sampled_from(list(self.machine.tasks.values()))), Fault.DEFECT, "broken"))

    @precondition(lambda self: self.machine.tasks)
    @rule(data=st.data())
    def checkpoint_is_due(self, data: st.DataObject) -> None:
        self.take(CheckpointDue(data.draw(st.sampled_from(list(self.machine.tasks.values())))))

    @precondition(lambda self: self.pauses)
    @rule(data=st.data())
    def pause_is_over(self, data: st.DataObject) -> None:
        node_task = data.draw(st.sampled_from(self.pauses))
        self.pauses.remove(node_task)
        self.take(RetryDue(node_task))

    @rule()
    def folders_are_idle(self) -> None:
        self.take(FoldersIdle([task for task in TASKS if task in self.on_disk]))

    @invariant()
    def who_has_failed_is_tried_again(self) -> None:
        for node_task in self.machine.tasks.values():
            if node_task.state is TaskState.ERROR and not node_task.is_retry_due:
                assert node_task in self.pauses

    @invariant()
    def what_is_opened_is_not_reported_as_lying_idle(self) -> None:
        for task, node_task in self.machine.tasks.items():
            if node_task.state is not TaskState.SUSPENDED:
                assert task not in self.machine.dormant

    @invariant()
    def the_machine_knows_what_is_under_way(self) -> None:
        begun = Counter(task_of(action) for action in self.under_way)
        assert begun.keys() <= self.machine.in_use

    def teardown(self) -> None:
        """With nothing going wrong any more, everything wanted comes to run, and nothing else is held."""
        for _ in range(200):
            for node_task in list(self.machine.tasks.values()):
                for store in sorted(node_task.stores):
                    self.take(EndReached(node_task, store))
            while self.pauses:
                self.take(RetryDue(self.pauses.pop()))
            if not self.under_way:
                break
            self.end(self.under_way[0], well=True)
        assert {task: node_task.role for task, node_task in self.machine.tasks.items()} == self.wanted
        assert all(node_task.state is TaskState.RUNNING for node_task in self.machine.tasks.values())
        assert self.machine.is_settled


def task_of(action: Any) -> AnyTaskId:
    task: AnyTaskId = action.task if isinstance(action, Remove) else action.node_task.task
    return task


TestTasks = Tasks.TestCase
TestTasks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
