"""A job that knows nothing of this project, and `statehouse attach` next to it, each killed once."""

from __future__ import annotations

import hashlib
import json
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Message

from bench.cores import CoresLimit
from processor.attach.attach_processor import attach_processor
from processor.attach.attachment import AttachedState, Attachment
from processor.attach.columns.mapping import EntryMapping
from processor.run.processor import Processor
from processor.run.start_check import last_commits
from processor.run.supervision import QueryDied
from processor.settings import ProcessorSettings
from processor.testing import shared_session
from statehouse.client import Client
from statehouse.contract.batch_cuts import batch_in
from statehouse.contract.topology import changelog_topic
from statehouse.errors import LookupFailure
from statehouse.local.jars import resolve_jars
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import ProcessorProcess, kill_with_jvm, messages, store_of
from tests.support.fleet import Servers
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until

STORE: Final = "totals"
USERS: Final = 20
_ROOT: Final = Path(__file__).resolve().parents[3]
_JOB: Final = _ROOT / "tests" / "support" / "foreign_job.py"

State = dict[bytes, bytes]


def value(count: int, total: int) -> bytes:
    return b'{"n":%d,"total":%d}' % (count, total)


class Job:
    """The job: counts and sums by user, of a topic with one partition."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        directory: Path,
        provider: str,
        trigger: str = "0 seconds",
        per_batch: int = 50,
    ) -> None:
        self.checkpoint = directory / "job"
        jars = ",".join(map(str, resolve_jars("spark")))
        given = [bootstrap, topic, str(self.checkpoint), provider, trigger, jars, str(per_batch)]
        self._command = [sys.executable, str(_JOB), *given]
        self._log = directory / "job.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """End it with its JVM."""
        assert self._process is not None
        kill_with_jvm(self._process)

    def took_s(self, batch_id: int) -> float:
        """How long a batch took, from its plan to its commit."""
        planned, committed = (self.checkpoint / log / str(batch_id) for log in ("offsets", "commits"))
        return committed.stat().st_mtime - planned.stat().st_mtime

    @property
    def batches(self) -> list[int]:
        return sorted(int(each.name) for each in (self.checkpoint / "commits").glob("*") if each.name.isdigit())

    def newest_after(self, batch_id: int) -> int:
        """Wait for a batch after this one; return the newest."""
        poll_until(lambda: max(self.batches) > batch_id, 60, "the next batch")
        return max(self.batches)

    def offset_of(self, batch_id: int) -> int:
        lines = (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        ((partitions,),) = [json.loads(line).values() for line in lines[2:]]
        return int(partitions["0"])

    def digest(self) -> str:
        """Return a digest of all that is in its checkpoint, with the times of changes."""
        found = hashlib.sha256()
        for path in sorted(self.checkpoint.rglob("*")):
            content = path.read_bytes() if path.is_file() else b""
            found.update(f"{path} {path.stat().st_mtime_ns}".encode() + content)
        return found.hexdigest()


class Records:
    """What the job reads, and what each number of records adds up to."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.states: list[State] = [{}]
        self._sums: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])

    def write(self, count: int) -> None:
        first = len(self.states) - 1
        numbers = range(first, first + count)
        produce(self._bootstrap, self._topic, [(f"u{n * 7 % USERS}".encode(), str(n).encode()) for n in numbers])
        for n in numbers:
            sums = self._sums[n * 7 % USERS]
            sums[0], sums[1] = sums[0] + 1, sums[1] + n
            self.states.append({**self.states[-1], f"u{n * 7 % USERS}".encode(): value(*sums)})


class Attach(ProcessorProcess):
    """`statehouse attach` as a process."""

    def __init__(self, bootstrap: str, application_id: str, directory: Path, job: Job, *options: str) -> None:
        program = (sys.executable, "-m", "statehouse.cli", "attach", "--master", "local[2]")
        super().__init__("--store", bootstrap, directory, program=program)
        self._command = [
            *(*program, "--store", STORE, "--bootstrap", bootstrap, "--application-id", application_id),
            *("--checkpoint", str(job.checkpoint), "--value", "n=count", "--value", "total=sum"),
            *("--heartbeat-interval-ms", "200", "--session-timeout-ms", "6000", *options),
        ]

    def run_by(self, prefix: Sequence[str]) -> None:
        self._command = [*prefix, *self._command]


