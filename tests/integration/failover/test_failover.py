"""Killing, freezing and restarting nodes under lookups through a router, with the real ownership controller."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statehouse.contract.topology import Role, TaskId
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import types_pb2
from tests.support.fleet import STORE, Fleet
from tests.support.lookups import LookupLoad
from tests.support.ownership import answered, controller_of, settled
from tests.support.polling import poll_until

PARTITIONS = 6
RATE = 60


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=PARTITIONS) as fleet:
        yield fleet


@pytest.mark.feature("lost-node-standbys")
@pytest.mark.feature("node-killed-frozen")
def test_killed_active_costs_no_lookup_and_comes_back_to_its_share(fleet: Fleet) -> None:
    keys = [key for partition in range(PARTITIONS) for key in fleet.keys_in(partition, 50)]
    fleet.put({key: f"v-{key}" for key in keys})
    with controller_of(fleet) as controlled:
        nodes = {name: fleet.node(name) for name in ("a", "b", "c")}
        router = fleet.router()
        poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "the fleet to settle")
        poll_until(lambda: answered(router, keys[0]), 30, "the router to answer")

        kept = controlled.assignment.tasks_of("b")
        watched = [key for key in keys if kept.get(TaskId(0, fleet.partition_of(key))) is Role.ACTIVE]
        assert watched
        epoch_before = controlled.assignment.epoch
        with LookupLoad(f"127.0.0.1:{router.port}", STORE, watched, RATE) as load:
            poll_until(lambda: len(load.answers()) > RATE // 2, 30, "lookups before the fault")
            nodes["b"].kill()
            killed_at = time.monotonic()
            poll_until(
                lambda: any(
                    lookup.response is not None and lookup.response.replica.role == types_pb2.REPLICA_ROLE_STANDBY
                    for lookup in load.answers(killed_at)
                ),
                20,
                "an answer from a standby",
            )
            poll_until(
                lambda: any(
                    lookup.response is not None
                    and lookup.response.replica.epoch > epoch_before
                    and lookup.response.replica.role == types_pb2.REPLICA_ROLE_ACTIVE
                    for lookup in load.answers(killed_at)
                ),
                20,
                "an answer from the promoted active at a new epoch",
            )
            poll_until(lambda: settled(controlled, nodes, {"a", "c"}), 90, "two copies of everything on two nodes")
            fleet.put({watched[0]: f"v-{watched[0]}"})
            # Besides what it served when it was killed: tasks it had before the fleet first settled.
            on_disk = {TaskId.parse(file.parent.name) for file in (fleet.directory / "b").rglob(".checkpoint")}
            assert set(kept) <= on_disk
            nodes["b"].start()
            poll_until(lambda: settled(controlled, nodes, {"a", "b", "c"}), 60, "the killed node to get its share")
            back_at = time.monotonic()
            poll_until(lambda: len(load.answers(back_at)) > RATE // 2, 20, "lookups after the return")

        assert not load.failures
        for lookup in load.history:
            assert lookup.response is not None
            assert lookup.response.found
            assert lookup.response.value.text == f"v-{lookup.key}"
            assert lookup.response.replica.host.instance_id in nodes
        got = controlled.assignment.tasks_of("b")
        assert abs(len(got) - 2 * PARTITIONS // 3) <= 1, "it gets its fair share"
        actives = {task for task, role in got.items() if role is Role.ACTIVE}
        assert len(actives) == PARTITIONS // 3, "and its share of the active tasks"
        assert actives <= on_disk, "of what is on its disk"
        # Where the copies of the others stand decides which standby it gets last: one may be new to it.
        assert len(set(got) - on_disk) <= 1
        restored = {task.task: task.stores[0] for task in nodes["b"].node().tasks}
        for task in set(got) & on_disk:
            assert restored[str(task)].restored_from > 0, "restored from the checkpoint"
            assert restored[str(task)].restored_records <= 1, "only the tail was read"


@pytest.mark.long
def test_frozen_active_is_passed_over(fleet: Fleet) -> None:
    keys = [key for partition in range(PARTITIONS) for key in fleet.keys_in(partition, 5)]
    fleet.put({key: f"v-{key}" for key in keys})
    with controller_of(fleet) as controlled:
        nodes = {name: fleet.node(name) for name in ("a", "b", "c")}
        router = fleet.router()
        poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "the fleet to settle")
        poll_until(lambda: answered(router, keys[0]), 30, "the router to answer")
        with LookupLoad(f"127.0.0.1:{router.port}", STORE, keys, RATE) as load:
            poll_until(lambda: len(load.answers()) > RATE // 2, 30, "lookups before the fault")
            epoch = controlled.assignment.epoch
            nodes["a"].freeze()
            poll_until(lambda: controlled.assignment.epoch > epoch, 20, "the frozen node's tasks to be moved")
            nodes["a"].thaw()
            thawed_at = time.monotonic()
            poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "the fleet to settle again")
            poll_until(lambda: len(load.answers(thawed_at)) > RATE // 2, 20, "lookups after the thaw")
        assert not load.failures
        newest: dict[str, int] = {}
        for lookup in sorted(load.history, key=lambda each: each.due_at + each.took_s):
            assert lookup.response is not None
            assert lookup.response.found
            if lookup.response.replica.role == types_pb2.REPLICA_ROLE_ACTIVE:
                assert lookup.response.replica.epoch >= newest.get(lookup.key, 0) - 1
                newest[lookup.key] = max(newest.get(lookup.key, 0), lookup.response.replica.epoch)


@pytest.mark.feature("clean-stop-hands")
@pytest.mark.long
def test_clean_stop_hands_over_first(fleet: Fleet) -> None:
    keys = [key for partition in range(PARTITIONS) for key in fleet.keys_in(partition, 5)]
    fleet.put({key: f"v-{key}" for key in keys})
    with controller_of(fleet) as controlled:
        nodes = {name: fleet.node(name) for name in ("a", "b", "c")}
        router = fleet.router()
        poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "the fleet to settle")
        poll_until(lambda: answered(router, keys[0]), 30, "the router to answer")
        with LookupLoad(f"127.0.0.1:{router.port}", STORE, keys, RATE) as load:
            poll_until(lambda: len(load.answers()) > RATE // 2, 30, "lookups before the stop")
            assert nodes["a"].stop(signal.SIGTERM) == 0
            poll_until(lambda: settled(controlled, nodes, {"b", "c"}), 90, "two copies of everything on two nodes")
        assert not load.failures
        assert "drained" in nodes["a"].log
