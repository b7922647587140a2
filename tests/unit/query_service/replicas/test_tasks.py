"""Tasks: what becomes of them when a step of their life fails. No broker is there, and none is asked."""

from __future__ import annotations

import errno
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import pytest_asyncio

from query_service.disk.directory import StateDirectory, TaskDirectory
from query_service.replicas import opening
from query_service.replicas import replica as replica_module
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.replicas.tasks import TaskManager
from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault
from query_service.states.keep_or_wipe import Changelog
from query_service.states.task_events import NodeTask, NotSaved
from query_service.stores.base import ChangelogRecord
from query_service.stores.catalog import layout_of, open_store
from query_service.stores.engine import StoreClosed
from query_service.stores.resources import StoreResources
from query_service.stores.walk import Walk
from query_service.telemetry.listeners import Listeners
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import AnyTaskId, Role, StoreSpec, SubTopology, TaskId
from statehouse.settings import NodeSettings
from tests.support.panic import Panic
from tests.support.polling import poll_until_async

TASK = TaskId(0, 0)
AT = Checkpoint("topic", "id", 500, 1_700_000_000_000)
A, B = (StoreSpec(name, "topic-" + name, 1, 0) for name in "ab")


@pytest.fixture
def metrics() -> NodeMetrics:
    return NodeMetrics()


@pytest.fixture
def settings(tmp_path: Path) -> NodeSettings:
    return NodeSettings(application_id="app", bootstrap="127.0.0.1:1", state_dir=tmp_path, state_cleanup_delay_ms=0)


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path, "app")


@pytest_asyncio.fixture
async def tasks(settings: NodeSettings, metrics: NodeMetrics) -> AsyncIterator[TaskManager]:
    tasks = TaskManager(settings, "test", lambda: None, lambda _error: None, Listeners(), metrics, StoreResources())
    yield tasks
    await tasks.close()


