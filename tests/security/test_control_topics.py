"""Who can write to a control topic, or deletes one, costs the fleet no data, and other stores no lookup."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient

from processor.control_topics import create_control_topics
from statehouse.client import Client
from statehouse.control.v1 import assignment_pb2, commits_pb2, members_pb2
from statehouse.kafka import clients
from statehouse.local.kafka import EmbeddedKafka
from statehouse.partitioning import partition_for
from statehouse.topology import assignment_topic, changelog_topic, commits_topic, members_topic
from statehouse.v1 import fleet_service_pb2
from tests.support.fleet import ServerProcess, Servers
from tests.support.kafka import create_topic, produce, produce_placed, read_all
from tests.support.lookups import LookupLoad
from tests.support.poison import poisoned
from tests.support.polling import poll_until

PARTITIONS: Final = 4
SESSION_TIMEOUT_MS: Final = 4_000
HEARTBEAT_MS: Final = 200
TOUCHED, UNTOUCHED = "touched", "untouched"
MODEL: Final[Mapping[str, Mapping[str, str]]] = {
    store: {f"{store}-{number}": f"value {number}" for number in range(200)} for store in (TOUCHED, UNTOUCHED)
}
_A_SECOND: Final = 300
_AT_ONCE: Final = 25


class House(Servers):
    """Two nodes, a router and a controller, which serve two stores of two queries."""

    def __init__(self, bootstrap: str, application_id: str, directory: Path) -> None:
        super().__init__(
            bootstrap,
            application_id,
            directory,
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
        )
        topology = directory / "topology.toml"
        lines = [f'application_id = "{application_id}"']
        for store, entries in MODEL.items():
            topic = changelog_topic(application_id, store)
            create_topic(bootstrap, topic, PARTITIONS, {"cleanup.policy": "compact"})
            placed = ((partition_for(key.encode(), PARTITIONS), key, value) for key, value in entries.items())
            produce_placed(bootstrap, topic, ((at, key.encode(), value.encode(), 0) for at, key, value in placed))
            lines += ["[[stores]]", f'name = "{store}"', 'value_serde = "string"']
        topology.write_text("\n".join(lines))
        self.state_dir = directory / "state"
        timing = {"heartbeat-interval-ms": HEARTBEAT_MS, "session-timeout-ms": SESSION_TIMEOUT_MS}
        options = {"static": topology, "bootstrap": bootstrap, "initial-rebalance-delay-ms": 500, **timing}
        self.controller = ServerProcess("controller", "processor.cli", options, 0, directory)
        self.processes.append(self.controller.start())
        self.nodes = [self.node(name, state_dir=self.state_dir / name) for name in ("n1", "n2")]
        self.way_in = self.router()
        poll_until(self.is_complete, 60, "the stores, with an active and a standby each")

    def epoch(self) -> int:
        """Return the router's epoch."""
        return self.way_in.fleet.GetFleet(fleet_service_pb2.GetFleetRequest(), timeout=5.0).epoch

    def is_complete(self) -> bool:
        """Whether each task runs on both nodes at the router's epoch, and is at its log's end."""
        if self.way_in.log.count("router is ready") == 0:
            return False
        epoch = self.epoch()
        for node in self.nodes:
            known = node.node()
            stores = [store for task in known.tasks for store in task.stores]
            if known.epoch != epoch or len(stores) != len(MODEL) * PARTITIONS:
                return False
            if not all(store.HasField("lag") and store.lag == 0 for store in stores):
                return False
        return True

    def found(self, store: str) -> dict[str, str]:
        """Return all entries of a store, through the router."""
        with Client(self.way_in.target) as client:
            return {str(entry.key): str(entry.value) for entry in client.scan(store)}

    def load(self, store: str) -> LookupLoad:
        return LookupLoad(self.way_in.target, store, list(MODEL[store]), _A_SECOND)


