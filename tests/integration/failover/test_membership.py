"""Coming and going of real node processes: what a restart moves, who leaves when, who wins an instance id."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner, Result

from statehouse.cli.main import app
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import members_topic
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import node_service_pb2, node_service_pb2_grpc
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.kafka import read_all
from tests.support.lookups import LookupLoad
from tests.support.ownership import answered, controller_of, settled
from tests.support.polling import poll_until

PARTITIONS = 4
RATE = 50
# Longer than a busy machine takes to start a node.
SESSION_TIMEOUT_S = 60.0


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    timeout_ms = int(SESSION_TIMEOUT_S * 1000)
    with Fleet(
        kafka.bootstrap, unique_name("app"), tmp_path, partitions=PARTITIONS, session_timeout_ms=timeout_ms
    ) as fleet:
        yield fleet


def drain(node: ServerProcess, timeout_ms: int | None = None) -> list[str]:
    stub = node_service_pb2_grpc.NodeServiceStub(node.channel)
    reply = stub.Drain(node_service_pb2.DrainRequest(timeout_ms=timeout_ms), timeout=30.0)
    return list(reply.active_tasks)


def tombstones(fleet: Fleet, name: str) -> int:
    records = read_all(fleet.bootstrap, members_topic(fleet.application_id))
    return records.count((name.encode(), None))


@pytest.mark.feature("static-member-bounces")
@pytest.mark.long
def test_a_static_member_that_bounces_moves_nothing_and_fails_no_lookup(fleet: Fleet) -> None:
    keys = [key for partition in range(PARTITIONS) for key in fleet.keys_in(partition, 5)]
    fleet.put({key: f"v-{key}" for key in keys})
    with controller_of(fleet, SESSION_TIMEOUT_S) as controlled:
        nodes = {name: fleet.node(name) for name in ("a", "b")}
        router = fleet.router()
        poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "the fleet to settle")
        poll_until(lambda: answered(router, keys[0]), 30, "the router to answer")
        in_force = controlled.assignment
        with LookupLoad(f"127.0.0.1:{router.port}", STORE, keys, RATE) as load:
            for _ in range(2):
                before = nodes["a"].node().incarnation
                assert nodes["a"].stop(signal.SIGINT) == 0
                seen = len(load.answers())
                poll_until(lambda seen=seen: len(load.answers()) > seen + RATE, 30, "lookups without it")
                nodes["a"].start()
                poll_until(lambda: settled(controlled, nodes, set(nodes)), SESSION_TIMEOUT_S, "it to be back")
                assert nodes["a"].node().incarnation != before
            seen = len(load.answers())
            poll_until(lambda: len(load.answers()) > seen + RATE, 30, "lookups after its return")
        assert controlled.assignment is in_force
        assert not load.failures
        assert tombstones(fleet, "a") == 0
        assert {lookup.response.replica.epoch for lookup in load.history if lookup.response} == {in_force.epoch}


@pytest.mark.long
def test_a_dynamic_member_makes_up_a_name_and_its_tasks_move_at_sigint(fleet: Fleet) -> None:
    with controller_of(fleet, SESSION_TIMEOUT_S) as controlled:
        first, second = fleet.node("a"), fleet.node("b", instance_id="")
        name = second.node().host.instance_id
        nodes = {"a": first, name: second}
        poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "the fleet to settle")
        assert second.stop(signal.SIGINT) == 0
        poll_until(
            lambda: {task.replicas for task in controlled.assignment.tasks.values()} == {("a",)},
            20,
            "its tasks to move",
        )
        assert f"{name} left" in controlled.assignment.reason
        second.start()
        again = second.node().host.instance_id
        assert again != name
        nodes = {"a": first, again: second}
        poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "another member to get them")


@pytest.mark.feature("members-topic-nodes")
@pytest.mark.feature("clean-stop-hands")
@pytest.mark.feature("getnode-drain-grpc")
def test_a_drain_from_the_command_line_hands_over_and_leaves(fleet: Fleet) -> None:
    with controller_of(fleet, SESSION_TIMEOUT_S) as controlled:
        nodes = {name: fleet.node(name, drain_timeout_ms=600_000) for name in ("a", "b")}
        router = fleet.router()
        poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "the fleet to settle")

        def statehouse(*arguments: str) -> Result:
            return CliRunner().invoke(app, ["nodes", *arguments, "--router", f"127.0.0.1:{router.port}"])

        poll_until(lambda: statehouse("list").stdout.count("RUNNING") == 2, 30, "the router to know both")
        drained = statehouse("drain", "a")
        assert drained.exit_code == 0, drained.stderr
        assert drained.stderr.splitlines()[0] == "a drains: 2 active tasks to hand over"
        assert drained.stderr.splitlines()[-1] == "a has left"
        assert nodes["a"].wait() == 0
        assert "drained" in nodes["a"].log
        poll_until(
            lambda: {task.replicas for task in controlled.assignment.tasks.values()} == {("b",)}, 20, "b to have it all"
        )
        assert tombstones(fleet, "a") == 1
        again = statehouse("drain", "a")
        assert again.exit_code == 2
        assert "known: b" in again.stderr


def test_a_drain_with_nobody_to_take_over_ends_at_its_timeout_and_says_so(fleet: Fleet) -> None:
    node = fleet.node("a", drain_timeout_ms=600_000)
    fleet.assign(*[TaskAssignment("a")] * PARTITIONS)
    fleet.wait_running([node])
    with pytest.raises(grpc.RpcError, match="timeout_ms must not be negative"):
        drain(node, timeout_ms=-1)
    assert node.node().state == "RUNNING"
    assert len(drain(node, timeout_ms=500)) == PARTITIONS
    assert len(drain(node, timeout_ms=600_000)) == PARTITIONS, "the first one's timeout holds"
    assert node.wait(30) == 0
    assert "stopping with active tasks: nobody took them in time" in node.log
    assert "drained" not in node.log
    assert tombstones(fleet, "a") == 1


def test_a_second_sigterm_ends_a_drain(fleet: Fleet) -> None:
    node = fleet.node("a", drain_timeout_ms=600_000)
    fleet.assign(*[TaskAssignment("a")] * PARTITIONS)
    fleet.wait_running([node])
    drain(node)
    poll_until(lambda: node.node().state == "PENDING_SHUTDOWN", 20, "the drain to begin")
    assert node.get(fleet.keys_in(0)[0]).found is False, "it serves meanwhile"
    assert node.stop(signal.SIGTERM) == 0
    assert tombstones(fleet, "a") == 1


@pytest.mark.feature("static-member-bounces")
def test_of_two_with_one_instance_id_the_older_ends_with_the_others_address(fleet: Fleet) -> None:
    older = fleet.node("n1")
    fleet.assign(*[TaskAssignment("n1")] * PARTITIONS)
    fleet.wait_running([older])
    newer = fleet.node("n1", state_dir=fleet.directory / "another")
    assert older.wait(60) == 1
    incarnation = newer.node().incarnation
    assert f"incarnation {incarnation} at 127.0.0.1:{newer.port}" in older.log
    assert "Give each node an instance id of its own" in older.log
    fleet.wait_running([newer])
    assert tombstones(fleet, "n1") == 0
