"""Two nodes and one store of one partition: one has it, and the other one gets it again and again."""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

import grpc
from confluent_kafka import Producer

from bench.data import key_of
from bench.failure import BenchFailure
from bench.shape import Shape, Side
from bench.sides.ours import Fleet
from bench.waiting import wait_for
from processor.ownership.topics.control_topics import control_topics
from statehouse.contract.assignment import Assignment, TaskAssignment, encode
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import StoreSpec, SubTopology, TaskId, assignment_topic, changelog_topic
from statehouse.kafka import clients
from statehouse.kafka.topics import TopicSpec, ensure_topics
from statehouse.local.ports import LOOPBACK
from statehouse.local.process import ManagedProcess
from statehouse.v1 import node_service_pb2, node_service_pb2_grpc, query_service_pb2, query_service_pb2_grpc, types_pb2

STORE: Final = "latest"
_TASK: Final = TaskId(0, 0)
_WITHIN_S: Final = 1_800.0
_POLL_S: Final = 0.02
_QUEUED: Final = 500_000
_CHUNK: Final = 1 << 20
_VALUES: Final = 4_096
_CACHES: Final = Path("/proc/sys/vm/drop_caches")
_EVERYTHING: Final = "3"
_PROCESSORS: Final = sorted(os.sched_getaffinity(0))


@contextmanager
def processor_of(number: int) -> Iterator[None]:
    """Have what is started in this context run on one processor only, as if on a machine of its own."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {_PROCESSORS[number % len(_PROCESSORS)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def drop_caches() -> bool:
    """Have the system forget what it has read of disks; return whether it did. Only root may."""
    os.sync()
    try:
        _CACHES.write_text(_EVERYTHING, encoding="ascii")
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore: what the state came from, when it began, and how long it took to the first answer, in seconds."""

    source: str
    began: float
    took_s: float


