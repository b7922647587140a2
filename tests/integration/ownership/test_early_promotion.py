"""Another node becomes active as soon as one has ended, long before its session is over."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statehouse.contract.topology import TaskId
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.process import ProcessIdentity, descendants
from statehouse.v1 import types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess, is_answered_by_active
from tests.support.lookups import LookupLoad
from tests.support.ownership import Controlled, controller_of, settled
from tests.support.polling import poll_until

PARTITIONS = 6
RATE = 100
# Longer than any of this takes: what happens, happens before.
SESSION_TIMEOUT_S = 120.0
WITHIN_S = 30.0
SILENT_S = 2.0


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    timeout_ms = int(SESSION_TIMEOUT_S * 1000)
    with Fleet(
        kafka.bootstrap, unique_name("app"), tmp_path, partitions=PARTITIONS, session_timeout_ms=timeout_ms
    ) as fleet:
        yield fleet


def begun(fleet: Fleet, controlled: Controlled) -> tuple[dict[str, ServerProcess], ServerProcess]:
    """Start nodes and a router, and wait until all is settled."""
    fleet.put({fleet.keys_in(partition)[0]: "1" for partition in range(PARTITIONS)})
    nodes = {name: fleet.node(name) for name in ("a", "b", "c")}
    router = fleet.router()
    poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "the fleet to settle")
    wait_answered(router, [fleet.keys_in(partition)[0] for partition in range(PARTITIONS)])
    # An epoch that was on its way then has been read by now.
    poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "the fleet to stay settled")
    return nodes, router


def keys_of(fleet: Fleet, controlled: Controlled, name: str) -> list[str]:
    tasks = controlled.assignment.tasks
    keys = [fleet.keys_in(each)[0] for each in range(PARTITIONS) if tasks[TaskId(0, each)].active == name]
    assert keys, f"{name} is active for something"
    return keys


def wait_answered(router: ServerProcess, keys: list[str]) -> None:
    poll_until(lambda: all(is_answered_by_active(router, key) for key in keys), WITHIN_S, "the actives to answer")


def wait_answered_by_others(load: LookupLoad, keys: list[str], name: str, since: float) -> None:
    def are_answered() -> bool:
        answers = [lookup for lookup in load.answers(since) if lookup.response is not None]
        by_others = {
            lookup.key
            for lookup in answers
            if lookup.response is not None
            and lookup.response.replica.role == types_pb2.REPLICA_ROLE_ACTIVE
            and lookup.response.replica.host.instance_id != name
        }
        return by_others == set(keys)

    poll_until(are_answered, WITHIN_S, f"others to be active for the tasks of {name}")


@pytest.mark.feature("new-active-within")
@pytest.mark.timeout(180)
def test_others_are_active_for_killed_nodes_and_nothing_is_built(fleet: Fleet) -> None:
    with controller_of(fleet, SESSION_TIMEOUT_S) as controlled:
        nodes, router = begun(fleet, controlled)
        for name in nodes:
            keys, before = keys_of(fleet, controlled, name), controlled.assignment
            wait_answered(router, keys)
            with LookupLoad(router.target, STORE, keys, RATE, active_only=True) as load:
                load.await_more(RATE // 4)
                killed_at = time.monotonic()
                nodes[name].kill()
                wait_answered_by_others(load, keys, name, killed_at)
            why = f"{name} refuses connections at 127.0.0.1:{nodes[name].port}"
            poll_until(lambda why=why: why in controlled.assignment.reason, WITHIN_S, "the reason to be read")
            now = controlled.assignment
            assert {task: set(held.replicas) for task, held in now.tasks.items()} == {
                task: set(held.replicas) for task, held in before.tasks.items()
            }, "copies stay where they are"
            nodes[name].start()
            poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "it to be back")


@pytest.mark.feature("new-active-within")
@pytest.mark.timeout(180)
def test_who_is_frozen_or_will_be_back_keeps_its_actives(fleet: Fleet) -> None:
    with controller_of(fleet, SESSION_TIMEOUT_S) as controlled:
        nodes, router = begun(fleet, controlled)
        in_force = controlled.assignment
        with LookupLoad(router.target, STORE, [fleet.keys_in(0)[0]], RATE) as load:
            nodes["a"].freeze()
            load.await_more(round(SILENT_S * RATE))
            nodes["a"].thaw()
            assert nodes["b"].stop(signal.SIGINT) == 0
            load.await_more(round(SILENT_S * RATE))
            nodes["b"].start()
            poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "all to be back")
        now = controlled.assignment
        assert now.epoch == in_force.epoch, now.reason


@pytest.mark.long
@pytest.mark.parametrize("part", ["the proxy", "the heartbeats"])
def test_a_node_that_loses_a_part_loses_its_actives_soon(fleet: Fleet, part: str) -> None:
    with controller_of(fleet, SESSION_TIMEOUT_S) as controlled:
        nodes, router = begun(fleet, controlled)
        keys = keys_of(fleet, controlled, "a")
        with LookupLoad(router.target, STORE, keys, RATE, active_only=True) as load:
            load.await_more(RATE // 4)
            killed_at = time.monotonic()
            for pid in descendants(nodes["a"].pid):
                command = Path(f"/proc/{pid.pid}/cmdline").read_text(encoding="utf-8", errors="replace")
                if isinstance(pid, ProcessIdentity) and ("statehouse-proxy" in command) == (part == "the proxy"):
                    pid.send(signal.SIGKILL)
            wait_answered_by_others(load, keys, "a", killed_at)
        assert nodes["a"].wait() != 0
