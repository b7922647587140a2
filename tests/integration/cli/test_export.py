"""`statehouse export` of a fleet while its store is written: the files are the changelog up to the moment's ends."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from processor.reports.commits import StoreChangelog
from statehouse.client import Client
from statehouse.client.frames import MOMENT
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.batch_cuts import is_kept
from statehouse.contract.moments import MomentToken
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import commits_topic
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from tests.support.batches import BatchWriter, Placed
from tests.support.fleet import Fleet, ServerProcess
from tests.support.kafka import read_all
from tests.support.meanwhile import Meanwhile
from tests.support.polling import poll_until

ENTRIES = "entries"
QUERY = "query-1"
PARTITIONS = 4
LOADED_AT_ONCE: Final = 50_000
CHANGED: Final = 200
"""Entries that a batch writes or deletes."""
BATCHES_S: Final = 0.05
MORE_BATCHES: Final = 40
"""More than stay by their ids alone."""


class Writing:
    """A store, and a thread that writes a batch of it after the other."""

    def __init__(self, fleet: Fleet, entries: int) -> None:
        self._fleet, self._entries, self._random = fleet, entries, random.Random(entries)
        fleet.add_store(ENTRIES, committed=True, value_serde="bytes")
        changelogs = [StoreChangelog(ENTRIES, fleet.stores[ENTRIES].changelog_topic, PARTITIONS)]
        self._writer = BatchWriter(fleet.bootstrap, fleet.application_id, changelogs, QUERY)
        self.newest = -1
        self._work = Meanwhile(self._write_on, "writing")

    def load(self) -> None:
        """Write all entries once."""
        for begin in range(0, self._entries, LOADED_AT_ONCE):
            self._write(range(begin, min(self._entries, begin + LOADED_AT_ONCE)), deletes=False)

    def _write(self, numbers: Any, *, deletes: bool) -> None:
        records = []
        for number in numbers:
            key = b"entry-%07d" % number
            value = None if deletes and number % 7 == 0 else self._random.randbytes(20)
            records.append(Placed(ENTRIES, partition_for(key, PARTITIONS), key, value))
        self._writer.write(self.newest + 1, records)
        self.newest += 1

    def _write_on(self, stop: threading.Event) -> None:
        while not stop.wait(BATCHES_S):
            self._write(self._random.sample(range(self._entries), CHANGED), deletes=True)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Write meanwhile."""
        try:
            with self._work.going_on():
                yield
        finally:
            self._writer.close()

    def wait(self, batches: int) -> None:
        """Wait for so many more batches."""
        wanted = self.newest + batches
        poll_until(lambda: self._work.defect is not None or self.newest >= wanted, 120, f"batch {wanted}")


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("export"), tmp_path / "fleet", partitions=PARTITIONS) as fleet:
        yield fleet


def exporter(router: ServerProcess, folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "statehouse.cli", "export", ENTRIES, str(folder), "--raw", "--timeout", "30"]
    return subprocess.Popen(
        [*command, "--router", router.target, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str], timeout_s: float) -> str:
    """Wait for an export that ends well; return what it told on the way."""
    _, told = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, told
    return told


def wait_for_part(process: subprocess.Popen[str], folder: Path, partition: int, timeout_s: float) -> None:
    """Wait until the file of a partition is whole, or the export has ended."""
    file = folder / f"part-{partition:05}.parquet"
    poll_until(lambda: file.exists() or process.poll() is not None, timeout_s, file.name)


def killed(router: ServerProcess, tmp_path: Path, timeout_s: float) -> Path:
    """Have an export killed when the first file of several is whole; return its folder. Its moment needs a lease."""
    for attempt in range(5):
        folder = tmp_path / f"killed-{attempt}"
        process = exporter(router, folder)
        wait_for_part(process, folder, 0, timeout_s)
        process.send_signal(signal.SIGKILL)
        _, told = process.communicate(timeout=30.0)
        assert process.returncode in {0, -signal.SIGKILL}, told
        if not (folder / "manifest.json").exists():
            batch_id = json.loads((folder / "unfinished.json").read_text())["batch_id"]
            if not is_kept(batch_id, batch_id + MORE_BATCHES):
                return folder
    raise AssertionError("it was quicker each time, or its moment stays by itself")