class Pair:
    """Two nodes."""

    def __init__(self, bootstrap: str, directory: Path, name: str, keys: int) -> None:
        self._fleet = Fleet(Side.OURS, bootstrap, Shape(keys, 1), directory, name)
        self._bootstrap, self._application_id, self._keys = bootstrap, self._fleet.application_id, keys
        self.first, self.second = self._fleet.node_names
        self.topic = changelog_topic(self._application_id, STORE)
        self._assignment = Assignment()
        admin = clients.admin(bootstrap, "bench")
        ensure_topics(admin, control_topics(self._application_id, 1))
        # Compaction would remove records while it is measured how long they take.
        ensure_topics(
            admin, [TopicSpec(self.topic, 1, {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"})]
        )
        self._controller = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{self._application_id}-controller"}
        )
        self._controller.init_transactions(_WITHIN_S)

    def fill(self, records_a_key: int, value_bytes: int) -> None:
        """Write so many records of each key, round by round."""
        producer = clients.producer(
            self._bootstrap, "bench", **{"linger.ms": 50, "queue.buffering.max.messages": 2 * _QUEUED}
        )
        values = [os.urandom(value_bytes // 2).hex().encode() for _ in range(_VALUES)]
        for count in range(records_a_key * self._keys):
            # Keys in no order, as processors write them: by a step that has no part in common with their number.
            number = count * 7_919 % self._keys
            while True:
                try:
                    producer.produce(
                        self.topic, key=key_of(number).encode(), value=values[count % _VALUES], partition=0
                    )
                    break
                except BufferError:
                    producer.poll(1.0)
            if count % 1_000 == 0:
                producer.poll(0)
        if left := producer.flush(_WITHIN_S):
            raise BenchFailure(f"{left} records were not acknowledged")

    def assign(self, active: str, *standbys: str) -> None:
        """Publish who has the partition."""
        spec = StoreSpec(STORE, self.topic, 1, 0, value_serde="string")
        following = Assignment(
            self._assignment.epoch + 1,
            "bench",
            "bench",
            MappingProxyType({STORE: spec}),
            MappingProxyType({0: SubTopology(0, "query", 1)}),
            MappingProxyType({_TASK: TaskAssignment(active, standbys)}),
        )
        self._assignment, records = encode(self._assignment, following)
        self._controller.begin_transaction()
        for key, value in records:
            self._controller.produce(assignment_topic(self._application_id), key=key, value=value, partition=0)
        self._controller.commit_transaction(_WITHIN_S)

    def node(self, name: str) -> ManagedProcess:
        """Return a node's process."""
        return self._fleet.nodes[name]

    def files(self, name: str) -> Path:
        """Return where a node has the store's files."""
        return self._fleet.state_dir(name) / self._application_id / str(_TASK) / STORE / "pebble"

    def wipe(self, name: str) -> None:
        """Remove a node's state."""
        shutil.rmtree(self._fleet.state_dir(name), ignore_errors=True)

    def restored(self, name: str) -> str | None:
        """Return what a node's store came from, None as long as it isn't there."""
        stub = node_service_pb2_grpc.NodeServiceStub(self._fleet.channel(self._fleet.target(name)))
        try:
            node = stub.GetNode(node_service_pb2.GetNodeRequest(), timeout=5)
        except grpc.RpcError:
            return None
        found = [store for task in node.tasks if task.state == TaskState.RUNNING for store in task.stores]
        return found[0].restored_by if found and node.epoch == self._assignment.epoch else None

    def restore(self, name: str, active: str, *standbys: str) -> Restored:
        """Have a node that runs, and has nothing, get the store; return what it took."""
        drop_caches()
        began = time.monotonic()
        self.assign(active, *standbys)
        while (source := self.restored(name)) is None:
            self.node(name).check()
            if time.monotonic() > began + _WITHIN_S:
                raise BenchFailure(f"{name} has not restored the store in {_WITHIN_S:.0f} s")
            time.sleep(_POLL_S)
        return Restored(source, began, time.monotonic() - began)

    def ask(self, name: str, for_s: float) -> float:
        """Ask a node as often as while it restores, with cold caches, too; return when that began."""
        drop_caches()
        began = time.monotonic()
        while time.monotonic() < began + for_s:
            self.restored(name)
            time.sleep(_POLL_S)
        return began

    def is_up(self, name: str) -> bool:
        """Whether a node answers."""
        stub = node_service_pb2_grpc.NodeServiceStub(self._fleet.channel(self._fleet.target(name)))
        try:
            stub.GetNode(node_service_pb2.GetNodeRequest(), timeout=1)
        except grpc.RpcError:
            return False
        return True

    def begin_anew(self, name: str) -> None:
        """Start a node that has nothing, and shall have nothing."""
        self.wipe(name)
        self.start(name)
        wait_for(lambda: self.is_up(name), _WITHIN_S, f"{name} to answer")

    def start(self, name: str) -> None:
        """Start a node, each on a processor of its own."""
        with processor_of(self._fleet.node_names.index(name)):
            self.node(name).start()

    def lookups(self, name: str) -> Lookups:
        """Return what asks a node for keys."""
        return Lookups(f"{LOOPBACK}:{self._fleet.ports[name]}", self._keys)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Stop what runs at the end."""
        try:
            yield
        finally:
            for name in (self.first, self.second):
                self.node(name).stop()


def copied(source: Path, target: Path) -> float:
    """Copy and hash a store's files, one after the other, onto the disk; return the seconds."""
    drop_caches()
    target.mkdir(parents=True)
    began = time.monotonic()
    for each in sorted(source.iterdir()):
        if not each.is_file():
            continue
        sum_ = hashlib.sha256()
        with each.open("rb") as read, (target / each.name).open("wb") as written:
            while part := read.read(_CHUNK):
                sum_.update(part)
                written.write(part)
            written.flush()
            os.fsync(written.fileno())
    took_s = time.monotonic() - began
    shutil.rmtree(target)
    return took_s


@dataclass
class Lookups:
    """Asks a node for keys at a steady rate, and takes the times, from when each was due; in seconds."""

    target: str
    keys: int
    rate: int = 300
    times: list[tuple[float, float]] = field(default_factory=list)
    failures: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._run, args=(nth,), daemon=True) for nth in range(3)]
        for each in self._threads:
            each.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()

    def _run(self, nth: int) -> None:
        with grpc.insecure_channel(self.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = query_service_pb2_grpc.QueryServiceStub(channel)
            due, number = time.monotonic(), nth
            while not self._stop.is_set():
                due += len(self._threads) / self.rate
                time.sleep(max(0.0, due - time.monotonic()))
                number = (number * 48_271 + 11) % self.keys
                request = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key_of(number)), raw=True)
                try:
                    stub.Get(request, timeout=5)
                except grpc.RpcError:
                    self.failures += 1
                else:
                    self.times.append((due, time.monotonic() - due))

    def p99_ms(self, begin: float, end: float) -> float:
        """Return the 99th percentile of the lookups that were due within a time, in milliseconds."""
        found = [took for due, took in self.times if begin <= due < end]
        return statistics.quantiles(found, n=100)[98] * 1_000
