"""Ephemeral stores: only what was updated since the replica began, nothing on disk, and every answer says so."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import members_topic
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import node_service_pb2, query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess, confirmed, is_at_end
from tests.support.kafka import read_all
from tests.support.ownership import controller_of
from tests.support.polling import poll_until

# A machine that stalls must not make the controller take a living node for dead: its updates would be gone.
SESSION_TIMEOUT_S = 6.0


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    topic = {"cleanup.policy": "delete", "retention.ms": "600000"}
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, changelog_config=topic, ephemeral=True) as fleet:
        yield fleet


def replica_of(node: ServerProcess) -> node_service_pb2.StoreReplica:
    """Return what the node says of the first partition, once its store is open."""
    return poll_until(
        lambda: next((task.stores[0] for task in node.node().tasks if task.task == "0_0" and task.stores), None),
        20,
        "the store to be open",
    )


def answers(process: ServerProcess, key: str) -> query_service_pb2.GetResponse | None:
    try:
        return process.get(key)
    except LookupFailure:
        return None


def is_fresh(stamp: types_pb2.ReplicaStamp) -> bool:
    return is_at_end(stamp) and stamp.staleness_ms < 5_000


def assert_stamped(answer: query_service_pb2.GetResponse, node: ServerProcess) -> None:
    stamp = answer.replica
    assert (stamp.ephemeral, stamp.role) == (True, types_pb2.REPLICA_ROLE_ACTIVE)
    assert stamp.since_ms == replica_of(node).since_ms


@pytest.mark.feature("stores-without-log")
def test_holds_what_was_updated_since_it_began(fleet: Fleet, tmp_path: Path) -> None:
    before, after = fleet.keys_in(0, 2)
    fleet.put({before: "old"})
    node = fleet.node("n1")
    began_ms = time.time() * 1000
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    fleet.wait_running([node])
    missing = confirmed(node, before)
    assert not missing.found, "it was updated before the replica began"
    assert began_ms <= missing.replica.since_ms <= time.time() * 1000
    assert_stamped(missing, node)

    fleet.put({after: "1"})
    poll_until(lambda: node.get(after).found, 20, "the update")
    assert node.get(after).value.text == "1"
    assert_stamped(confirmed(node, after), node)
    poll_until(lambda: is_fresh(node.get(after).replica), 20, "lag 0, and a small staleness")
    fleet.put({after: None})
    poll_until(lambda: not node.get(after).found, 20, "the tombstone")

    count = query_service_pb2.CountRequest(store=STORE, partition=0)
    assert node.call(node.query.Count, count).replicas[0].ephemeral

    # A restart forgets all of it, says so, and has left nothing behind.
    fleet.put({before: "new"})
    poll_until(lambda: node.get(before).found, 20, "the update")
    assert node.stop() == 0
    assert not [path for path in (tmp_path / "n1").rglob("*") if path.is_file()]
    node.start()
    fleet.wait_running([node])
    again = node.get(before)
    assert not again.found
    assert again.replica.since_ms > missing.replica.since_ms
    assert replica_of(node).restored_records == 0


@pytest.mark.feature("stores-without-log")
def test_begins_anew_where_it_moves(fleet: Fleet) -> None:
    key = fleet.keys_in(0)[0]
    nodes = [fleet.node("n1"), fleet.node("n2")]
    router = fleet.router()
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    fleet.wait_running(nodes)
    fleet.put({key: "1"})
    first = poll_until(lambda: (a := answers(router, key)) is not None and a.found and a, 30, "the update")
    fleet.reassign(0, active="n2")
    fleet.wait_running(nodes)
    moved = poll_until(lambda: (a := answers(router, key)) is not None and not a.found and a, 20, "the new host")
    assert moved.replica.host.instance_id == "n2"
    assert moved.replica.since_ms > first.replica.since_ms
    assert_stamped(confirmed(nodes[1], key), nodes[1])
    fleet.put({key: "2"})
    assert poll_until(lambda: (a := answers(router, key)) is not None and a.found and a, 20, "an update there")


def test_begins_anew_when_updates_expired_before_it_read_them(fleet: Fleet, kafka: EmbeddedKafka) -> None:
    key, other = fleet.keys_in(0, 2)
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    fleet.wait_running([node])
    fleet.put({key: "1"})
    first = poll_until(lambda: (a := answers(node, key)) is not None and a.found and a, 20, "the update")
    node.freeze()
    fleet.put(dict.fromkeys(fleet.keys_in(0, 200), "x" * 10_000))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (done,) = admin.delete_records([TopicPartition(fleet.changelog, 0, -1)]).values()
    done.result(30)
    node.thaw()
    # To go on would make "not updated since" a lie.
    again = poll_until(
        lambda: (a := answers(node, other)) is not None and a.replica.since_ms > first.replica.since_ms and a,
        60,
        "the replica to begin anew",
    )
    assert not again.found
    fleet.put({key: "2"})
    poll_until(lambda: (a := answers(node, key)) is not None and a.found, 20, "to follow on")


def test_stops_at_its_memory_budget(fleet: Fleet) -> None:
    node = fleet.node("n1", memory_store_max_bytes=50_000)
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    fleet.wait_running([node])
    fleet.put(dict.fromkeys(fleet.keys_in(0, 100), "x" * 1000))
    poll_until(lambda: "memory_store_max_bytes" in node.log, 20, "the task to stop")
    # What filled it is not read again: it goes on, empty. Until it has been stopped it still says that it runs.
    key = fleet.keys_in(0)[0]
    poll_until(lambda: (a := answers(node, key)) is not None and not a.found, 20, "the task to begin anew")


def test_a_failed_lookup_says_that_there_are_no_standbys(fleet: Fleet) -> None:
    key = fleet.keys_in(0)[0]
    node, router = fleet.node("n1"), fleet.router()
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    fleet.wait_running([node])
    poll_until(lambda: answers(router, key) is not None, 30, "the router to answer")
    node.kill()
    with pytest.raises(LookupFailure, match="an ephemeral store never has standbys") as failure:
        router.get(key)
    assert failure.value.reason is Reason.NO_REPLICA_AVAILABLE


@pytest.mark.feature("stores-without-log")
@pytest.mark.long
def test_the_controller_keeps_one_copy_and_moves_it_only_with_its_node(fleet: Fleet) -> None:
    def held_by(*names: str) -> bool:
        """Whether these nodes are the actives, with no other copy anywhere, and all tasks run."""
        holders = list(controlled.assignment.tasks.values())
        if {each.replicas for each in holders} != {(name,) for name in names}:
            return False
        running = [task.state for name in names for task in nodes[name].node().tasks]
        return running == ["running"] * fleet.partitions

    def node(name: str) -> ServerProcess:
        return fleet.node(name, session_timeout_ms=int(SESSION_TIMEOUT_S * 1000))

    # Both nodes before the controller: what one that was there first is given never moves to the other.
    nodes = {name: node(name) for name in ("n1", "n2")}
    members = members_topic(fleet.application_id)
    poll_until(lambda: {key for key, _ in read_all(fleet.bootstrap, members)} == {b"n1", b"n2"}, 60, "both nodes")
    with controller_of(fleet, SESSION_TIMEOUT_S) as controlled:
        router = fleet.router()
        poll_until(lambda: held_by("n1", "n2"), 60, "the tasks to be placed")
        keys = [fleet.keys_in(partition)[0] for partition in range(fleet.partitions)]
        fleet.put(dict.fromkeys(keys, "1"))
        for key in keys:
            poll_until(lambda key=key: (a := answers(router, key)) is not None and a.found, 30, "the update")

        nodes["n3"] = node("n3")
        poll_until(lambda: "RUNNING" in nodes["n3"].log, 30, "a further node")
        nodes["n2"].kill()
        poll_until(lambda: held_by("n1", "n3"), 30, "the lost task to go to the node without any")
        told = poll_until(lambda: all(said := [answers(router, key) for key in keys]) and said, 30, "both to answer")
        assert sorted(each.found for each in told) == [False, True], "the other one was left alone"

        assert nodes["n3"].stop(signal.SIGTERM) == 0
        assert "drained" in nodes["n3"].log
        poll_until(lambda: held_by("n1"), 30, "the leaving node's task to go to the last one")