def replayed(fleet: Fleet, batch_id: int) -> dict[int, list[tuple[bytes, bytes, int]]]:
    """Return what each partition's changelog has up to the end of a batch, as the commits topic says it."""
    topic = commits_topic(fleet.application_id)
    commits = [commits_pb2.Commit.FromString(value) for _, value in read_all(fleet.bootstrap, topic) if value]
    ends = next(
        {each.partition: each.offset for each in commit.changelog_ends}
        for commit in commits
        if commit.store == ENTRIES and commit.batch_id == batch_id
    )
    options = {"group.id": "replay", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(
        {"bootstrap.servers": fleet.bootstrap, "isolation.level": "read_committed", "fetch.wait.max.ms": 10, **options}
    )
    found: dict[int, dict[bytes, tuple[bytes, int]]] = {partition: {} for partition in range(PARTITIONS)}
    unfinished = set(range(PARTITIONS))

    def is_at_end() -> bool:
        for message in consumer.consume(20_000, timeout=0.1):
            partition = message.partition()
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                unfinished.discard(partition)
            elif message.offset() >= ends.get(partition, 0):
                unfinished.discard(partition)
            elif message.value() is None:
                found[partition].pop(message.key(), None)
            else:
                found[partition][message.key()] = message.value(), message.timestamp()[1]
        return not unfinished

    try:
        topic = fleet.stores[ENTRIES].changelog_topic
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        poll_until(is_at_end, 240, "the ends of the batch")
    finally:
        consumer.close()
    return {
        partition: [(key, *entry) for key, entry in sorted(entries.items())] for partition, entries in found.items()
    }


def entries_in(table: Any) -> list[tuple[bytes, bytes, int]]:
    times = [round(each.timestamp() * 1_000) for each in table.column("timestamp").to_pylist()]
    return list(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), times, strict=True))


def exported(folder: Path) -> dict[int, list[tuple[bytes, bytes, int]]]:
    told = json.loads((folder / "manifest.json").read_text())
    assert {each.name for each in folder.iterdir()} == {"manifest.json", *(part["file"] for part in told["parts"])}
    found = {}
    for part in told["parts"]:
        found[part["partition"]] = entries_in(pq.read_table(folder / part["file"]))
        assert len(found[part["partition"]]) == part["entries"]
    return found


def batch_of(folder: Path) -> int:
    number: int = json.loads((folder / "manifest.json").read_text())["batch_id"]
    return number


def started(fleet: Fleet) -> tuple[dict[str, ServerProcess], ServerProcess]:
    nodes = {name: fleet.node(name) for name in ("n1", "n2")}
    router = fleet.router()
    pairs = (TaskAssignment("n1", ("n2",)), TaskAssignment("n2", ("n1",)))
    fleet.assign(*[pairs[partition % 2] for partition in range(PARTITIONS)])
    fleet.wait_running(nodes.values(), 300.0)

    def shows_a_moment() -> bool:
        with Client(router.target, timeout=30.0) as client, client.moment() as moment:
            try:
                return moment.count(ENTRIES).count > 0
            except LookupFailure:
                return False

    poll_until(shows_a_moment, 120, "the first batch")
    return nodes, router


@pytest.mark.feature("store-exported")
@pytest.mark.timeout(240)
def test_an_export_is_the_changelog_up_to_its_moment_and_goes_on_when_it_was_killed(
    fleet: Fleet, tmp_path: Path
) -> None:
    (tmp_path / "fleet").mkdir(exist_ok=True)
    writing = Writing(fleet, 12_000)
    writing.load()
    _, router = started(fleet)
    with writing.going_on():
        folder = killed(router, tmp_path, 60.0)
        writing.wait(MORE_BATCHES)
        ended(exporter(router, folder, "--resume"), 60.0)
        ended(exporter(router, tmp_path / "at-once"), 60.0)
        with Client(router.target, timeout=30.0) as client:
            table = client.to_arrow(ENTRIES, raw=True)
    moment = MomentToken.parse(table.schema.metadata[MOMENT.encode()].decode())
    assert entries_in(table) == [entry for part in replayed(fleet, moment.batch(QUERY) or 0).values() for entry in part]
    for each in (folder, tmp_path / "at-once"):
        assert exported(each) == replayed(fleet, batch_of(each))
    assert batch_of(folder) < batch_of(tmp_path / "at-once") - MORE_BATCHES


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_million_entries_are_exported_while_they_are_written_and_a_node_dies(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir(exist_ok=True)
    writing = Writing(fleet, 1_000_000)
    writing.load()
    nodes, router = started(fleet)
    with writing.going_on():
        folder = killed(router, tmp_path, 300.0)
        writing.wait(MORE_BATCHES)
        process = exporter(router, folder, "--resume")
        wait_for_part(process, folder, 1, 300.0)
        nodes["n1"].kill()
        ended(process, 600.0)
        nodes["n1"].start()
        fleet.wait_running([nodes["n1"]], 300.0)
        ended(exporter(router, tmp_path / "at-once"), 600.0)
    for each in (folder, tmp_path / "at-once"):
        assert exported(each) == replayed(fleet, batch_of(each))
