"""Global stores: every node holds all of one, whoever placed its keys and whatever the assignment says."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from statehouse.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.membership import decode_member
from statehouse.partitioning import partition_for
from statehouse.topology import StoreSpec, members_topic
from statehouse.v1 import node_service_pb2, query_service_pb2, types_pb2
from tests.support.fleet import Fleet, ServerProcess
from tests.support.kafka import create_topic, produce, read_all
from tests.support.polling import poll_until

PROFILES = "profiles"
PARTITIONS = 3
TASK = f"global/{PROFILES}"


class GlobalFleet(Fleet):
    """A fleet with a global store of three partitions beside its ordinary one."""

    def __init__(self, bootstrap: str, application_id: str, directory: Path, count: int = PARTITIONS) -> None:
        self.topic, self.count = f"{application_id}-players", count
        self.profiles = StoreSpec(PROFILES, self.topic, count, 0, value_serde="string", is_global=True)
        self.create_source(bootstrap)
        super().__init__(bootstrap, application_id, directory, beside=[self.profiles])

    def create_source(self, bootstrap: str) -> None:
        create_topic(bootstrap, self.topic, self.count, {"cleanup.policy": "compact"})

    def write(self, entries: dict[str, str | None], shift: int = 0) -> None:
        """Write to the source topic; `shift`: by a partitioner that is that many partitions off."""
        for partition in range(self.count):
            records = [
                (key.encode(), None if value is None else value.encode())
                for key, value in entries.items()
                if (partition_for(key.encode(), self.count) + shift) % self.count == partition
            ]
            produce(self.bootstrap, self.topic, records, partition)

    def started(self, *names: str) -> list[ServerProcess]:
        """Start nodes, of which the first holds the tasks, and wait until they run."""
        nodes = [self.node(name) for name in names]
        self.assign(TaskAssignment(names[0]), TaskAssignment(names[0]))
        self.wait_running(nodes)
        return nodes


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[GlobalFleet]:
    with GlobalFleet(kafka.bootstrap, unique_name("app"), tmp_path) as fleet:
        yield fleet


def profile(process: ServerProcess, key: str, **freshness: object) -> query_service_pb2.GetResponse:
    return process.get(key, store=PROFILES, **freshness)


def value_of(process: ServerProcess, key: str) -> str | None:
    """Return a key's value, None while there is no answer or no such key."""
    try:
        answer = profile(process, key)
    except LookupFailure:
        return None
    return answer.value.text if answer.found else None


def replica_of(node: ServerProcess) -> node_service_pb2.TaskReplica:
    return next(task for task in node.node().tasks if task.task == TASK)


def test_every_node_holds_all_of_it(fleet: GlobalFleet) -> None:
    keys = [f"k{nth}" for nth in range(12)]
    fleet.write(dict.fromkeys(keys, "1") | {"gone": "1"})
    fleet.write({"gone": None})
    with_tasks, without = nodes = fleet.started("n1", "n2")
    for node in nodes:
        for key in keys:
            answer = profile(node, key)
            assert (answer.found, answer.value.text) == (True, "1")
            assert answer.replica.role == types_pb2.REPLICA_ROLE_GLOBAL
            assert answer.replica.partition == partition_for(key.encode(), PARTITIONS)
            assert answer.replica.host.instance_id == node.name
        assert not profile(node, "gone").found
        assert node.node().state == "RUNNING"
    assert [task.task for task in with_tasks.node().tasks] == ["0_0", "0_1", TASK]
    assert [task.task for task in without.node().tasks] == [TASK]

    fleet.write({keys[0]: "2", keys[1]: None})
    for node in nodes:
        poll_until(lambda node=node: value_of(node, keys[0]) == "2", 10, "the update")
        poll_until(lambda node=node: not profile(node, keys[1]).found, 10, "the tombstone")
        poll_until(lambda node=node: profile(node, keys[0]).replica.lag == 0, 10, "lag 0")
        # Every copy is as good as an active.
        assert profile(node, keys[0], active_only=True, max_lag=0, max_staleness_ms=60_000).found

    # One more node needs no assignment.
    epoch = fleet.assignment.epoch
    third = fleet.node("n3")
    fleet.wait_running([third])
    assert value_of(third, keys[0]) == "2"
    assert third.node().epoch == epoch


def test_says_per_partition_how_far_it_is(fleet: GlobalFleet) -> None:
    fleet.write({f"k{nth}": "1" for nth in range(12)})
    (node,) = fleet.started("n1")
    poll_until(lambda: all(store.lag == 0 for store in replica_of(node).stores), 10, "lag 0")
    replica = replica_of(node)
    assert (replica.role, replica.state) == (types_pb2.REPLICA_ROLE_GLOBAL, "running")
    assert [(store.store, store.partition) for store in replica.stores] == [(PROFILES, n) for n in range(PARTITIONS)]
    assert sum(store.position for store in replica.stores) == 12
    node.kill()
    *_, (_, value) = read_all(fleet.bootstrap, members_topic(fleet.application_id))
    assert value is not None
    copy = decode_member(value).global_replicas[PROFILES]
    assert copy.is_restored
    assert sum(at.position or 0 for at in copy.positions.values()) == 12


