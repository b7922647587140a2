"""Which folders are due to be removed, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from query_service.disk.cleanup import IdleFolders
from statehouse.contract.topology import AnyTaskId, GlobalId, TaskId

TASKS: list[AnyTaskId] = [TaskId(0, 0), TaskId(0, 1), GlobalId("countries")]
ids = st.sets(st.sampled_from(TASKS))


def test_folders_of_an_earlier_run_are_kept_for_one_delay() -> None:
    idle_folders = IdleFolders(600.0)
    assert idle_folders.due(TASKS, [], 1_000_000.0) == []
    assert idle_folders.due(TASKS, [], 1_000_599.0) == []
    assert idle_folders.due(TASKS, [], 1_000_600.0) == TASKS


def test_what_comes_back_begins_anew() -> None:
    idle_folders = IdleFolders(10.0)
    assert idle_folders.due(TASKS, [], 0.0) == []
    assert idle_folders.due(TASKS, TASKS[:1], 9.0) == []
    assert idle_folders.due(TASKS, [], 10.0) == TASKS[1:]
    assert idle_folders.due(TASKS[:1], [], 19.9) == []
    assert idle_folders.due(TASKS[:1], [], 20.0) == TASKS[:1]


def test_no_delay_removes_at_once() -> None:
    assert IdleFolders(0.0).due(TASKS, TASKS[1:], 5.0) == TASKS[:1]


@given(st.lists(st.tuples(st.floats(0, 8), ids, ids), max_size=30))
def test_only_what_was_there_and_idle_at_every_look_for_the_delay(looks: list[tuple[float, set, set]]) -> None:
    idle_folders, now_s = IdleFolders(10.0), 0.0
    history: list[tuple[float, set, set]] = []
    for pause_s, on_disk, in_use in looks:
        now_s += pause_s
        history.append((now_s, on_disk, in_use))
        due = idle_folders.due(on_disk, in_use, now_s)
        for task in TASKS:
            idle_since_s = now_s
            for at_s, there, used in reversed(history):
                if task not in there or task in used:
                    break
                idle_since_s = at_s
            is_idle = task in on_disk and task not in in_use
            assert (task in due) == (is_idle and now_s - idle_since_s >= 10.0)