async def test_a_state_directory_that_can_not_be_listed_is_looked_at_again_later(
    tasks: TaskManager, metrics: NodeMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many_files() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(tasks._directory, "on_disk", too_many_files)
    await tasks.clean_up()
    labels = {"fault": "disk_refused", "outcome": "passed_over"}
    assert metrics.registry.get_sample_value("statehouse_node_faults_total", labels) == 1


def assign(tasks: TaskManager, *stores: StoreSpec, epoch: int = 1) -> None:
    """Have this node hold the one task of these stores; with none, nothing."""
    assignment = Assignment(
        epoch,
        stores=MappingProxyType({each.name: each for each in stores}),
        sub_topologies=MappingProxyType({0: SubTopology(0, "query", 1)}),
        tasks=MappingProxyType({TASK: TaskAssignment("me")}),
    )
    wanted: dict[AnyTaskId, Role] = {TASK: Role.ACTIVE} if stores else {}
    tasks.assign(assignment, wanted)


@pytest.fixture
def opened(tasks: TaskManager, metrics: NodeMetrics, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StoreReplica]:
    """Stores are opened without asking a broker; replicators accept everything."""

    def open_(spec: StoreSpec, partition: int, directory: TaskDirectory, role: Role) -> StoreReplica:
        store = open_store(spec, directory.store_path(spec.name), StoreResources())
        at = Checkpoint(spec.changelog_topic, "id", 0, 1_700_000_000_000, layout=layout_of(spec, store))
        return StoreReplica(spec, partition, store, at, metrics.of(spec.name, role))

    for replicator in (tasks._restorer, tasks._follower):
        monkeypatch.setattr(replicator, "add", lambda _store: done())
        monkeypatch.setattr(replicator, "remove", lambda _store: done())
    monkeypatch.setattr(tasks._steps._opener, "open", open_)
    return open_


def done(error: Exception | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


async def in_state(tasks: TaskManager, state: TaskState) -> None:
    await poll_until_async(lambda: TASK in tasks.replicas and tasks.replicas[TASK].state is state, 10.0, state)


@pytest.mark.parametrize("refused", ["restorer.add", "restorer.remove", "follower.add"])
async def test_a_task_that_no_thread_takes_is_tried_again(
    tasks: TaskManager, opened: Any, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicator, method = refused.split(".")
    with monkeypatch.context() as patch:
        patch.setattr(getattr(tasks, f"_{replicator}"), method, lambda _store: done(RuntimeError("refused")))
        assign(tasks, A)
        await in_state(tasks, TaskState.ERROR if method == "add" and replicator == "restorer" else TaskState.RESTORING)
        if tasks.replicas[TASK].state is TaskState.RESTORING:
            tasks._end_reached(tasks.replicas[TASK].stores["a"])
            await in_state(tasks, TaskState.ERROR)
    await in_state(tasks, TaskState.RESTORING)
    tasks._end_reached(tasks.replicas[TASK].stores["a"])
    await in_state(tasks, TaskState.RUNNING)


@pytest.mark.feature("deleted-keys-don")
async def test_a_restore_that_outlived_the_tombstones_is_made_again(
    tasks: TaskManager, metrics: NodeMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tombstone may have left the log before the restore came to it: the key would be back."""
    wall_ms = 1_700_000_000_000
    for module in (opening, replica_module):
        monkeypatch.setattr(module, "monotonic_and_wall_ms", lambda: (time.monotonic(), wall_ms))
    for replicator in (tasks._restorer, tasks._follower):
        monkeypatch.setattr(replicator, "add", lambda _store: done())
        monkeypatch.setattr(replicator, "remove", lambda _store: done())
    settings = {"cleanup.policy": "compact", "min.compaction.lag.ms": "0"}
    log = Changelog(A.changelog_topic, "id", 0, 1, 60_000)
    monkeypatch.setattr(tasks._steps._opener._admin, "ask", lambda _question: (settings, 1, log))
    deleted = ChangelogRecord(b"deleted", b"1", 0)

    assign(tasks, A)
    await in_state(tasks, TaskState.RESTORING)
    first = tasks.replicas[TASK].stores["a"]
    first.apply([deleted], 1)
    wall_ms += 60_001
    tasks._end_reached(first)
    await in_state(tasks, TaskState.ERROR)
    assert "raise delete.retention.ms" in tasks.replicas[TASK].node_task.error

    await in_state(tasks, TaskState.RESTORING)
    again = tasks.replicas[TASK].stores["a"]
    assert (again.position, again.store.exact_count(Walk())) == (0, 0)
    wiped = {"store": "a", "fault": "checkpoint_too_old"}
    assert metrics.registry.get_sample_value("statehouse_node_full_restores_total", wiped) == 1
    again.apply([], 1)
    tasks._end_reached(again)
    await in_state(tasks, TaskState.RUNNING)


async def test_state_that_was_wiped_is_not_reported(
    tasks: TaskManager, state: StateDirectory, opened: Callable[..., StoreReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = state.task(TASK)
    folder.acquire()
    folder.write_checkpoints({"a": AT})
    folder.release()
    tasks._machine.dormant[TASK] = {"a": AT.position}
    assert tasks.report()[TASK].stores["a"].position == 500

    def wipe_then_fail(spec: StoreSpec, partition: int, directory: TaskDirectory, role: Role) -> StoreReplica:
        if spec.name == "b":
            raise OSError(errno.EROFS, "Read-only file system")
        directory.wipe_store("a")
        return opened(spec, partition, directory, role)

    monkeypatch.setattr(tasks._steps._opener, "open", wipe_then_fail)
    assign(tasks, A, B)
    await in_state(tasks, TaskState.ERROR)
    assign(tasks, epoch=2)
    await poll_until_async(lambda: TASK not in tasks.replicas, 10.0, "the close")
    assert tasks.report() == {}


async def test_state_that_a_failed_task_left_is_reported(
    tasks: TaskManager, state: StateDirectory, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = state.task(TASK)
    folder.acquire()
    folder.write_checkpoints({"a": AT})
    folder.release()

    def fail(*_: object) -> StoreReplica:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tasks._steps._opener, "open", fail)
    assign(tasks, A)
    await in_state(tasks, TaskState.ERROR)
    assign(tasks, epoch=2)
    await poll_until_async(lambda: TASK not in tasks.replicas, 10.0, "the close")
    assert tasks.report()[TASK].stores["a"].position == 500


async def test_folder_of_a_store_that_left_the_task_is_removed(
    tasks: TaskManager, state: StateDirectory, opened: Any
) -> None:
    folder = state.task(TASK)
    assign(tasks, A, B)
    await in_state(tasks, TaskState.RESTORING)
    assert folder.store_path("b").is_dir()
    assign(tasks, A, epoch=2)
    await poll_until_async(
        lambda: TASK in tasks.replicas and tasks.replicas[TASK].stores.keys() == {"a"}, 10.0, "a alone"
    )
    assert folder.store_path("a").is_dir()
    assert not folder.store_path("b").exists()


async def test_a_close_that_meets_a_defect_still_ends(
    tasks: TaskManager, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assign(tasks, A)
    await in_state(tasks, TaskState.RESTORING)
    with monkeypatch.context() as patch:
        patch.setattr(tasks._restorer, "remove", lambda _store: done(RuntimeError("a defect")))
        assign(tasks, epoch=2)
        await poll_until_async(lambda: TASK not in tasks.replicas, 10.0, "the close")
    assign(tasks, A, epoch=3)
    await in_state(tasks, TaskState.RESTORING)  # the folder was not left locked, nor the store open


@pytest.mark.parametrize("breaks", ["checkpoint", "close"])
async def test_a_panic_in_a_close_leaves_no_store_open_and_no_folder_locked(
    tasks: TaskManager, state: StateDirectory, opened: Any, breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assign(tasks, A, B)
    await in_state(tasks, TaskState.RESTORING)
    first, second = tasks.replicas[TASK].stores["a"], tasks.replicas[TASK].stores["b"]
    close = first.store.close

    def panic() -> None:
        if breaks == "close":
            close()
        raise Panic("index out of bounds")

    if breaks == "checkpoint":
        monkeypatch.setattr(first, "save_checkpoint", panic)
    else:
        monkeypatch.setattr(first.store, "close", panic)
    assign(tasks, epoch=2)
    await poll_until_async(lambda: TASK not in tasks.replicas, 10.0, "the close")
    with pytest.raises(StoreClosed):
        second.store.exact_count(Walk())
    folder = state.task(TASK)
    folder.acquire()
    folder.release()


async def test_dormant_tasks_are_counted_by_a_scrape_while_tasks_are_opened(tasks: TaskManager) -> None:
    class Changing(TaskId):
        def __hash__(self) -> int:  # where a scrape's thread may make room for the event loop
            if is_counted:
                tasks.replicas[TaskId(0, len(tasks.replicas) + 1)] = replica
            return 1

    is_counted = False
    replica = TaskReplica(NodeTask(TASK, Role.ACTIVE, ()), tasks._directory.task(TASK))
    tasks._machine.dormant |= {Changing(0, 7): {}, TaskId(0, 8): {}}
    tasks.replicas |= {Changing(0, 9): replica, TaskId(0, 2): replica}
    is_counted = True
    assert tasks.dormant_tasks() == 2
    tasks.replicas.clear()


@pytest.mark.parametrize("breaks", ["machine", "node"])
async def test_a_defect_of_the_machine_or_of_who_hears_of_changes_is_told(
    breaks: str, settings: NodeSettings, metrics: NodeMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Exception] = []
    is_broken = False

    def on_change() -> None:
        if is_broken:
            raise ZeroDivisionError

    tasks = TaskManager(settings, "test", on_change, told.append, Listeners(), metrics, StoreResources())
    with monkeypatch.context() as patch:
        if breaks == "machine":
            patch.setattr(tasks._machine, "handle", lambda _event: 1 / 0)
        else:
            action = NotSaved(NodeTask(TASK, Role.ACTIVE, ()), Fault.DISK_FULL, "no room")
            patch.setattr(tasks._machine, "handle", lambda _event: [action])
            is_broken = True
        assign(tasks, A)
    assert [type(error) for error in told] == [ZeroDivisionError]
    is_broken = False
    await tasks.close()
