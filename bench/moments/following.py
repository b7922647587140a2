"""What a node takes to follow two changelogs in turn: one whose records name their batches, and one whose don't.

The node keeps moments of the first one: as many as there are once `WARM_UP` batches are written. A batch comes
each second. What a node takes without any doesn't count.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import MappingProxyType
from typing import Final

from confluent_kafka import Producer

from bench.data import key_of, value_of
from bench.moments.compared import Turn
from bench.records import create_topic, produce, record_count
from bench.shape import Shape, Side
from bench.sides.ours import Fleet
from bench.usage import cpu_seconds
from bench.waiting import wait_for
from processor.ownership.topics.control_topics import control_topics
from processor.reports.commits import CommitsPublisher, StoreChangelog
from statehouse.contract.assignment import Assignment, TaskAssignment, encode
from statehouse.contract.batch_cuts import HEADER, header_value
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import StoreSpec, SubTopology, TaskId, assignment_topic, changelog_topic
from statehouse.kafka import clients
from statehouse.kafka.topics import ensure_topics

PARTITIONS: Final = 8
KEYS: Final = 1_000_000
BATCH: Final = 20_000
WARM_UP: Final = 240
"""Batches of each before the first turn: then a partition with moments holds back as many bytes as it may."""
_WITHIN_S: Final = 600.0
_US_PER_S: Final = 1e6
_QUIET_S: Final = 1.0
_IDLE: Final = 0.1
"""Of a processor: a node that takes less has nothing left to be merged."""
_IDLE_S: Final = 10.0
_EVERY_S: Final = 1.0
"""A node that falls behind writes several batches in one go, unless it keeps moments."""


class _Changelog:
    """A store's changelog, its batches, and their reports."""

    def __init__(self, bootstrap: str, application_id: str, name: str, *, has_moments: bool) -> None:
        self.topic = changelog_topic(application_id, name)
        self.spec = StoreSpec(name, self.topic, PARTITIONS, 0, value_serde="string", committed=True)
        self._bootstrap, self._query, self._has_moments, self._next = bootstrap, name, has_moments, 0
        self._random = random.Random(1)  # noqa: S311 - no secret
        create_topic(bootstrap, self.topic, PARTITIONS, {"cleanup.policy": "compact"})
        produce(bootstrap, self.topic, PARTITIONS, range(KEYS))
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": self.topic,
                "linger.ms": 50,
                "queue.buffering.max.messages": 2 * BATCH,
            }
        )
        self._producer.init_transactions(_WITHIN_S)
        changelog = StoreChangelog(name, self.topic, PARTITIONS)
        self._reports = CommitsPublisher(bootstrap, application_id, name, [changelog])
        self._reports.start()

    def write(self, data: list[tuple[bytes, int]], values: list[bytes]) -> None:
        """Write a batch of random keys, and report it."""
        headers = [(HEADER, header_value(self._next))] if self._has_moments else []
        self._producer.begin_transaction()
        for _ in range(BATCH):
            key, partition = self._random.choice(data)
            value = self._random.choice(values)
            self._producer.produce(self.topic, key=key, value=value, partition=partition, headers=headers)
        self._producer.commit_transaction(_WITHIN_S)
        self._reports.publish(f"query-{self._query}", self._next, {})
        self._next += 1


class _Node:
    """A node that follows both changelogs."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._fleet = Fleet(Side.OURS, bootstrap, Shape(KEYS, PARTITIONS, nodes=1), directory, "followed")
        (self._name,) = self._fleet.node_names
        self.process = self._fleet.nodes[self._name]
        self._bootstrap, application_id = bootstrap, self._fleet.application_id
        ensure_topics(clients.admin(bootstrap, "bench"), control_topics(application_id, 1))
        self.changelogs = {
            has: _Changelog(bootstrap, application_id, f"with{'' if has else 'out'}", has_moments=has)
            for has in (False, True)
        }
        self._assign(application_id)

    def _assign(self, application_id: str) -> None:
        stores = {each.spec.name: each.spec for each in self.changelogs.values()}
        tasks = {TaskId(0, each): TaskAssignment(self._name) for each in range(PARTITIONS)}
        sub_topologies = {0: SubTopology(0, "query", PARTITIONS)}
        following = Assignment(
            1, "bench", "bench", MappingProxyType(stores), MappingProxyType(sub_topologies), MappingProxyType(tasks)
        )
        producer = Producer({"bootstrap.servers": self._bootstrap, "transactional.id": f"{application_id}-controller"})
        producer.init_transactions(_WITHIN_S)
        producer.begin_transaction()
        for key, value in encode(Assignment(), following)[1]:
            producer.produce(assignment_topic(application_id), key=key, value=value, partition=0)
        producer.commit_transaction(_WITHIN_S)

    def cpu(self) -> float:
        """Return the processor time of its processes, in seconds."""
        return cpu_seconds(self._fleet.pids.values())

    def used(self) -> float:
        """Return the processor time of its processes, in seconds, once it has all that is written and has merged it."""
        written = sum(record_count(self._bootstrap, each.topic, PARTITIONS) for each in self.changelogs.values())
        wait_for(
            lambda: sum(each.position for each in self._fleet.copies()) >= written, _WITHIN_S, "the node to follow"
        )
        wait_for(self._is_quiet, _WITHIN_S, "the node to merge")
        return self.cpu()

    def _is_quiet(self) -> bool:
        self.process.check()
        before = self.cpu()
        time.sleep(_QUIET_S)
        return self.cpu() - before < _IDLE * _QUIET_S


def followed(bootstrap: str, directory: Path, turns: int, batches: int) -> list[Turn]:
    """Follow so many batches in each turn; return what a record cost, in microseconds of all processors.

    Raises:
        BenchFailure: it took too long.
        ProcessFailed: the node ended.

    """
    node = _Node(bootstrap, directory)
    data = [(key := key_of(number).encode(), partition_for(key, PARTITIONS)) for number in range(KEYS)]
    values = [value_of(number).encode() for number in range(BATCH)]
    node.process.start()
    try:
        node.used()
        for changelog in node.changelogs.values():
            for _ in range(WARM_UP):
                changelog.write(data, values)
        used = node.used()
        time.sleep(_IDLE_S)
        idle, costs = (node.cpu() - used) / _IDLE_S, []
        for turn in range(turns):
            has, began, before = turn % 2 == 1, time.monotonic(), node.cpu()
            for number in range(1, batches + 1):
                node.changelogs[has].write(data, values)
                time.sleep(max(0.0, began + number * _EVERY_S - time.monotonic()))
            used = node.used() - before - idle * (time.monotonic() - began)
            costs.append(Turn(has, used * _US_PER_S / (batches * BATCH)))
        return costs
    finally:
        node.process.stop()
