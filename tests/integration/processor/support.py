"""An application's processor as a process of its own, and what it has written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from statehouse.control.v1 import commits_pb2
from statehouse.kafka import clients
from statehouse.kafka.offsets import end_offsets
from tests.support.kafka import unless
from tests.support.polling import poll_until
from tests.support.proxy import children_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).resolve().parents[3]
START_S = 150.0
CHECKED_WITHIN_S: Final = 300.0
# What a broker says that has just begun, or had no processor for so long that the cluster gave it up for a moment.
_NO_LEADER_NOW: Final = (
    KafkaError._NOENT,
    KafkaError._TIMED_OUT,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)


ON_TWO_CORES: Final = (sys.executable, "-m", "processor.cli", "--master", "local[2]")


class ProcessorProcess:
    """`statehouse process`, on two cores unless `program` runs it elsewhere; its log is read for what it says."""

    def __init__(
        self,
        topology: str,
        bootstrap: str,
        directory: Path,
        *options: str,
        program: Sequence[str] = ON_TWO_CORES,
        env: Mapping[str, str] | None = None,
        tree: Path = _ROOT,
    ) -> None:
        """Prepare; `tree` has the code."""
        self._tree = tree
        self._command = [*program, topology, "--bootstrap", bootstrap]
        self._env = None if env is None else {**os.environ, **env}
        self.checkpoint = directory / "checkpoint"
        self._command += ["--checkpoint-dir", self.checkpoint.as_uri(), *options]
        self.more_options: Sequence[str] = ()
        """What a start adds to its command."""
        self._log = directory / "processor.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._read_from = 0

    def start(self) -> None:
        self._read_from = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *self.more_options],
                cwd=self._tree,
                env=self._env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log events of that name since the last start."""
        with self._log.open("rb") as log:
            log.seek(self._read_from)
            lines = log.read().splitlines()
        found = []
        for line in lines:
            if line.startswith(b"{"):
                try:
                    event = json.loads(line)
                except ValueError:  # the last line, half written
                    continue
                if event.get("event") == name:
                    found.append(event)
        return found

    def wait_for(self, name: str, count: int = 1, timeout_s: float = START_S) -> list[dict[str, Any]]:
        def happened() -> list[dict[str, Any]]:
            assert self.is_running, f"the processor ended, with {self.exit_code}:\n{self.log_tail()}"
            events = self.events(name)
            return events if len(events) >= count else []

        return poll_until(happened, timeout_s, f"{count} {name!r} events")

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """End the driver as a crash would; its JVM sees that and ends too."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to Python alone."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, timeout_s: float = 60.0) -> int:
        assert self._process is not None
        # Two at the same time, as from a terminal's Ctrl-C and a supervisor: the second must not get in the way of the
        # first.
        self._process.send_signal(signal.SIGINT)
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout_s)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait(self, timeout_s: float) -> int:
        """Wait until it has ended on its own; return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def jvm_pids(self) -> list[int]:
        assert self._process is not None
        return sorted(children_of(self._process.pid))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def kill_with_jvm(process: subprocess.Popen[Any]) -> None:
    """End a program of PySpark by SIGKILL, with its JVM, which would go on for a moment."""
    if process.poll() is not None:
        return
    jvms = children_of(process.pid)
    process.kill()
    process.wait()
    for jvm in jvms:
        with suppress(ProcessLookupError):
            os.kill(jvm, signal.SIGKILL)
    poll_until(lambda: not any(is_alive(jvm) for jvm in jvms), 20, "the end of the job's JVM")


