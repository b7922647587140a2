"""A disk that stalls costs the tasks on it, not the node's heartbeats; and a stop ends all the same."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from query_service.states.checkpoint import Checkpoint
from query_service.stores.rocksdb_engine import RocksDBEngine
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.membership import decode_member
from statehouse.contract.topology import members_topic
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess, confirmed
from tests.support.kafka import read_all_with_timestamps
from tests.support.lookups import LookupLoad
from tests.support.polling import poll_until
from tests.support.proxy import proxy_of
from tests.support.stalling_disk import StallingDisk, stalling_disk

INTERVAL_MS = 500
SESSION_MS = 3_000
ENGINES = ("go", "python")
MARGIN_MS = 500
"""A busy machine may be late by so much."""


def test_the_disk_stalls_and_goes_on(tmp_path: Path) -> None:
    with stalling_disk(tmp_path / "disk") as disk:
        file = disk.path / "file"
        file.write_text("before")
        writing = threading.Thread(target=lambda: file.write_text("after"), daemon=True)
        with disk.stalled():
            writing.start()
            writing.join(0.5)
            assert writing.is_alive()
        writing.join(20)
        assert file.read_text() == "after"
    assert not (tmp_path / "disk").is_mount()


def test_a_key_that_is_not_in_memory_holds_up_no_thread_but_its_own(tmp_path: Path) -> None:
    """A read that held the interpreter would end this test only by its time limit."""
    with stalling_disk(tmp_path / "disk") as disk:
        folder = disk.path / "store"
        engine = RocksDBEngine(folder)
        keys = [b"%04d" % number for number in range(1_000)]
        engine.write({"default": [(key, os.urandom(10_000)) for key in keys]}, Checkpoint("t", "id", 1, 1))
        engine.close()  # the entries go to a file
        engine = RocksDBEngine(folder)
        assert engine.get("default", keys[0]) is not None
        forget(folder)
        found: list[bytes | None] = []
        reading = threading.Thread(target=lambda: found.extend(engine.get_many("default", [keys[500], keys[900]])))
        with disk.stalled():
            reading.start()
            poll_until(lambda: reads_on_disk(reading), 20, "the thread to wait for the disk")
            assert engine.get_many("default", [keys[0], b"absent"])[1] is None
            assert reading.is_alive()
        reading.join(20)
        assert [len(value or b"") for value in found] == [10_000, 10_000]
        engine.close()


def forget(folder: Path) -> None:
    """Have the kernel forget what it has of stores' files."""
    for file in folder.rglob("*.sst"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def test_a_key_that_is_not_in_memory_holds_up_no_other_lookup_of_the_program(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    keys = [f"{number:03d}" for number in range(300)]
    warm, cold = keys[0], keys[150]
    with (
        stalling_disk(tmp_path / "disk") as disk,
        Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet,
        ThreadPoolExecutor() as threads,
    ):
        fleet.put({key: os.urandom(5_000).hex() for key in keys})
        node = fleet.node("n1", engine="go", state_dir=disk.path)
        fleet.assign(TaskAssignment("n1"))
        fleet.wait_running([node])
        node.stop()
        node.start()  # with nothing in memory
        fleet.wait_running([node])

        @contextmanager
        def read_stalled(key: str) -> Iterator[Future[query_service_pb2.GetResponse]]:
            """Read a key while the disk stalls; go on when the program waits for the disk, or has answered."""
            forget(disk.path)
            pid = proxy_of(node.pid)
            with disk.stalled():
                reading = threads.submit(node.get, key, timeout=60)
                poll_until(lambda: reading.done() or any(map(waits_for_disk, threads_of(pid))), 20, "a read to begin")
                yield reading
            assert reading.result(20).found

        def is_in_file(key: str) -> bool:
            with read_stalled(key) as reading:
                return not wait([reading], 2).done  # the thread that waits for the disk may be another's

        poll_until(lambda: is_in_file(keys[250]), 30, "what the store's log had to be in files")
        assert confirmed(node, warm).found
        with read_stalled(cold) as reading:
            began = time.monotonic()
            for _ in range(100):
                assert node.get(warm).found
            assert lookups_together(node, [warm, cold, warm]) == [True, Reason.WOULD_WAIT, True]
            assert node.node().state == "RUNNING"
            assert time.monotonic() - began < 10
            assert not reading.done()


def lookups_together(node: ServerProcess, keys: Sequence[str]) -> list[bool | Reason]:
    """Ask for keys as a router does for several callers; return whether each is found, or why that is not known."""
    batch = query_service_pb2.BatchGetRequest()
    for key in keys:
        batch.requests.add(store=STORE, key=types_pb2.Key(text=key)).forwarding.epoch = node.node().epoch
    results = node.call(node.query.BatchGet, batch).results
    return [
        result.response.found if result.HasField("response") else LookupFailure.from_proto(result.error).reason
        for result in results
    ]


def threads_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


@dataclass(frozen=True, slots=True)
class Placed:
    """A fleet whose partition 0 is on n1's disk, which stalls, and on n2's; partition 1 is on n2's alone."""

    fleet: Fleet
    disk: StallingDisk
    n1: ServerProcess
    n2: ServerProcess
    router: ServerProcess

    def block(self) -> None:
        """Let n1 meet its disk, and wait until it no longer runs."""
        self.fleet.put(dict.fromkeys(self.fleet.keys_in(0, 100), "written meanwhile"))
        pids = {self.n1.pid, proxy_of(self.n1.pid)}
        poll_until(
            lambda: any(waits_for_disk(thread) for pid in pids for thread in threads_of(pid)),
            20,
            "n1 to wait for its disk",
        )

    def heartbeats(self) -> list[tuple[int, int]]:
        """Return n1's heartbeats in the members topic: when each was written (epoch ms), its number."""
        records = read_all_with_timestamps(self.fleet.bootstrap, members_topic(self.fleet.application_id))
        return [
            (at, decode_member(key, value, at, at).heartbeat)
            for key, value, at in records
            if key == b"n1" and value is not None
        ]

    def widest_gap_ms(self, since_ms: int) -> int:
        """Return the longest time between two of n1's heartbeats."""
        heartbeats = [(at, number) for at, number in self.heartbeats() if at >= since_ms - SESSION_MS]
        assert len({number for _, number in heartbeats}) == len(heartbeats), "a number read twice counts once"
        times = [at for at, _ in heartbeats]
        return max(after - before for before, after in pairwise(times))


def reads_on_disk(reading: threading.Thread) -> bool:
    """Whether this thread waits for a stalling disk. Others may, too: RocksDB writes its log now and then."""
    assert reading.is_alive(), "what it reads was in memory"
    return waits_for_disk(Path(f"/proc/self/task/{reading.native_id}"))


def waits_for_disk(thread: Path) -> bool:
    """Whether a thread waits for a stalling disk, by what in the kernel it waits in; one that has ended doesn't."""
    try:
        waits_in = (thread / "wchan").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(word in waits_in for word in ("fuse", "request_wait"))


@contextmanager
def placed(kafka: EmbeddedKafka, name: str, directory: Path, engine: str) -> Iterator[Placed]:
    with (
        stalling_disk(directory / "disk") as disk,
        Fleet(
            kafka.bootstrap, name, directory, heartbeat_interval_ms=INTERVAL_MS, session_timeout_ms=SESSION_MS
        ) as fleet,
    ):
        fleet.put(dict.fromkeys([*fleet.keys_in(0, 100), *fleet.keys_in(1, 100)], "before"))
        n1 = fleet.node(
            "n1",
            engine=engine,
            state_dir=disk.path,
            checkpoint_interval_ms=1_000,
            stop_grace_ms=100,
            drain_timeout_ms=1_000,
        )
        n2, router = fleet.node("n2"), fleet.router()
        fleet.assign(TaskAssignment("n1", ("n2",)), TaskAssignment("n2"))
        fleet.wait_running([n1, n2])
        for partition in (0, 1):
            assert router.get(fleet.keys_in(partition)[0], timeout=30).found
        yield Placed(fleet, disk, n1, n2, router)


@pytest.mark.parametrize("engine", ENGINES)
def test_heartbeats_go_on_while_the_disk_stalls(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, engine: str
) -> None:
    with placed(kafka, unique_name("app"), tmp_path, engine) as at:
        key, began_ms = at.fleet.keys_in(0)[0], round(time.time() * 1000)
        on_both = LookupLoad(at.router.target, STORE, at.fleet.keys_in(0, 100), rate=20)
        on_n2 = LookupLoad(at.router.target, STORE, at.fleet.keys_in(1, 100), rate=20)
        if engine == "go":  # who writes reads whether a key is new: what it reads is to be in memory
            poll_until(lambda: any(at.disk.path.rglob("*.sst")), 20, "the entries to be in files")
            for each in at.fleet.keys_in(0, 100):
                assert at.n1.get(each).found
        with on_both, on_n2, at.disk.stalled():
            at.block()
            if engine == "go":  # a save waits, and nothing else
                at.fleet.put({key: "written in the stall"})
                poll_until(lambda: shown(at.n1, key) == "written in the stall", 30, "n1 to follow")
            until_ms = time.time() * 1000 + 2 * SESSION_MS
            poll_until(
                lambda: any(beat[0] > until_ms for beat in at.heartbeats()), 60, "heartbeats for two session timeouts"
            )
        assert not on_n2.failures
        assert not on_both.failures, "the other replica answers"
        assert at.widest_gap_ms(began_ms) <= 2 * INTERVAL_MS + MARGIN_MS
        at.fleet.wait_running([at.n1])
        poll_until(lambda: shown(at.n1, key).startswith("written"), 30, "n1 to catch up")


def shown(node: ServerProcess, key: str) -> str:
    """Return a key's value; nothing while the read waits for the disk, which may have an older value in files."""
    try:
        return node.get(key).value.text
    except LookupFailure as failure:
        assert failure.reason is Reason.ATTEMPT_TIMED_OUT  # noqa: PT017 - nothing else is right
        return ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "ended_with", "left"),
    [("go", 1, "stores, and their last checkpoints"), ("python", -signal.SIGKILL, "did not begin to stop")],
    ids=ENGINES,
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_while_the_disk_stalls_and_says_what_it_left(
    kafka: EmbeddedKafka,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    number: int,
    engine: str,
    ended_with: int,
    left: str,
) -> None:
    with placed(kafka, unique_name("app"), tmp_path, engine) as at:
        with at.disk.stalled():
            at.block()
            # The bound: drain_timeout_ms, stop_grace_ms, 30 s to close, 5 s for what the node itself would do.
            code = at.n1.stop(number, timeout_s=50)
        assert "the stop takes too long" in at.n1.log
        assert (code, left in at.n1.log) == (ended_with, True)
        at.n1.start()
        at.fleet.wait_running([at.n1], 60)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_minute(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, engine: str) -> None:
    """Other nodes' tasks are as fast as before, and no heartbeat is late. It measures: a quiet machine is needed."""
    with placed(kafka, unique_name("app"), tmp_path, engine) as at:
        with LookupLoad(at.router.target, STORE, at.fleet.keys_in(1, 100), rate=100) as load:
            poll_until(lambda: len(load.answers()) > 1_000, 60, "lookups that warm up")
            warm = time.monotonic()
            poll_until(lambda: len(load.answers(warm)) > 3_000, 60, "lookups before")
            began_ms, began = round(time.time() * 1000), time.monotonic()
            with at.disk.stalled():
                at.block()
                blocked = time.monotonic()
                poll_until(lambda: time.monotonic() > blocked + 60, 70, "a minute")
            ended = time.monotonic()
        assert not load.failures
        before_ms = percentile_99_ms(load, warm, began)
        during_ms = percentile_99_ms(load, began, ended)
        gap_ms = at.widest_gap_ms(began_ms)
        sys.stdout.write(
            f"\np99 of n2's tasks {before_ms:.1f} ms before, {during_ms:.1f} ms during; heartbeats {gap_ms} ms apart\n"
        )
        assert gap_ms <= 2 * INTERVAL_MS
        assert during_ms <= 2 * before_ms
        at.fleet.wait_running([at.n1], 60)


def percentile_99_ms(load: LookupLoad, since: float, until: float) -> float:
    took = [lookup.took_s * 1000 for lookup in load.answers(since) if lookup.due_at < until]
    return statistics.quantiles(took, n=100)[-1]
