"""Watches through a router while their partitions change hands: every change once, in order, or a reported gap."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.failover.test_failover import PARTITIONS, controller_of, settled
from tests.support.fleet import Fleet, ServerProcess
from tests.support.polling import poll_until
from tests.support.watches import Watcher

UPDATES = 1_500
KEYS = 5


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=2) as fleet:
        yield fleet


class Updates:
    """Writes `UPDATES` numbered values to keys of both partitions, in batches, until all are there."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.keys = [key for partition in range(2) for key in fleet.keys_in(partition, KEYS)]
        self.written: dict[int, list[tuple[str, str]]] = {0: [], 1: []}
        self._thread = threading.Thread(target=self._write, name="updates", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(60.0)
        assert not self._thread.is_alive()

    @property
    def count(self) -> int:
        return sum(map(len, self.written.values()))

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self._fleet.bootstrap, "enable.idempotence": True})
        for first in range(0, UPDATES, 10):
            for partition in range(2):
                keys = [key for key in self.keys if self._fleet.partition_of(key) == partition]
                batch = [(keys[number % KEYS], str(number)) for number in range(first, first + 10)]
                for key, value in batch:
                    producer.produce(self._fleet.changelog, key=key.encode(), value=value.encode(), partition=partition)
                assert producer.flush(30.0) == 0
                self.written[partition] += batch


def wait_answered(router: ServerProcess) -> None:
    def answers() -> bool:
        try:
            return router.get("none") is not None
        except LookupFailure:
            return False

    poll_until(answers, 30, "the router to answer")


@contextmanager
def watched(router: ServerProcess, **fields: Any) -> Iterator[Watcher]:
    wait_answered(router)
    with Watcher(router, **fields) as watcher:
        yield watcher


@contextmanager
def watched_at(router: ServerProcess, host: str) -> Iterator[Watcher]:
    """Watch both partitions from one node. Where its first word is late, the router rightly begins elsewhere."""

    def begun() -> Watcher | None:
        with ExitStack() as left:
            watcher = left.enter_context(Watcher(router))
            watcher.wait_for(lambda each: len(each.positions) == 2, "both partitions")
            if watcher.hosts != [host]:
                return None
            left.pop_all()
            return watcher

    wait_answered(router)
    watcher = poll_until(begun, 60, f"a watch that begins at {host}")
    try:
        yield watcher
    finally:
        watcher.leave()


def saw_everything(watcher: Watcher, updates: Updates, partitions: tuple[int, ...] = (0, 1)) -> bool:
    return len(watcher.changes) >= sum(len(updates.written[partition]) for partition in partitions)


def check(watcher: Watcher, updates: Updates) -> None:
    assert watcher.gaps == 0
    for partition, written in updates.written.items():
        seen = [change for change in watcher.changes if change[0] == partition]
        assert [(key, value) for _, _, key, value in seen] == written
        offsets = [offset for _, offset, _, _ in seen]
        assert offsets == sorted(set(offsets))


