"""The state of a task that a node lost: reported, of use if the task comes back in time, and then removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from query_service.disk.directory import TaskDirectory
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.membership import Member, decode_member
from statehouse.contract.topology import Role, TaskId, members_topic
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from tests.support.fleet import STORE, Fleet
from tests.support.kafka import read_all
from tests.support.metrics import scrape
from tests.support.polling import poll_until

TASK = TaskId(0, 0)


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        yield fleet


def heartbeat(fleet: Fleet) -> Member:
    """Return the newest of node n1; its first one may come after its first task runs."""
    newest = poll_until(lambda: heartbeats(fleet), 20, "a heartbeat")[-1]
    now_ms = int(time.time() * 1000)
    return decode_member(b"n1", newest, now_ms, now_ms)


def heartbeats(fleet: Fleet) -> list[bytes]:
    records = read_all(fleet.bootstrap, members_topic(fleet.application_id))
    return [value for key, value in records if key == b"n1" and value is not None]


def dormant_position(fleet: Fleet) -> int | None:
    report = heartbeat(fleet).replicas.get(TASK)
    return report.stores[STORE].position if report is not None and report.role is Role.DORMANT else None


@pytest.mark.feature("state-task-moved")
@pytest.mark.feature("getnode-drain-grpc")
def test_lost_task_s_state_is_reported_then_removed(fleet: Fleet) -> None:
    port = free_port()
    fleet.put({"a": "1", "b": "2"})
    node = fleet.node("n1", state_cleanup_delay_ms=4_000, metrics_port=port)
    folder = fleet.directory / "n1" / fleet.application_id / "0_0"
    fleet.assign(TaskAssignment("n1"))
    fleet.wait_running([node])

    fleet.assign(TaskAssignment("other"))
    poll_until(lambda: dormant_position(fleet) == 2, 20, "the position to be reported")
    fleet.put({"c": "3"})
    fleet.assign(TaskAssignment("n1"))
    fleet.wait_running([node])
    (store,) = node.node().tasks[0].stores
    assert (store.restored_from, store.restored_records) == (2, 1), "only the tail was read"
    assert folder.is_dir()

    fleet.assign(TaskAssignment("other"))
    poll_until(lambda: not folder.exists(), 30, "the folder to be removed")
    poll_until(lambda: TASK not in heartbeat(fleet).replicas, 20, "the report to end")
    served = scrape(port)
    assert served.value("statehouse_node_cleaned_up_folders_total") == 1
    assert served.value("statehouse_node_dormant_tasks") == 0

    fleet.assign(TaskAssignment("n1"))
    fleet.wait_running([node])
    assert node.node().tasks[0].stores[0].restored_records == 3
    assert node.get("c").value.text == "3"


def test_leftovers_stay_while_the_assignment_is_unknown_or_another_process_has_them(fleet: Fleet) -> None:
    folders = fleet.directory / "n1" / fleet.application_id
    leftover, taken = TaskDirectory(folders / "0_0"), TaskDirectory(folders / "7_0")
    for folder in (leftover, taken):
        folder.acquire()
    leftover.release()
    node = fleet.node("n1", state_cleanup_delay_ms=0)
    poll_until(lambda: node.node().state == "CREATED", 20, "the node")
    poll_until(lambda: heartbeat_number(fleet) >= 10, 20, "the node to have looked several times")
    assert leftover.path.is_dir()
    fleet.assign(TaskAssignment("other"))
    poll_until(lambda: not leftover.path.exists(), 20, "the leftover to be removed")
    assert taken.path.is_dir()
    taken.release()
    poll_until(lambda: not taken.path.exists(), 20, "the other one to be removed")


def heartbeat_number(fleet: Fleet) -> int:
    try:
        return heartbeat(fleet).heartbeat
    except IndexError:
        return 0
