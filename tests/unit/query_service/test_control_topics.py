"""What a node does with the records of the control topics, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from query_service import control_topics
from query_service.control_topics import ControlTopics
from query_service.reads.fleet_view import FleetView
from query_service.states.ownership import NodeOwnership
from statehouse.contract.assignment import Assignment, TaskAssignment, encode
from statehouse.contract.topology import StoreSpec, SubTopology, TaskId
from statehouse.observability.unreadable_records import UnreadableRecords
from statehouse.settings import NodeSettings

TASK = TaskId(0, 0)
OLD = StoreSpec("old", "app-old-changelog", 1, 0)
LATER = StoreSpec("later", "app-later-changelog", 1, 0)
FIRST = Assignment(
    1,
    stores=MappingProxyType({"old": OLD}),
    sub_topologies=MappingProxyType({0: SubTopology(0, "query", 1)}),
    tasks=MappingProxyType({TASK: TaskAssignment("n1")}),
)
SECOND = replace(FIRST, epoch=2, stores=MappingProxyType({"old": OLD, "later": LATER}))
THIRD = replace(SECOND, epoch=3, tasks=MappingProxyType({TASK: TaskAssignment("n2")}))


class Log:
    """Stands for the reader of a control topic."""

    def __init__(
        self,
        on_record: Callable[[bytes | None, bytes | None, int], None],
        on_contact: Callable[[], None] = lambda: None,
    ) -> None:
        self.on_record, self.on_contact = on_record, on_contact
        self._last = Assignment()

    def publish(self, following: Assignment) -> None:
        """Deliver the records of an assignment."""
        self._last, records = encode(self._last, following)
        for key, value in records:
            self.on_record(key, value, 0)


class Node:
    """The control topics of a node, and what they told it."""

    def __init__(self, logs: dict[str, Log], tmp_path: Path) -> None:
        self.assigned: list[Assignment] = []
        self.views: list[FleetView] = []
        self.defects: list[Exception] = []
        self.ownership = NodeOwnership("n1", "incarnation", 1, session_timeout_s=10.0)
        self.topics = ControlTopics(
            NodeSettings(application_id="app", state_dir=tmp_path),
            "test",
            self.ownership,
            UnreadableRecords(),
            on_view=self.views.append,
            on_assignment=self.assigned.append,
            on_superseded=lambda _newer: None,
            on_defect=self.defects.append,
            on_thread_defect=self.defects.append,
            on_report=lambda _store: None,
        )
        self.assignments = logs["app-statehouse-assignment"]


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Log]:
    made: dict[str, Log] = {}

    def reader(_bootstrap: str, topic: str, on_record: Any, *, on_contact: Any = lambda: None, **_more: object) -> Log:
        made[topic] = Log(on_record, on_contact)
        return made[topic]

    monkeypatch.setattr(control_topics, "ControlLogReader", reader)
    return made


async def test_of_a_log_that_was_not_compacted_only_the_newest_assignment_counts(
    logs: dict[str, Log], tmp_path: Path
) -> None:
    """The older one doesn't know of a store that the task has now: acting on it would remove the store's database."""
    node = Node(logs, tmp_path)
    node.assignments.publish(FIRST)
    node.assignments.publish(SECOND)
    await asyncio.sleep(0)
    assert not node.assigned
    assert not node.views
    assert node.ownership.epoch == 0, "heartbeats don't name what the node doesn't act on"
    for _ in range(3):
        node.assignments.on_contact()
    await asyncio.sleep(0)
    assert [each.epoch for each in node.assigned] == [2]
    assert set(node.views[-1].stores) == {"old", "later"}
    node.assignments.publish(THIRD)
    await asyncio.sleep(0)
    assert [each.epoch for each in node.assigned] == [2, 3]
    assert not node.defects


async def test_an_empty_log_is_known_too(logs: dict[str, Log], tmp_path: Path) -> None:
    node = Node(logs, tmp_path)
    node.assignments.on_contact()
    await asyncio.sleep(0)
    assert node.ownership.assignment is None
    assert not node.assigned
    node.assignments.publish(FIRST)
    await asyncio.sleep(0)
    assert [each.epoch for each in node.assigned] == [1]