@pytest.mark.feature("watch-key-prefix")
def test_reassignment_and_sigkill_lose_and_repeat_nothing(fleet: Fleet) -> None:
    nodes = {name: fleet.node(name) for name in ("a", "b", "c")}
    router = fleet.router()
    fleet.assign(TaskAssignment("a", ("b",)), TaskAssignment("a", ("b",)))
    fleet.wait_running(nodes.values())
    updates = Updates(fleet)
    with watched_at(router, "a") as everything, Watcher(router, updates.keys[0]) as one:
        one.wait_for(lambda each: each.is_current, "the key")
        updates.start()
        everything.wait_for(lambda each: len(each.changes) > UPDATES // 4, "changes before the move")
        # The partition leaves its node for good; the new one restores meanwhile.
        fleet.reassign(0, active="b", standbys=("c",))
        everything.wait_for(lambda each: "b" in each.hosts, "the new owner")
        poll_until(lambda: updates.count > UPDATES, 30, "more updates")
        nodes["a"].kill()
        updates.join()
        everything.wait_for(lambda each: saw_everything(each, updates), "all changes", 60)
        one.wait_for(lambda each: len(each.changes) >= UPDATES // KEYS, "all changes of the key", 60)
    check(everything, updates)
    assert one.values == [value for key, value in updates.written[0] if key == updates.keys[0]]
    assert one.gaps == 0
    assert set(everything.hosts) <= {"a", "b", "c"}


def test_a_frozen_node_is_left(fleet: Fleet) -> None:
    nodes = {name: fleet.node(name) for name in ("a", "b")}
    router = fleet.router()
    fleet.assign(TaskAssignment("a", ("b",)), TaskAssignment("b", ("a",)))
    fleet.wait_running(nodes.values())
    updates = Updates(fleet)
    with watched(router) as watcher:
        watcher.wait_for(lambda each: len(each.positions) == 2, "both partitions")
        updates.start()
        watcher.wait_for(lambda each: len(each.changes) > UPDATES // 4, "changes before the freeze")
        nodes["a"].freeze()
        updates.join()
        watcher.wait_for(lambda each: saw_everything(each, updates), "all changes", 60)
        nodes["a"].thaw()
    check(watcher, updates)


class Transactions:
    """Commits random changes of all partitions until stopped; aborts some. `written`: what was committed."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        self._fleet, self._chance = fleet, chance
        self._keys = {partition: fleet.keys_in(partition, KEYS) for partition in range(PARTITIONS)}
        self.written: dict[int, list[tuple[str, str | None]]] = {partition: [] for partition in self._keys}
        self._numbers = itertools.count(1)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, name="transactions", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> int:
        """Return how many changes were committed."""
        self._ended.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive()
        return sum(map(len, self.written.values()))

    def _write(self) -> None:
        name = f"{self._fleet.application_id}-writer"
        producer = Producer({"bootstrap.servers": self._fleet.bootstrap, "transactional.id": name})
        producer.init_transactions(30.0)
        while not self._ended.wait(0.02):
            batch = {partition: self._changes(names) for partition, names in self._keys.items()}
            producer.begin_transaction()
            for partition, changes in batch.items():
                for key, value in changes:
                    producer.produce(self._fleet.changelog, value, key, partition)
            if self._chance.random() < 0.2:
                producer.abort_transaction(30.0)
                continue
            producer.commit_transaction(30.0)
            for partition, changes in batch.items():
                self.written[partition] += changes

    def _changes(self, keys: list[str]) -> list[tuple[str, str | None]]:
        numbers = itertools.islice(self._numbers, self._chance.randint(0, 10))
        return [(self._chance.choice(keys), str(number) if number % 7 else None) for number in numbers]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_chaos_under_the_real_controller(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, seed: int
) -> None:
    """Nodes are killed, frozen, stopped and started at random while transactions commit: no change lost or doubled."""
    chance = random.Random(seed)
    lag = {"min.compaction.lag.ms": "600000"}
    with (
        Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=PARTITIONS, changelog_config=lag) as fleet,
        controller_of(fleet) as controlled,
    ):
        nodes = {name: fleet.node(name) for name in ("a", "b", "c")}
        router = fleet.router()
        poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "the fleet to settle")
        transactions = Transactions(fleet, chance)
        with watched(router) as watcher:
            watcher.wait_for(lambda each: len(each.positions) == PARTITIONS, "every partition")
            transactions.start()
            for _ in range(12):
                strike(nodes[chance.choice(sorted(nodes))], chance, watcher)
                poll_until(lambda: settled(controlled, nodes, set(nodes)), 90, "the fleet to settle again")
                assert watcher.gaps == 0
            total = transactions.stop()
            watcher.wait_for(lambda each: len(each.changes) >= total, "all changes", 90)
        assert total > 2_000
        assert watcher.gaps == 0
        for partition, written in transactions.written.items():
            assert [(key, value) for number, _, key, value in watcher.changes if number == partition] == written


def strike(victim: ServerProcess, chance: random.Random, watcher: Watcher) -> None:
    """Freeze, kill or stop a node, until changes have come without it."""
    seen = len(watcher.changes)
    kind = chance.choice(["freeze", "kill", "stop"])
    {"freeze": victim.freeze, "kill": victim.kill, "stop": victim.stop}[kind]()
    watcher.wait_for(lambda each: len(each.changes) > seen + 200, f"changes after {kind} of {victim.name}", 60)
    (victim.thaw if kind == "freeze" else victim.start)()
