"""A broker that each process can be cut off from, and fleets that a file's tests share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.local.ports import free_port
from tests.integration.routing.routed import Links
from tests.support.fault_proxy import FaultProxy
from tests.support.fleet import Fleet
from tests.support.kafka_doors import Door, KafkaWithDoors


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaWithDoors]:
    """One broker for all routing tests, with a door for each process that is to be cut off."""
    doors = {name: Door(advertised_port=free_port()) for name in ("router", "a", "b", "c")}
    with KafkaWithDoors(tmp_path_factory.mktemp("broker"), doors=doors) as broker:
        yield broker


@pytest.fixture(scope="module")
def links(kafka: KafkaWithDoors) -> Iterator[Links]:
    """The processes' ways to Kafka, by their names."""
    with ExitStack() as proxies:
        yield Links(
            {
                name: proxies.enter_context(FaultProxy(door.port, port=door.advertised_port))
                for name, door in kafka.doors.items()
            }
        )


@pytest.fixture(scope="module")
def new_fleet(kafka: KafkaWithDoors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Fleet]]:
    """Make fleets that end with the file's tests."""
    with ExitStack() as fleets:

        def make(**options: int) -> Fleet:
            application_id = f"routing-{uuid.uuid4().hex[:8]}"
            directory = tmp_path_factory.mktemp(application_id)
            return fleets.enter_context(Fleet(kafka.bootstrap, application_id, directory, **options))

        yield make


@pytest.fixture(scope="module")
def fleet(new_fleet: Callable[..., Fleet]) -> Fleet:
    """A fleet of one node, with one entry."""
    fleet = new_fleet(partitions=1)
    fleet.put({"a": "1"})
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"))
    fleet.wait_running([node])
    return fleet
