"""Global stores: every node holds all of one, whichever writer placed its keys and whatever the assignment says."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.membership import TaskState, decode_member
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import StoreSpec, members_topic
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import fleet_service_pb2, node_service_pb2, query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess, is_at_end
from tests.support.kafka import create_topic, produce, produce_placed, read_all
from tests.support.lookups import LookupLoad
from tests.support.polling import poll_until
from tests.support.watches import Watcher

NODES = ("n1", "n2", "n3")
PARTITIONS = 3


class GlobalFleet(Fleet):
    """A fleet with a global store of three partitions in addition to its ordinary one."""

    def __init__(
        self,
        bootstrap: str,
        application_id: str,
        directory: Path,
        partitions: int = 2,
        count: int = PARTITIONS,
    ) -> None:
        super().__init__(bootstrap, application_id, directory, partitions=partitions)
        self.count = count
        self.take_another("profiles")

    def take_another(self, name: str) -> None:
        """Have another global store in the place of the one before, from the next epoch on."""
        self.name, self.topic = name, f"{self.application_id}-{name}-source"
        self.profiles = StoreSpec(name, self.topic, self.count, 0, value_serde="string", is_global=True)
        self.stores = MappingProxyType({STORE: self.spec, name: self.profiles})
        self.create_source()

    @property
    def task(self) -> str:
        return f"global/{self.name}"

    def create_source(self) -> None:
        create_topic(self.bootstrap, self.topic, self.count, {"cleanup.policy": "compact"})

    def write(self, entries: dict[str, str | None], shift: int = 0) -> None:
        """Write to the source topic; `shift`: by a partitioner that is that many partitions off."""
        produce_placed(
            self.bootstrap,
            self.topic,
            (
                (
                    (partition_for(key.encode(), self.count) + shift) % self.count,
                    key.encode(),
                    None if value is None else value.encode(),
                    0,
                )
                for key, value in entries.items()
            ),
        )

    def started(self, *names: str) -> list[ServerProcess]:
        """Start nodes that are not there yet; the first holds the tasks. Wait until they run."""
        there = {process.name: process for process in self.processes}
        nodes = [there.get(name) or self.node(name) for name in names]
        self.assign(TaskAssignment(names[0]), TaskAssignment(names[0]))
        self.wait_running(nodes)
        return nodes

    def profile(self, process: ServerProcess, key: str, **freshness: object) -> query_service_pb2.GetResponse:
        return process.get(key, store=self.name, **freshness)

    def value_of(self, process: ServerProcess, key: str) -> str | None:
        """Return a key's value, None while there is no answer or no such key."""
        try:
            answer = self.profile(process, key)
        except LookupFailure:
            return None
        return answer.value.text if answer.found else None

    def replica_of(self, node: ServerProcess) -> node_service_pb2.TaskReplica:
        """Return the global store as the node tells of it, once it has begun to open it."""
        return poll_until(
            lambda: next((task for task in node.node().tasks if task.task == self.task), None), 20, self.task
        )

    def scan(self, process: ServerProcess, page_size: int = 7, **fields: Any) -> list[tuple[str, str]]:
        """Read all pages."""
        request = query_service_pb2.ScanRequest(store=self.name, page_size=page_size, **fields)
        found = []
        while True:
            page = process.call(process.query.Scan, request)
            found += [(entry.key.text, entry.value.text) for entry in page.entries]
            if not page.next_page_token:
                return found
            assert len({stamp.host.instance_id for stamp in page.replicas}) == 1, "one node answers for all of it"
            request.page_token = page.next_page_token

    def counted(self, process: ServerProcess, **fields: Any) -> query_service_pb2.CountResponse:
        return process.call(process.query.Count, query_service_pb2.CountRequest(store=self.name, **fields))


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[GlobalFleet]:
    with GlobalFleet(kafka.bootstrap, unique_name("app"), tmp_path) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def three(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlobalFleet]:
    application = f"global-{uuid.uuid4().hex[:8]}"
    with GlobalFleet(kafka.bootstrap, application, tmp_path_factory.mktemp("global")) as fleet:
        for name in NODES:
            fleet.node(name)
        fleet.router()
        yield fleet


