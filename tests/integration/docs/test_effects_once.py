"""The example whose effects outside of Kafka happen exactly once, however often its process is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import create_topic
from tests.support.polling import poll_until

pytestmark = pytest.mark.timeout(120)

PARTITIONS = 3
KILLS = 5
RECORDS_A_KILL = 400
WAIT_S = 30.0


@contextmanager
def consumer(bootstrap: str, topic: str, database: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the example as a user does, until the context ends."""
    command = [sys.executable, "-m", "examples.effects_once.consumer", "--topic", topic]
    with subprocess.Popen(
        [*command, "--database", str(database)],
        env={**os.environ, "STATEHOUSE_BOOTSTRAP": bootstrap},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def notices(database: Path) -> list[tuple[str, str]]:
    """Return all effects, in the order in which they happened."""
    with closing(sqlite3.connect(database, timeout=WAIT_S)) as opened:
        has_table = opened.execute("SELECT count(*) FROM sqlite_master WHERE name = 'notices'").fetchone()[0]
        return opened.execute("SELECT program, tally FROM notices ORDER BY rowid").fetchall() if has_table else []


class Source:
    """Writes numbered records in transactions, and aborts every third transaction."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-source"})
        self._producer.init_transactions(WAIT_S)
        self._next = 0
        self.committed: list[tuple[str, str]] = []

    def write(self, count: int) -> None:
        for transaction in range(12):
            self._producer.begin_transaction()
            records = [(str(number), str(number)) for number in range(self._next, self._next + count // 12)]
            self._next += len(records)
            for key, value in records:
                self._producer.produce(self._topic, key=key, value=value, partition=int(key) % PARTITIONS)
            if transaction % 3 == 2:
                self._producer.flush(WAIT_S)
                self._producer.abort_transaction(WAIT_S)
            else:
                self._producer.commit_transaction(WAIT_S)
                self.committed += records


@pytest.mark.feature("side-effects-exactly")
def test_no_effect_is_lost_or_doubled_when_the_consumer_is_killed(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, database = unique_name("tallies"), tmp_path / "notices.db"
    create_topic(kafka.bootstrap, topic, PARTITIONS)
    source = Source(kafka.bootstrap, topic)
    for _ in range(KILLS):
        before = len(notices(database))
        with consumer(kafka.bootstrap, topic, database) as process:
            source.write(RECORDS_A_KILL)
            poll_until(lambda before=before: len(notices(database)) > before, WAIT_S, "some effects")
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT_S)
    with consumer(kafka.bootstrap, topic, database):
        poll_until(lambda: len(notices(database)) >= len(source.committed), WAIT_S, "all effects")
    happened = notices(database)
    for partition in range(PARTITIONS):
        of_partition = [int(key) for key, _ in happened if int(key) % PARTITIONS == partition]
        assert of_partition == [int(key) for key, _ in source.committed if int(key) % PARTITIONS == partition]


@pytest.mark.feature("side-effects-exactly")
def test_two_consumers_never_apply_the_same_record(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, database = unique_name("tallies"), tmp_path / "notices.db"
    create_topic(kafka.bootstrap, topic, PARTITIONS)
    source = Source(kafka.bootstrap, topic)
    with consumer(kafka.bootstrap, topic, database) as one, consumer(kafka.bootstrap, topic, database) as other:
        ended: list[subprocess.Popen[str]] = []

        def one_has_stopped() -> bool:
            source.write(12)
            ended[:] = [process for process in (one, other) if process.poll() is not None]
            return bool(ended)

        poll_until(one_has_stopped, WAIT_S, "one of the two to notice the other")
        poll_until(lambda: len(notices(database)) >= len(source.committed), WAIT_S, "all effects")
        assert len(ended) == 1
        (stopped,) = ended
        assert stopped.stdout is not None
        assert "another process follows" in stopped.stdout.read()
        assert stopped.returncode == 1
    assert sorted(notices(database)) == sorted(source.committed)


def test_records_that_are_gone_are_not_skipped(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, database = unique_name("tallies"), tmp_path / "notices.db"
    create_topic(kafka.bootstrap, topic, 1)
    with consumer(kafka.bootstrap, topic, database):
        poll_until(database.exists, WAIT_S, "the database")
        poll_until(lambda: _has_positions(database), WAIT_S, "its tables")
    with closing(sqlite3.connect(database)) as opened:
        opened.execute("INSERT INTO positions VALUES (?, 0, 17)", (topic,))
        opened.commit()
    with consumer(kafka.bootstrap, topic, database) as process:
        output, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, "no longer has the records" in output) == (1, True), output


def _has_positions(database: Path) -> bool:
    with closing(sqlite3.connect(database)) as opened:
        return bool(opened.execute("SELECT count(*) FROM sqlite_master WHERE name = 'positions'").fetchone()[0])
