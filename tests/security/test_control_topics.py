"""A caller that can write to a control topic, or deletes one, costs the fleet no data, and other stores no lookup."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from processor.ownership.topics.control_topics import control_topics
from statehouse.client import Client
from statehouse.contract.assignment import MANIFEST_KEY
from statehouse.contract.epochs import EPOCH_MAX, is_newer
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import assignment_topic, changelog_topic, commits_topic, members_topic
from statehouse.control.v1 import assignment_pb2, commits_pb2, members_pb2
from statehouse.kafka import clients
from statehouse.kafka.topics import CONTROL_TOPIC_CONFIG, ensure_topics
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import fleet_service_pb2
from tests.support.fleet import ServerProcess, Servers
from tests.support.kafka import alter_topic, create_topic, produce, produce_placed, read_all
from tests.support.lookups import LookupLoad
from tests.support.poison import poisoned
from tests.support.polling import poll_until

PARTITIONS: Final = 4
SESSION_TIMEOUT_MS: Final = 10_000
"""A busy machine may keep a node from its heartbeats for some seconds."""
HEARTBEAT_MS: Final = 200
TOUCHED, UNTOUCHED = "touched", "untouched"
EVERYWHERE = "everywhere"
"""A global store: the folders of its databases have its name."""
MODEL: Final[Mapping[str, Mapping[str, str]]] = {
    store: {f"{store}-{number}": f"value {number}" for number in range(200)}
    for store in (TOUCHED, UNTOUCHED, EVERYWHERE)
}
ANY_TIMESTAMP: Final = {"message.timestamp.after.max.ms": str(2**63 - 1)}
"""As Kafka has it before version 4; since then a record is at most an hour ahead of the broker's clock by default."""
_AT_ONCE: Final = 25


CONTROL_TOPICS: Final = (assignment_topic, members_topic, commits_topic)


COMMIT: Final = commits_pb2.Commit(store=TOUCHED, query_id="q", batch_id=1, query=TOUCHED, input_backlog=1)


class Written(NamedTuple):
    """A record that somebody writes. `value`: None is a tombstone. `at_ms`: its timestamp, 0: now."""

    key: bytes
    value: bytes | None = None
    at_ms: int = 0


class House(Servers):
    """Two nodes, a router and a controller, which serve two stores of two queries, and a global store.

    `a_second`: how many lookups `load` makes.
    """

    def __init__(self, bootstrap: str, application_id: str, directory: Path, a_second: int) -> None:
        self.a_second = a_second
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
            if store == EVERYWHERE:
                lines += [f'changelog_topic = "{topic}"', "global = true"]
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

    def folders(self) -> dict[Path, int]:
        """Return every folder of a task and of a store's database, with its inode: one that is made anew has another.

        What RocksDB itself keeps in a database's folder comes and goes.
        """
        found = (*self.state_dir.glob("*/*/*/*/"), *self.state_dir.glob(f"*/*/global/{EVERYWHERE}/*/"))
        return {path: path.stat().st_ino for folder in found for path in (folder, folder.parent)}

    def load(self, store: str) -> LookupLoad:
        return LookupLoad(self.way_in.target, store, list(MODEL[store]), self.a_second)