@pytest.fixture(scope="module")
def house(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Each test leaves it as it was, and says so if it doesn't."""
    directory = tmp_path_factory.mktemp("house")
    with House(kafka.bootstrap, f"house-{os.getpid()}", directory) as house:
        yield house


def assert_all_answered(load: LookupLoad) -> None:
    assert len(load.history) > _A_SECOND
    failed = [lookup.failure for lookup in load.history if lookup.failure is not None]
    assert not failed, f"{len(failed)} of {len(load.history)}: {failed[:3]}"
    wrong = [
        lookup
        for lookup in load.history
        if lookup.response is None or lookup.response.value.text != f"value {lookup.key.rsplit('-', 1)[1]}"
    ]
    assert not wrong, wrong[:3]


def poisons(house: House) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return by topic (key, value): each field of each record that is there, at its extremes."""
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    for topic, kind in ((assignment_topic, assignment_pb2.AssignmentRecord), (members_topic, members_pb2.Member)):
        name = topic(house.application_id)
        newest = {key: value for key, value in read_all(house.bootstrap, name) if key and value}
        found[name] = [
            (key, record.SerializeToString())
            for key, value in newest.items()
            if key != b"store/untouched"
            for _, record in poisoned(kind.FromString(value))
        ]
    commit = commits_pb2.Commit(store=TOUCHED, query_id="q", batch_id=1, query=TOUCHED, input_backlog=1)
    found[commits_topic(house.application_id)] = [
        (TOUCHED.encode(), record.SerializeToString()) for _, record in poisoned(commit)
    ]
    assignments, members = assignment_topic(house.application_id), members_topic(house.application_id)
    # The last ones of the topic stay as they are written here, unless somebody mends it.
    found[assignments] += [(key, b"\xff") for key in (b"store/touched", b"task/0", b"epoch")]
    found[members] += [(b"n1", b"\xff"), (b"nobody", b"\xff")]
    return found


def test_no_record_fails_a_lookup_of_another_store_or_changes_an_entry(house: House) -> None:
    before = set(house.state_dir.glob("*/*/*"))
    outside = set(house.directory.iterdir())
    written = poisons(house)
    assert sum(map(len, written.values())) > 500
    with house.load(UNTOUCHED) as load:
        for topic, records in written.items():
            for begin in range(0, len(records), _AT_ONCE):
                produce(house.bootstrap, topic, records[begin : begin + _AT_ONCE])
        epoch = house.epoch()
        sent = len(load.history)
        poll_until(lambda: len(load.history) > sent + _A_SECOND, 30, "a second of lookups")
    assert_all_answered(load)
    poll_until(house.is_complete, 60, "everything to be as it was")
    assert house.epoch() >= epoch
    for store, entries in MODEL.items():
        assert house.found(store) == entries
    assert all(process.is_running for process in house.processes)
    assert before <= set(house.state_dir.glob("*/*/*"))
    assert set(house.directory.iterdir()) == outside
    assert "control record skipped" in house.nodes[0].log
    late = house.router("late")
    poll_until(lambda: "router is ready" in late.log, 30, "a router that starts now")


@pytest.mark.parametrize("which", [assignment_topic, members_topic, commits_topic])
def test_a_control_topic_that_is_made_anew_leads_to_a_new_epoch(
    house: House, which: Callable[[str], str], kafka: EmbeddedKafka
) -> None:
    topic, epoch = which(house.application_id), house.epoch()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    with house.load(UNTOUCHED) as load:
        admin.delete_topics([topic])[topic].result(30)
        poll_until(lambda: topic not in admin.list_topics(timeout=10).topics, 30, "the deletion")
        create_control_topics(clients.admin(kafka.bootstrap, "test"), house.application_id, 1)
        made_at = time.monotonic()
        if which is assignment_topic:
            poll_until(lambda: house.epoch() > epoch, 4 * SESSION_TIMEOUT_MS / 1000, "a new epoch")
        else:
            sent = len(load.history)
            poll_until(lambda: len(load.history) > sent + 2 * _A_SECOND, 30, "two seconds of lookups")
        poll_until(house.is_complete, 30, "everything to run")
        took_s = time.monotonic() - made_at
    assert_all_answered(load)
    for store, entries in MODEL.items():
        assert house.found(store) == entries
    assert took_s < 2 * SESSION_TIMEOUT_MS / 1000
    assert all(process.is_running for process in house.processes)