def test_a_key_is_found_wherever_it_was_placed(fleet: GlobalFleet) -> None:
    (node,) = fleet.started("n1")
    for shift in range(PARTITIONS):
        key = f"off-by-{shift}"
        fleet.write({key: "1"}, shift)
        poll_until(lambda key=key: value_of(node, key) == "1", 10, "the key")
        stamp = profile(node, key).replica
        assert stamp.partition == (partition_for(key.encode(), PARTITIONS) + shift) % PARTITIONS
        assert stamp.position > 0
        fleet.write({key: None}, shift)
        poll_until(lambda key=key: not profile(node, key).found, 10, "the tombstone")
        assert profile(node, key).replica.partition == partition_for(key.encode(), PARTITIONS)

    batch = query_service_pb2.BatchGetRequest()
    fleet.write({"a": "1", "b": "2"}, 1)
    for key in ("a", "b", "never"):
        batch.requests.add(store=PROFILES, key=types_pb2.Key(text=key))
    poll_until(lambda: value_of(node, "b") == "2", 10, "the keys")
    results = node.call(node.query.BatchGet, batch).results
    assert [result.response.value.text for result in results] == ["1", "2", ""]


def test_a_restart_reads_on_from_the_checkpoint(fleet: GlobalFleet) -> None:
    fleet.write({f"k{nth}": "old" for nth in range(30)})
    (node,) = fleet.started("n1")
    assert sum(store.restored_records for store in replica_of(node).stores) == 30
    folder = fleet.directory / "n1" / fleet.application_id / "global" / PROFILES
    assert {path.name for path in folder.iterdir()} == {".lock", ".checkpoint", "0", "1", "2"}
    node.kill()
    fleet.write({"k0": "new"})
    node.start()
    fleet.wait_running([node])
    again = replica_of(node).stores
    assert sum(store.restored_records for store in again) == 1
    assert sum(store.restored_from for store in again) == 30
    assert (value_of(node, "k0"), value_of(node, "k1")) == ("new", "old")


def test_a_recreated_topic_is_restored_anew(fleet: GlobalFleet) -> None:
    fleet.write({"a": "1", "b": "1"})
    (node,) = fleet.started("n1")
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    admin.delete_topics([fleet.topic])[fleet.topic].result(30)
    poll_until(lambda: fleet.topic not in admin.list_topics(timeout=10).topics, 30, "the deletion")
    fleet.create_source(fleet.bootstrap)
    fleet.write({"a": "2"})
    poll_until(lambda: value_of(node, "a") == "2", 60, "the new topic's content")
    poll_until(lambda: not profile(node, "b").found, 30, "the old topic's content to be gone")


def test_its_failure_leaves_the_tasks_alone(fleet: GlobalFleet) -> None:
    key = fleet.keys_in(0)[0]
    fleet.put({key: "1"})
    fleet.write({"a": "1"})
    folder = fleet.directory / "n1" / fleet.application_id / "global"
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    poll_until(lambda: node.node().tasks and replica_of(node).state == "error", 30, "the global store to fail")
    assert str(folder) in replica_of(node).error

    def refused() -> bool:
        try:
            profile(node, "a")
        except LookupFailure as failure:
            return failure.reason is Reason.TASK_FAILED
        return False

    poll_until(refused, 10, "reads of it to be refused")
    poll_until(lambda: node.node().tasks[0].state == "running", 30, "the tasks to run")
    assert node.get(key).value.text == "1"
    assert node.node().state in {"RUNNING", "REBALANCING"}
    folder.unlink()
    poll_until(lambda: value_of(node, "a") == "1", 60, "the global store to recover")
    shutil.rmtree(folder)


def test_every_partition_is_followed_once_it_is_restored(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Many reach their ends at once, and none is forgotten on its way from the restorer to the follower."""
    with GlobalFleet(kafka.bootstrap, unique_name("app"), tmp_path, count=16) as fleet:
        keys = [f"k{nth}" for nth in range(100)]
        fleet.write(dict.fromkeys(keys, "1"))
        (node,) = fleet.started("n1")
        fleet.write(dict.fromkeys(keys, "2"))
        for key in keys:
            poll_until(lambda key=key: value_of(node, key) == "2", 10, f"the update of {key}")


def test_not_found_takes_all_of_it_restored(fleet: GlobalFleet) -> None:
    """Until then a node says so; never that there is no such key."""
    fleet.write({f"k{nth}": "x" * 1_000 for nth in range(300)})
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    reasons = set()

    def restored() -> bool:
        try:
            return bool(profile(node, "k299").found)
        except LookupFailure as failure:
            reasons.add(failure.reason)
            return False

    poll_until(restored, 30, "the store")
    assert reasons <= {Reason.ROUTING_NOT_READY, Reason.PARTITION_RESTORING}