def check_history(records: Sequence[Message], allowed: Sequence[State]) -> None:
    """Each partition has had the states of batches only, in their order. Records of a batch have its time."""
    for _, of_partition in groupby(records, key=lambda record: record.partition()):
        listed = list(of_partition)
        keys = {record.key() for record in listed}
        shown = [{key: each for key, each in state.items() if key in keys} for state in allowed]
        content: State = {}
        at = 0
        for _, of_batch in groupby(listed, key=lambda record: record.timestamp()[1]):
            for record in of_batch:
                if record.value() is None:
                    content.pop(record.key(), None)
                else:
                    content[record.key()] = record.value()
            at = next((number for number in range(at, len(shown)) if shown[number] == content), -1)
            assert at >= 0, f"no batch had {content}"


def attacher(bootstrap: str, application_id: str, job: Job) -> Processor:
    """Ours in this process, as `statehouse attach` makes it."""
    columns = EntryMapping(values={"n": "count", "total": "sum"})
    state = AttachedState(str(job.checkpoint), STORE, columns=columns, partitions=2)
    attachment = Attachment(application_id, [state])
    settings = ProcessorSettings(bootstrap=bootstrap, heartbeat_interval_ms=200, session_timeout_ms=6_000)
    return attach_processor(attachment, settings)