@pytest.fixture(scope="module", params=[100, pytest.param(300, marks=pytest.mark.long)])
def house(
    request: pytest.FixtureRequest, kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """Each test leaves it as it was, and says so if it doesn't."""
    directory = tmp_path_factory.mktemp("house")
    with House(kafka.bootstrap, f"house-{request.param}-{os.getpid()}", directory, request.param) as house:
        yield house


def assert_all_answered(load: LookupLoad, at_least: int) -> None:
    assert len(load.history) > at_least
    failed = [lookup.failure for lookup in load.history if lookup.failure is not None]
    assert not failed, f"{len(failed)} of {len(load.history)}: {[str(each) for each in failed[:3]]}"
    wrong = [
        lookup
        for lookup in load.history
        if lookup.response is None or lookup.response.value.text != f"value {lookup.key.rsplit('-', 1)[1]}"
    ]
    assert not wrong, wrong[:3]


def newest(house: House, topic: str) -> dict[bytes, bytes]:
    return {key: value for key, value in read_all(house.bootstrap, topic) if key and value}


def poisons(house: House) -> dict[str, list[Written]]:
    """Return by topic: each field of each record that is there, at its extremes, with timestamps of all kinds.

    Not those of members that are made up: such a one could say that it holds a store, and would be believed.
    """
    found: dict[str, list[Written]] = {}
    real = {node.name.encode() for node in house.nodes}
    for topic, kind in ((assignment_topic, assignment_pb2.AssignmentRecord), (members_topic, members_pb2.Member)):
        name = topic(house.application_id)
        found[name] = [
            Written(key, record.SerializeToString())
            for key, value in newest(house, name).items()
            if key != b"store/untouched" and (topic is not members_topic or key in real)
            for _, record in poisoned(kind.FromString(value))
        ]
    found[commits_topic(house.application_id)] = [
        Written(TOUCHED.encode(), record.SerializeToString()) for _, record in poisoned(COMMIT)
    ]
    assignments, members = assignment_topic(house.application_id), members_topic(house.application_id)
    # The last ones of the topic stay as they are written here, unless somebody mends it.
    found[assignments] += [Written(key, b"\xff") for key in (b"store/touched", b"task/0", b"epoch")]
    found[members] += [Written(b"n1", b"\xff"), Written(b"nobody", b"\xff")]
    ahead_ms = int(time.time() * 1_000) + 20 * 24 * 3_600_000
    newer = members_pb2.Member(
        instance_id="n1", incarnation="ff", host="localhost", port=1, state="RUNNING", started_at_ms=ahead_ms
    )
    found[members].append(Written(b"n1", newer.SerializeToString()))  # if it were true, n1 would stop
    times = (0, 1, ahead_ms, 2**63 - 1)
    return {
        topic: [each._replace(at_ms=at) for each, at in zip(records, cycle(times), strict=False)]
        for topic, records in found.items()
    }


def tombstones(house: House) -> dict[str, list[Written]]:
    """Return by topic tombstones of every key that is there, and of keys that aren't."""
    absent = (b"store/absent", b"task/7", b"nobody", b"../..", b"\xff", b"")
    return {
        topic: [Written(key) for key in (*newest(house, topic), *absent)]
        for topic in (name(house.application_id) for name in CONTROL_TOPICS)
    }


def of_other_times(house: House) -> dict[str, list[Written]]:
    """Return by topic every record that is there, written again as of 1970, of yesterday and of later than now.

    Brokers refuse what is dated an hour ahead.
    """
    now_ms = int(time.time() * 1000)
    return {
        topic: [
            Written(key, value, at_ms)
            for at_ms in (1, now_ms - 86_400_000, now_ms + 3_000_000)
            for key, value in newest(house, topic).items()
        ]
        for topic in (name(house.application_id) for name in CONTROL_TOPICS)
    }


def leading_out(house: House) -> dict[str, list[Written]]:
    """Return the records of whole epochs that have global stores whose folders would lie elsewhere.

    A node that took them would remove from that place all that isn't such a store's.
    """
    topic = assignment_topic(house.application_id)
    records: list[Written] = []
    for number, name in enumerate(("..", "../..", f"../{house.application_id}"), 1):
        known = newest(house, topic)
        record = assignment_pb2.AssignmentRecord.FromString(known[f"store/{EVERYWHERE}".encode()])
        manifest = assignment_pb2.AssignmentRecord.FromString(known[MANIFEST_KEY.encode()])
        record.store.name, key = name, f"store/{name}"
        manifest.epoch += number
        record.epoch = manifest.manifest.epoch = manifest.manifest.keys[key] = manifest.epoch
        records += [
            Written(key.encode(), record.SerializeToString()),
            Written(MANIFEST_KEY.encode(), manifest.SerializeToString()),
        ]
    return {topic: records}


def extreme_fleets(house: House) -> dict[str, list[Written]]:
    """Return whole epochs with values at their limits, and members with addresses that nobody can call.

    All records of the assignment but one are as they are there, so that each epoch can be taken.
    """
    topic, members = assignment_topic(house.application_id), members_topic(house.application_id)
    known = newest(house, topic)
    changes: list[tuple[str, Callable[[assignment_pb2.AssignmentRecord], object]]] = [
        (f"store/{TOUCHED}", lambda record: record.store.MergeFrom(assignment_pb2.StoreSpec(retention_ms=2**63 - 1))),
        (f"store/{TOUCHED}", lambda record: record.store.MergeFrom(assignment_pb2.StoreSpec(sub_topology=1_000_000))),
        (f"store/{TOUCHED}", lambda record: record.store.MergeFrom(assignment_pb2.StoreSpec(key_serde="é" * 127))),
        (
            "store/0-thief",
            lambda record: record.store.MergeFrom(
                assignment_pb2.StoreSpec(
                    name="0-thief", changelog_topic=changelog_topic(house.application_id, UNTOUCHED)
                )
            ),
        ),
    ]
    records: list[Written] = []
    for epoch in (0, 2**40, EPOCH_MAX - 1, EPOCH_MAX):
        for key, change in changes:
            record = assignment_pb2.AssignmentRecord.FromString(known.get(key.encode(), known[b"store/touched"]))
            manifest = assignment_pb2.AssignmentRecord.FromString(known[MANIFEST_KEY.encode()])
            change(record)
            number = epoch or manifest.epoch + 1 + len(records)
            record.epoch = manifest.epoch = manifest.manifest.epoch = manifest.manifest.keys[key] = number
            records += [
                Written(key.encode(), record.SerializeToString()),
                Written(MANIFEST_KEY.encode(), manifest.SerializeToString()),
            ]
    hosts = ("::1%" + "a" * 250, "::1%" + "é" * 120, ".".join(["x" * 61] * 4), "unix", "fe80::1%" + "z" * 32, "é" * 127)
    for number, host in enumerate(hosts):
        for name in (f"m{number}", "é" * 120 + str(number)):
            member = members_pb2.Member(instance_id=name, incarnation="0f", host=host, port=65_535, state="RUNNING")
            member.global_replicas.add(store=EVERYWHERE, state="running")
            records.append(Written(name.encode(), member.SerializeToString()))
    return {
        topic: [record for record in records if record.key.startswith((b"store/", b"epoch"))],
        members: [record for record in records if not record.key.startswith((b"store/", b"epoch"))],
    }


@pytest.mark.feature("records-control-topics")
@pytest.mark.parametrize(
    ("written", "at_least", "said"),
    [
        (extreme_fleets, 40, "control record skipped"),
        (poisons, 500, "control record skipped"),
        (tombstones, 20, ""),
        (of_other_times, 20, ""),
        (leading_out, 6, "control record skipped"),
    ],
)
def test_no_record_fails_a_lookup_of_another_store_or_changes_an_entry(
    house: House, written: Callable[[House], dict[str, list[Written]]], at_least: int, said: str
) -> None:
    before, outside = house.folders(), set(house.directory.iterdir())
    assert len(before) > 2 * len(MODEL) * PARTITIONS
    records = written(house)
    assert sum(map(len, records.values())) >= at_least
    with house.load(UNTOUCHED) as load:
        for topic, of_topic in records.items():
            alter_topic(house.bootstrap, topic, ANY_TIMESTAMP)
            for begin in range(0, len(of_topic), _AT_ONCE):
                placed = [(0, each.key, each.value, each.at_ms) for each in of_topic[begin : begin + _AT_ONCE]]
                produce_placed(house.bootstrap, topic, placed)
        epoch = house.epoch()
        load.await_more(house.a_second)
    assert_all_answered(load, house.a_second)
    poll_until(house.is_complete, 60, "everything to be as it was")
    assert not is_newer(epoch, house.epoch())
    for store, entries in MODEL.items():
        assert house.found(store) == entries
    assert all(process.is_running for process in house.processes)
    after = house.folders()
    assert before.keys() <= after.keys()
    untouched = {path for path in before if UNTOUCHED in path.parts}
    assert all(after[path] == before[path] for path in untouched), "the very same folders"
    assert set(house.directory.iterdir()) == outside
    assert said in house.nodes[0].log
    late = house.router(f"late-{written.__name__}")
    poll_until(lambda: "router is ready" in late.log, 30, "a router that starts now")
    late.stop()
    house.processes.remove(late)


def make_anew(house: House, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": house.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    poll_until(lambda: topic not in admin.list_topics(timeout=10).topics, 30, "the deletion")
    ensure_topics(clients.admin(house.bootstrap, "test"), control_topics(house.application_id, 1))


def truncate(house: House, topic: str) -> None:
    """Delete all records up to the end; brokers refuse that for a topic that is only compacted."""
    alter_topic(house.bootstrap, topic, {"cleanup.policy": "compact,delete"})
    admin = AdminClient({"bootstrap.servers": house.bootstrap})

    def is_truncated() -> bool:
        (deleted,) = admin.delete_records([TopicPartition(topic, 0, OFFSET_END)]).values()
        try:
            return bool(deleted.result(30).low_watermark > 0)
        except KafkaException as error:  # a broker acts on a changed setting a moment after it has taken it
            if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False

    poll_until(is_truncated, 30, "the broker to delete all records")
    alter_topic(house.bootstrap, topic, CONTROL_TOPIC_CONFIG)


@pytest.mark.feature("control-topic-deleted")
@pytest.mark.parametrize("spoil", [make_anew, truncate])
@pytest.mark.parametrize("which", CONTROL_TOPICS)
def test_a_control_topic_that_is_made_anew_or_truncated_leads_to_a_new_epoch(
    house: House, which: Callable[[str], str], spoil: Callable[[House, str], None]
) -> None:
    topic, epoch = which(house.application_id), house.epoch()
    commits = [(TOUCHED.encode(), COMMIT.SerializeToString())]
    produce(house.bootstrap, commits_topic(house.application_id), commits)
    with house.load(UNTOUCHED) as load:
        spoil(house, topic)
        spoilt_at = time.monotonic()
        if which is assignment_topic:
            poll_until(lambda: house.epoch() > epoch, 4 * SESSION_TIMEOUT_MS / 1000, "a new epoch")
        else:
            load.await_more(2 * house.a_second)
        poll_until(house.is_complete, 30, "everything to run")
        took_s = time.monotonic() - spoilt_at
        load.await_more(house.a_second)
    assert_all_answered(load, house.a_second)
    for store, entries in MODEL.items():
        assert house.found(store) == entries
    assert took_s < 2 * SESSION_TIMEOUT_MS / 1000
    assert all(process.is_running for process in house.processes)