@pytest.fixture
def shared(three: GlobalFleet, unique_name: Callable[[str], str]) -> GlobalFleet:
    """Give a test a global store of its own on three nodes; it leaves them running."""
    three.take_another(unique_name("profiles"))
    return three


@pytest.fixture
def router(three: GlobalFleet) -> ServerProcess:
    return three.processes[len(NODES)]


@pytest.mark.feature("global-stores-node")
def test_every_node_holds_all_of_it(fleet: GlobalFleet) -> None:
    keys = [f"k{nth}" for nth in range(12)]
    fleet.write(dict.fromkeys(keys, "1") | {"gone": "1"})
    fleet.write({"gone": None})
    with_tasks, without = nodes = fleet.started("n1", "n2")
    for node in nodes:
        for key in keys:
            answer = fleet.profile(node, key)
            assert (answer.found, answer.value.text) == (True, "1")
            assert answer.replica.role == types_pb2.REPLICA_ROLE_GLOBAL
            assert answer.replica.partition == partition_for(key.encode(), PARTITIONS)
            assert answer.replica.host.instance_id == node.name
        assert not fleet.profile(node, "gone").found
        assert node.node().state == "RUNNING"
    assert [task.task for task in with_tasks.node().tasks] == ["0_0", "0_1", fleet.task]
    assert [task.task for task in without.node().tasks] == [fleet.task]

    fleet.write({keys[0]: "2", keys[1]: None})
    for node in nodes:
        poll_until(lambda node=node: fleet.value_of(node, keys[0]) == "2", 20, "the update")
        poll_until(lambda node=node: not fleet.profile(node, keys[1]).found, 20, "the tombstone")
        poll_until(lambda node=node: is_at_end(fleet.profile(node, keys[0]).replica), 20, "lag 0")
        # Every copy is as good as an active.
        assert fleet.profile(node, keys[0], active_only=True, max_lag=0, max_staleness_ms=60_000).found

    # One more node needs no assignment.
    epoch = fleet.assignment.epoch
    third = fleet.node("n3")
    fleet.wait_running([third])
    assert fleet.value_of(third, keys[0]) == "2"
    assert third.node().epoch == epoch


def test_says_per_partition_how_far_it_is(fleet: GlobalFleet) -> None:
    fleet.write({f"k{nth}": "1" for nth in range(12)})
    (node,) = fleet.started("n1")
    poll_until(lambda: all(map(is_at_end, fleet.replica_of(node).stores)), 20, "lag 0")
    replica = fleet.replica_of(node)
    assert (replica.role, replica.state) == (types_pb2.REPLICA_ROLE_GLOBAL, "running")
    assert [(store.store, store.partition) for store in replica.stores] == [(fleet.name, n) for n in range(PARTITIONS)]
    assert sum(store.position for store in replica.stores) == 12

    def is_told() -> bool:
        for key, value in read_all(fleet.bootstrap, members_topic(fleet.application_id)):
            assert value is not None
            now_ms = int(time.time() * 1000)
            copy = decode_member(key, value, now_ms, now_ms).global_replicas.get(fleet.name)
            if (
                copy is not None
                and copy.state == TaskState.RUNNING
                and sum(at.position or 0 for at in copy.positions.values()) == 12
            ):
                return True
        return False

    poll_until(is_told, 20, "a heartbeat that says so, too")


