"""A million entries are read as a DataFrame while nodes restart and keys change: each page is the changelog so far."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from statehouse.contract.assignment import TaskAssignment
from statehouse.kafka import clients
from statehouse.kafka.offsets import end_offsets
from statehouse.local.kafka import EmbeddedKafka
from tests.support.fleet import STORE, Fleet, ServerProcess, is_answered_by_active
from tests.support.polling import poll_until

ENTRIES: Final = 1_000_000
PARTITIONS: Final = 4
KEYS: Final = [f"key-{number:07}" for number in range(ENTRIES)]
FIRST: Final = frozenset(KEYS)
# The last keys stay as they are, so that the last page of a partition is known to have all that is left.
CHANGING: Final = KEYS[: ENTRIES * 9 // 10]
READS_AT_MOST: Final = 10

Changes = Mapping[str, list[tuple[int, str | None]]]
"""By key, the offsets and values of its records after the first one."""


class Disturber(threading.Thread):
    """Does something again and again until `stop`, which raises a failure."""

    def __init__(self, disturb: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._disturb, self._done = disturb, threading.Event()
        self._failure: BaseException | None = None
        self.times = 0
        self.start()

    def run(self) -> None:
        try:
            while not self._done.is_set():
                self._disturb()
                self.times += 1
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self._failure = error

    def stop(self) -> None:
        self._done.set()
        self.join(120)
        if self._failure is not None:
            raise self._failure


def ends_of(fleet: Fleet) -> dict[int, int]:
    admin = clients.admin(fleet.bootstrap, "tests")
    found = end_offsets(admin, [(fleet.changelog, number) for number in range(PARTITIONS)])
    return {partition: end for (_, partition), end in found.items()}


def changes_of(fleet: Fleet, starts: Mapping[int, int]) -> Changes:
    """Read the changelog from these offsets on."""
    found: dict[str, list[tuple[int, str | None]]] = defaultdict(list)
    left = {partition: end for partition, end in ends_of(fleet).items() if end > starts[partition]}
    consumer = Consumer({"bootstrap.servers": fleet.bootstrap, "group.id": "tests-unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(fleet.changelog, number, starts[number]) for number in left])

        def is_read() -> bool:
            for message in consumer.consume(10_000, timeout=0.2):
                assert message.error() is None
                value = message.value()
                found[message.key().decode()].append((message.offset(), None if value is None else value.decode()))
                if message.offset() + 1 >= left.get(message.partition(), 0):
                    left.pop(message.partition(), None)
            return not left

        poll_until(is_read, 60, "the changes")
    finally:
        consumer.close()
    return found


def value_at(changes: Changes, key: str, position: int) -> str | None:
    value: str | None = "first" if key in FIRST else None
    for offset, changed in changes.get(key, ()):
        if offset < position:
            value = changed
    return value


def check(fleet: Fleet, table: pa.Table, starts: Mapping[int, int], changes: Changes) -> None:
    """Each page is exactly the changelog up to its position, from the page before it to its own last key."""
    keys_of: dict[int, list[str]] = defaultdict(list)
    for key in sorted({*KEYS, *changes}):
        keys_of[fleet.partition_of(key)].append(key)
    columns = (table.column(name).to_pylist() for name in ("partition", "key", "value", "position"))
    rows_of: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
    for partition, *row in zip(*columns, strict=True):
        rows_of[partition].append(tuple(row))
    for partition, rows in rows_of.items():
        positions = [position for _, _, position in rows]
        assert positions == sorted(positions), "no page is older than the one before"
        assert positions[0] >= starts[partition]
        at = 0
        for key in keys_of[partition]:
            # The page that has the key, or the first one after it.
            expected = value_at(changes, key, rows[at][2])
            if rows[at][0] == key:
                assert rows[at][1] == expected, key
                at = min(at + 1, len(rows) - 1)
            else:
                assert rows[at][0] > key or at == len(rows) - 1
                assert expected is None, f"{key} is lost at {rows[at]}"
        assert rows[-1][0] == keys_of[partition][-1]
        assert len({key for key, _, _ in rows}) == len(rows), "nothing comes twice"


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    # Nothing is compacted away, so that the test can find afterwards what was at a position.
    kept = {"min.compaction.lag.ms": "3600000"}
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=PARTITIONS, changelog_config=kept) as made:
        yield made


@pytest.mark.feature("store-live-dataframe")
@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_million_entries_are_read_while_nodes_restart(spark: SparkSession, fleet: Fleet) -> None:
    for begin in range(0, ENTRIES, 100_000):
        fleet.put(dict.fromkeys(KEYS[begin : begin + 100_000], "first"))
    starts = ends_of(fleet)
    nodes = {name: fleet.node(name, checkpoint_interval_ms=1_000) for name in ("n1", "n2", "n3")}
    router = fleet.router()
    names = list(nodes)
    fleet.assign(*(TaskAssignment(names[n % 3], (names[(n + 1) % 3],)) for n in range(PARTITIONS)))
    fleet.wait_running(nodes.values(), 900)
    samples = [fleet.keys_in(number)[0] for number in range(PARTITIONS)]
    fleet.put(dict.fromkeys(samples, "there"))
    poll_until(lambda: all(is_answered_by_active(router, key) for key in samples), 60, "the router")
    boards = spark.read.format("statehouse").option("router", router.target).option("store", STORE)
    boards = boards.option("patience", "300").load()

    drawn = random.Random(7)
    written = 0

    def write() -> None:
        nonlocal written
        written += 1
        chosen = drawn.sample(CHANGING, 300)
        fleet.put(
            {key: f"{key}-{written}" for key in chosen[:200]}
            | dict.fromkeys(chosen[200:250])
            | {f"{key}-new": f"{written}" for key in chosen[250:]}
        )

    turn = 0

    def restart() -> None:
        nonlocal turn
        node: ServerProcess = nodes[names[turn % 3]]
        turn += 1
        node.stop()
        node.start()
        fleet.wait_running([node], 120)

    writer, restarter = Disturber(write), Disturber(restart)
    tables: list[pa.Table] = []
    try:
        while restarter.times < len(nodes) and len(tables) < READS_AT_MOST:
            tables.append(boards.toArrow())
    finally:
        restarter.stop()
        writer.stop()
    assert restarter.times >= len(nodes), "each node restarted"
    assert writer.times > 10
    changes = changes_of(fleet, starts)
    for table in tables:
        assert table.num_rows > ENTRIES * 0.9
        check(fleet, table, starts, changes)
    pages = {(row["partition"], row["position"]) for row in tables[-1].select(["partition", "position"]).to_pylist()}
    assert len(pages) > 10 * PARTITIONS, "it changed while it was read"