def messages(bootstrap: str, topic: str, within_s: float = 30.0) -> list[Message]:
    """Every committed record of a topic, in order of partition and offset.

    A transaction that commits shows in one partition after the other: those that are under way are waited for.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests-unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # a fetch that finds nothing reports the end
            "isolation.level": "read_committed",
        }
    )
    try:
        numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        unread = poll_until(lambda: _ends(bootstrap, topic, numbers), 30.0, f"the ends of {topic}")[0]
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        found: list[Message] = []

        def is_at_end() -> bool:
            for message in consumer.consume(1000, timeout=0.1):
                if message.error() is None:
                    found.append(message)
                    continue
                end = unread.get((topic, message.partition()), 0)
                if message.error().code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                    unread.pop((topic, message.partition()), None)
            return not unread

        poll_until(is_at_end, within_s, f"the end of {topic}")
    finally:
        consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def _ends(bootstrap: str, topic: str, numbers: Collection[int]) -> list[dict[tuple[str, int], int]]:
    """Return the ends of a topic's partitions; nothing while one has no leader, as a new topic's at first."""
    asked = [(topic, number) for number in numbers]
    ends = unless(_NO_LEADER_NOW, lambda: end_offsets(clients.admin(bootstrap, "tests"), asked))
    return [ends] if ends is not None and len(ends) == len(numbers) else []


@contextmanager
def writing_checksums(session: SparkSession) -> Iterator[None]:
    """Write files of checksums next to those of a checkpoint, as versions before did."""
    files = session._jvm.org.apache.hadoop.fs.FileSystem.getLocal(session._jsc.hadoopConfiguration())
    files.setWriteChecksum(True)
    try:
        yield
    finally:
        files.setWriteChecksum(False)


def store_of(records: Iterable[Message]) -> dict[bytes, bytes]:
    """What a changelog adds up to."""
    store: dict[bytes, bytes] = {}
    for record in records:
        if record.value() is None:
            store.pop(record.key(), None)
        else:
            store[record.key()] = record.value()
    return store


def headers(message: Message) -> dict[str, str]:
    return {name: value.decode() for name, value in message.headers() or []}


def commits(bootstrap: str, topic: str) -> Iterator[commits_pb2.Commit]:
    for message in messages(bootstrap, topic):
        yield commits_pb2.Commit.FromString(message.value())


def check_counts(bootstrap: str, changelog: str, sums: Mapping[str, Sequence[int]]) -> None:
    """Check every value that counters.py ever committed: of a key's first events, and of more than the one before.

    `sums` has, by key, what its first 0, 1, 2 ... events add up to.
    """
    newest: Counter[str] = Counter()
    for record in messages(bootstrap, changelog, CHECKED_WITHIN_S):
        key, value = record.key().decode(), json.loads(record.value())
        count = value["count"]
        assert value["sum"] == sums[key][count], f"{key}: {value} is not the sum of its first {count} events"
        assert count > newest[key], f"{key}: {value} came after {newest[key]} events were counted"
        newest[key] = count
    assert newest == {key: len(of_key) - 1 for key, of_key in sums.items()}


def check_rows(bootstrap: str, each: str, latest: str, sums: Mapping[str, Sequence[int]]) -> None:
    """Check the changelogs of every_way.py: each event is there once and in order, the latest ones are never older."""
    events: dict[str, dict[int, int]] = {key: {} for key in sums}
    for record in messages(bootstrap, each, CHECKED_WITHIN_S):
        key, value = record.key().decode(), json.loads(record.value())
        assert value["offset"] > next(reversed(events[key]), -1), f"{key}: {value} came again, or late"
        events[key][value["offset"]] = value["number"]
    numbers = {key: [after - before for before, after in pairwise(of_key)] for key, of_key in sums.items()}
    assert {key: list(of_key.values()) for key, of_key in events.items()} == numbers
    newest: dict[str, int] = {}
    for record in messages(bootstrap, latest, CHECKED_WITHIN_S):
        key, value = record.key().decode(), json.loads(record.value())
        assert value["number"] == events[key][value["offset"]], f"{key}: {value} is no event"
        assert value["offset"] > newest.get(key, -1), f"{key}: {value} came after {newest[key]}"
        newest[key] = value["offset"]
    assert newest == {key: max(of_key) for key, of_key in events.items() if of_key}