def test_a_key_is_found_wherever_it_was_placed(shared: GlobalFleet) -> None:
    node, *_ = shared.started(*NODES)
    for shift in range(PARTITIONS):
        key = f"off-by-{shift}"
        shared.write({key: "1"}, shift)
        poll_until(lambda key=key: shared.value_of(node, key) == "1", 20, "the key")
        stamp = shared.profile(node, key).replica
        assert stamp.partition == (partition_for(key.encode(), PARTITIONS) + shift) % PARTITIONS
        assert stamp.position > 0
        shared.write({key: None}, shift)
        poll_until(lambda key=key: not shared.profile(node, key).found, 20, "the tombstone")
        assert shared.profile(node, key).replica.partition == partition_for(key.encode(), PARTITIONS)

    batch = query_service_pb2.BatchGetRequest()
    shared.write({"a": "1", "b": "2"}, 1)
    for key in ("a", "b", "never"):
        batch.requests.add(store=shared.name, key=types_pb2.Key(text=key))
    poll_until(lambda: (shared.value_of(node, "a"), shared.value_of(node, "b")) == ("1", "2"), 20, "the keys")
    results = node.call(node.query.BatchGet, batch).results
    assert [result.response.value.text for result in results] == ["1", "2", ""]


def test_a_restart_reads_on_from_the_checkpoint(fleet: GlobalFleet) -> None:
    fleet.write({f"k{nth}": "old" for nth in range(30)})
    (node,) = fleet.started("n1")
    assert sum(store.restored_records for store in fleet.replica_of(node).stores) == 30
    folder = fleet.directory / "n1" / fleet.application_id / "global" / fleet.name
    assert {path.name for path in folder.iterdir()} == {".lock", ".checkpoint", "0", "1", "2"}
    node.kill()
    fleet.write({"k0": "new"})
    node.start()
    fleet.wait_running([node])
    again = fleet.replica_of(node).stores
    assert sum(store.restored_records for store in again) == 1
    assert sum(store.restored_from for store in again) == 30
    assert (fleet.value_of(node, "k0"), fleet.value_of(node, "k1")) == ("new", "old")


def test_a_recreated_topic_is_restored_anew(fleet: GlobalFleet) -> None:
    fleet.write({"a": "1", "b": "1"})
    (node,) = fleet.started("n1")
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    admin.delete_topics([fleet.topic])[fleet.topic].result(30)
    poll_until(lambda: fleet.topic not in admin.list_topics(timeout=10).topics, 30, "the deletion")
    fleet.create_source()
    fleet.write({"a": "2"})
    poll_until(lambda: fleet.value_of(node, "a") == "2", 60, "the new topic's content")
    poll_until(lambda: not fleet.profile(node, "b").found, 30, "the old topic's content to be gone")


def test_a_topic_that_grew_is_taken_up_with_the_next_assignment(fleet: GlobalFleet) -> None:
    fleet.write({f"k{nth}": "1" for nth in range(30)})
    (node,) = fleet.started("n1")
    tasks = [task.stores[0].restored_records for task in node.node().tasks[:2]]
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    admin.create_partitions([NewPartitions(fleet.topic, PARTITIONS + 1)])[fleet.topic].result(30)
    produce(fleet.bootstrap, fleet.topic, [(b"new", b"2")], PARTITIONS)
    grown = replace(fleet.profiles, partition_count=PARTITIONS + 1)
    fleet.stores = MappingProxyType({**fleet.stores, fleet.name: grown})
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    poll_until(lambda: fleet.value_of(node, "new") == "2", 30, "the new partition's key")
    assert fleet.value_of(node, "k1") == "1"
    assert [store.restored_records for store in fleet.replica_of(node).stores] == [0, 0, 0, 1]
    assert [task.stores[0].restored_records for task in node.node().tasks[:2]] == tasks, "tasks are left alone"


def test_its_failure_leaves_the_tasks_alone(fleet: GlobalFleet) -> None:
    key = fleet.keys_in(0)[0]
    fleet.put({key: "1"})
    fleet.write({"a": "1"})
    folder = fleet.directory / "n1" / fleet.application_id / "global"
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    poll_until(lambda: fleet.replica_of(node).state == "error", 30, "the global store to fail")
    assert str(folder) in fleet.replica_of(node).error

    def refused() -> bool:
        try:
            fleet.profile(node, "a")
        except LookupFailure as failure:
            return failure.reason is Reason.TASK_FAILED
        return False

    poll_until(refused, 20, "reads of it to be refused")
    poll_until(lambda: node.node().tasks[0].state == "running", 30, "the tasks to run")
    assert node.get(key).value.text == "1"
    assert node.node().state in {"RUNNING", "REBALANCING"}
    folder.unlink()
    poll_until(lambda: fleet.value_of(node, "a") == "1", 60, "the global store to recover")
    shutil.rmtree(folder)