def start(made: Processor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.start()


@pytest.mark.feature("statehouse-attach-serves")
@pytest.mark.feature("batch-published-once")
@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_killed_job_and_a_replaced_attach_show_only_batches(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    application_id, topic = unique_name("shop"), unique_name("clicks")
    create_topic(kafka.bootstrap, topic)
    records = Records(kafka.bootstrap, topic)
    records.write(400)
    job = Job(kafka.bootstrap, topic, tmp_path, "changelog")
    job.start()
    first, second = (attacher(kafka.bootstrap, application_id, job) for _ in range(2))
    with Servers(kafka.bootstrap, application_id, tmp_path) as servers:
        servers.node("n1")
        router = servers.router()
        try:
            poll_until(lambda: job.batches, 120, "a batch of the job")
            start(first)

            def published() -> int:
                record = last_commits(kafka.bootstrap, application_id, [STORE]).get(STORE)
                return -1 if record is None else record.batch_id

            poll_until(lambda: published() >= 0, 120, "a batch")
            job.kill()
            records.write(400)
            job.start()
            # The first one lives on, and may be in the middle of a batch.
            start(second)
            poll_until(lambda: published() in job.batches and job.offset_of(published()) == 800, 120, "the last batch")
            poll_until(lambda: has_ended(first), 30, "the first one to see that it was replaced")
            batches = [records.states[job.offset_of(batch)] for batch in job.batches]
            job.kill()
            digest = job.digest()
            with Client(router.target) as client:
                expected = {key.decode(): json.loads(each) for key, each in records.states[-1].items()}
                poll_until(lambda: served(client) == expected, 30, "the state to be served")
                # The sources have nothing beyond the last batch: the age says so, though the job is dead.
                poll_until(lambda: (client.get(STORE, "u3").processor_age_ms or 9e9) < 1_000, 10, "a report")
                assert client.get(STORE, "u3").input_backlog == 0
                produce(kafka.bootstrap, topic, [(b"u3", b"1")])
                poll_until(lambda: (client.get(STORE, "u3").processor_age_ms or 0) > 2_000, 30, "the age to grow")
            assert job.digest() == digest
        finally:
            job.kill()
            first.stop()
            second.stop()
    changelog = messages(kafka.bootstrap, changelog_topic(application_id, STORE))
    assert {batch_in(each.headers()) for each in changelog} <= set(job.batches)
    check_history(changelog, [{}, *batches])
    assert store_of(changelog) == records.states[-1]


def has_ended(made: Processor) -> bool:
    looks = iter([False, True])
    try:
        made.wait(lambda: next(looks))
    except QueryDied:
        return True
    return False


def served(client: Client) -> Mapping[Any, Any]:
    try:
        return {entry.key: entry.value for entry in client.scan(STORE)}
    except LookupFailure:
        return {}


@pytest.mark.feature("statehouse-attach-serves")
@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("provider", ["changelog", "default"])
def test_ten_kills_of_the_job_and_ten_of_ours(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, provider: str
) -> None:
    application_id, topic = unique_name("shop"), unique_name("clicks")
    create_topic(kafka.bootstrap, topic)
    records = Records(kafka.bootstrap, topic)
    records.write(200)
    job = Job(kafka.bootstrap, topic, tmp_path, provider, per_batch=20)
    attach = Attach(kafka.bootstrap, application_id, tmp_path, job, "--partitions", "2")
    batches: dict[int, State] = {}

    def note_batches() -> bool:
        """Before Spark removes what says where they end."""
        for batch in job.batches:
            if batch not in batches:
                batches[batch] = records.states[job.offset_of(batch)]
        return True

    try:
        job.start()
        poll_until(lambda: job.batches, 120, "a batch of the job")
        attach.start()
        chance = random.Random(17)
        for _ in range(10):
            records.write(100)
            seen = len(attach.events("batch committed"))
            attach.wait_for("batch committed", seen + 1)
            note_batches()
            for kill in chance.sample([job.kill, attach.kill], 2):
                pause(chance.uniform(0.0, 0.5), note_batches)
                kill()
            job.start()
            attach.start()
        poll_until(lambda: note_batches() and job.offset_of(max(batches)) == len(records.states) - 1, 180, "the job")

        def all_is_published() -> bool:
            return any(event["batch_id"] == max(batches) for event in attach.events("batch committed"))

        poll_until(lambda: note_batches() and all_is_published(), 120, "the last batch")
        assert attach.stop() == 0
    finally:
        job.kill()
        if attach.is_running:
            attach.kill()
    changelog = messages(kafka.bootstrap, changelog_topic(application_id, STORE))
    check_history(changelog, [{}, *(batches[number] for number in sorted(batches))])
    assert store_of(changelog) == records.states[-1]
    with shared_session() as session:
        session._jsparkSession.streams()
        state = session.read.format("statestore").load(str(job.checkpoint)).collect()
    assert store_of(changelog) == {row.key[0].encode(): value(*row.value) for row in state}


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_job_is_not_slowed_down_by_more_than_by_as_much_other_work(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    application_id, topic, group = unique_name("shop"), unique_name("clicks"), CoresLimit(unique_name("group")[-20:])
    create_topic(kafka.bootstrap, topic)
    records = Records(kafka.bootstrap, topic)
    records.write(500)
    job = Job(kafka.bootstrap, topic, tmp_path, "changelog", "10 seconds", per_batch=100_000)
    attach = Attach(kafka.bootstrap, application_id, tmp_path, job, "--partitions", "2")
    attach.run_by(group.prefix)
    beside: dict[str, list[float]] = {"attach": [], "other work": []}
    delays: list[float] = []

    def measure(name: str, batches: int) -> None:
        newest = max(job.batches)
        for _ in range(batches):
            records.write(500)
            newest = job.newest_after(newest)
            beside[name].append(job.took_s(newest))

    try:
        job.start()
        poll_until(lambda: job.batches, 120, "a batch of the job")
        attach.start()
        attach.wait_for("batch committed")
        measure("attach", 3)
        for _ in range(2):
            if not attach.is_running:
                attach.start()
                attach.wait_for("batch committed")
                measure("attach", 3)
            beside["attach"] = beside["attach"][: len(beside["other work"])]
            before, began = group.used_s, time.monotonic()
            measure("attach", 8)
            cores = (group.used_s - before) / (time.monotonic() - began)
            delays += [event["took_ms"] / 1000 for event in attach.events("batch committed")[-8:]]
            attach.kill()
            group.allow(max(cores, 0.01))
            burner = subprocess.Popen([*group.prefix, sys.executable, "-c", "while True: pass"])
            try:
                measure("other work", 8)
            finally:
                burner.kill()
                burner.wait()
                group.allow(0.5)
        figures = {name: statistics.median(took) for name, took in beside.items()}
        found = {"cores": cores, "medians": figures, "batches_s": beside, "written_in_s": delays}
        (tmp_path / "figures.json").write_text(json.dumps(found))
        assert figures["attach"] <= 1.05 * figures["other work"], found
    finally:
        job.kill()
        if attach.is_running:
            attach.kill()
        group.close()


def pause(seconds: float, meanwhile: Callable[[], bool]) -> None:
    """Let the processes run on for a while, so that the next kill hits them anywhere."""
    deadline = time.monotonic() + seconds
    poll_until(lambda: meanwhile() and time.monotonic() >= deadline, seconds + 5, "the moment of a kill")
