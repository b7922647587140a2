"""Stores go from node to node encrypted, and to nodes only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from query_service.states.faults import Fault
from statehouse.contract.assignment import TaskAssignment
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import node_service_pb2
from tests.support.fleet import Fleet, ServerProcess
from tests.support.lying_peer import wait_told
from tests.support.secured import RULES, Keys

ENTRIES = {f"key-{number}": str(number) for number in range(1_000)}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, keys: Keys) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        fleet.credentials = keys.credentials("all")
        yield fleet


def joined(fleet: Fleet, keys: Keys) -> node_service_pb2.StoreReplica:
    """Return what a node says of its store that has begun with nothing beside one that has it."""

    def node(name: str) -> ServerProcess:
        return fleet.node(name, engine="go", assumed_log_records_per_s=10, **keys.options("node"))

    fleet.put(ENTRIES)
    first = node("n1")
    fleet.assign(TaskAssignment("n1"))
    fleet.wait_running([first])
    wait_told(fleet)
    second = node("n2")
    fleet.reassign(0, standbys=("n2",))
    fleet.wait_running([second])
    assert all(second.get(key).value.text == value for key, value in ENTRIES.items())
    ((store,),) = (task.stores for task in second.node().tasks)
    return store


@pytest.mark.feature("store-files-peer")
def test_a_node_takes_files_of_another_by_its_certificate(fleet: Fleet, keys: Keys) -> None:
    assert joined(fleet, keys).restored_by == "peer n1"


def test_whose_role_is_another_gets_no_files(fleet: Fleet, keys: Keys) -> None:
    keys.write_rules({**RULES, "node": {"roles": ["router", "operator", "reader"]}})
    store = joined(fleet, keys)
    assert store.restored_by == "log"
    (why,) = store.passed_over
    assert why.startswith(f"n1: {Fault.PEER_FAILED}: PERMISSION_DENIED: ")