@pytest.mark.feature("lookups-runs-stay")
def test_every_partition_is_followed_once_it_is_restored(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Many reach their ends at the same time, and none is forgotten on its way from the restorer to the follower."""
    with GlobalFleet(kafka.bootstrap, unique_name("app"), tmp_path, count=16) as fleet:
        keys = [f"k{nth}" for nth in range(100)]
        fleet.write(dict.fromkeys(keys, "1"))
        (node,) = fleet.started("n1")
        fleet.write(dict.fromkeys(keys, "2"))
        for key in keys:
            poll_until(lambda key=key: fleet.value_of(node, key) == "2", 20, f"the update of {key}")


@pytest.mark.feature("found-said-only")
def test_not_found_takes_all_of_it_restored(fleet: GlobalFleet) -> None:
    """Until then a node says so; never that there is no such key."""
    fleet.write({f"k{nth}": "x" * 1_000 for nth in range(300)})
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))

    def restored() -> bool:
        try:
            answer = fleet.profile(node, "k299")
        except LookupFailure as failure:
            assert failure.reason not in {Reason.UNKNOWN_STORE, Reason.PARTITION_NOT_OWNED, Reason.INTERNAL}  # noqa: PT017
            return False
        assert answer.found, "a key that is there is never said not to be"
        return True

    poll_until(restored, 30, "the store")


@pytest.mark.feature("count-estimated-exact")
def test_one_node_scans_and_counts_all_of_it(shared: GlobalFleet, router: ServerProcess) -> None:
    rows = {f"k{nth:02}": f"v{nth}" for nth in range(40)}
    shared.write(rows)
    shared.write({"misplaced": "1"}, shift=1)
    # One key stands in two partitions: what Get finds, the later one, is what a scan shows.
    shared.write({"k00": "by another partitioner"}, shift=2)
    rows |= {"misplaced": "1", "k00": "by another partitioner"}
    node, *_ = shared.started(*NODES)
    poll_until(lambda: shared.value_of(router, "k00") == rows["k00"], 30, "the router to answer")
    for process in (node, router):
        assert shared.scan(process) == sorted(rows.items())
        assert shared.scan(process, page_size=1) == sorted(rows.items())
        assert shared.scan(process, reverse=True) == sorted(rows.items(), reverse=True)
        assert shared.scan(process, prefix=types_pb2.Key(text="k1")) == [(f"k{n}", f"v{n}") for n in range(10, 20)]
        stamps = process.call(process.query.Scan, query_service_pb2.ScanRequest(store=shared.name)).replicas
        assert [stamp.partition for stamp in stamps] == list(range(PARTITIONS))
        assert {stamp.role for stamp in stamps} == {types_pb2.REPLICA_ROLE_GLOBAL}
        parts = [shared.scan(process, partition=partition) for partition in range(PARTITIONS)]
        assert sum(map(len, parts)) == 42, "the one key twice"
        assert shared.counted(process, exact=True).count == 42
        assert shared.counted(process, exact=True, partition=0).count == len(parts[0])
        assert shared.counted(process).count == 42
        assert len(shared.counted(process).replicas) == PARTITIONS


@pytest.mark.feature("global-stores-node")
def test_a_router_spreads_over_all_copies_and_describes_them(shared: GlobalFleet, router: ServerProcess) -> None:
    shared.write({f"k{nth}": "1" for nth in range(12)})
    shared.started(*NODES)

    def eligible() -> list[str]:
        request = fleet_service_pb2.LocateKeyRequest(store=shared.name, key=types_pb2.Key(text="k1"))
        try:
            place = router.call(router.fleet.LocateKey, request)
        except LookupFailure:
            return []
        assert place.route.partition == partition_for(b"k1", PARTITIONS)
        assert {candidate.role for candidate in place.candidates} <= {types_pb2.REPLICA_ROLE_GLOBAL}
        return sorted(candidate.host.instance_id for candidate in place.candidates if candidate.eligible)

    poll_until(lambda: eligible() == list(NODES), 30, "the router to know all copies")

    def hosts(**freshness: object) -> set[str]:
        return {shared.profile(router, "k1", **freshness).replica.host.instance_id for _ in range(9)}

    # One that was slow to answer is asked last for a while.
    poll_until(lambda: hosts() == set(NODES), 30, "answers of all")
    poll_until(lambda: hosts(active_only=True, max_lag=5) == set(NODES), 30, "bounded answers of all")

    described = router.call(router.fleet.GetFleet, fleet_service_pb2.GetFleetRequest())
    (store,) = (store for store in described.stores if store.name == shared.name)
    assert getattr(store, "global")
    assert not store.HasField("sub_topology")
    (task,) = (task for task in described.tasks if task.task == shared.task)
    assert (task.active, list(task.standbys)) == ("", [])
    assert [(replica.instance_id, replica.state) for replica in task.replicas] == [(name, "running") for name in NODES]
    assert {replica.position for replica in task.replicas} == {12}

    batch = query_service_pb2.BatchGetRequest()
    for nth in range(12):
        batch.requests.add(store=shared.name, key=types_pb2.Key(text=f"k{nth}"))
    for _ in range(6):
        results = router.call(router.query.BatchGet, batch).results
        assert all(result.response.found for result in results)
        assert len({result.response.replica.host.instance_id for result in results}) == 1


@pytest.mark.feature("global-stores-node")
def test_a_killed_node_costs_no_lookup(shared: GlobalFleet, router: ServerProcess) -> None:
    keys = [f"k{nth}" for nth in range(12)]
    shared.write(dict.fromkeys(keys, "1"))
    survivor, victim, _ = shared.started(*NODES)
    poll_until(lambda: shared.value_of(router, "k1") == "1", 30, "the router to answer")
    with LookupLoad(f"127.0.0.1:{router.port}", shared.name, keys, rate=50) as load:

        def answered_by(node: ServerProcess, since: float = 0.0) -> bool:
            found = (lookup.response for lookup in load.answers(since))
            return any(each is not None and each.replica.host.instance_id == node.name for each in found)

        poll_until(lambda: answered_by(survivor) and answered_by(victim), 30, "answers of both")
        victim.kill()
        killed_at = time.monotonic()
        poll_until(lambda: len(load.answers(killed_at)) > 100, 30, "lookups after the kill")
        victim.start()
        back_at = time.monotonic()
        poll_until(lambda: answered_by(victim, back_at), 30, "the killed node to answer again")
    assert not load.failures
    assert all(lookup.response is not None and lookup.response.value.text == "1" for lookup in load.history)


def test_a_watch_of_a_global_store_goes_on_at_another_copy(shared: GlobalFleet, router: ServerProcess) -> None:
    """Its keys may be in any partition, so a key is watched in all."""
    shared.write({"k": "1"}, shift=1)
    nodes = {node.name: node for node in shared.started(*NODES)}
    poll_until(lambda: shared.value_of(router, "k") == "1", 30, "the router")
    with Watcher(router, "k", store=shared.name) as watcher:
        watcher.wait_for(lambda each: len(each.positions) == PARTITIONS, "every partition")
        assert watcher.current_values == {"k": "1"}
        shared.write({"k": "2", "other": "2"}, shift=1)
        watcher.wait_for(lambda each: each.values == ["2"], "the change")
        killed = nodes[watcher.hosts[-1]]
        killed.kill()
        shared.write({"k": None}, shift=1)
        watcher.wait_for(lambda each: each.values == ["2", None], "the change after the kill")
        assert watcher.gaps == 0
    killed.start()
