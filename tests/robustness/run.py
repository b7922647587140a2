"""A run: a cluster under traffic and writes, the faults that it meets, and the history of it all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import grpc
import structlog

from statehouse.contract.assignment import Assignment
from statehouse.contract.topology import Role, TaskId
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc, query_service_pb2, types_pb2
from tests.robustness.cluster import NO_DOORS, ClusterShape, RobustCluster
from tests.robustness.history import (
    EpochRecord,
    FaultRecord,
    FinalRecord,
    History,
    Recorder,
    RouterRecord,
    RunRecord,
)
from tests.robustness.traffic import Keys, Traffic
from tests.robustness.writer import Writer
from tests.support.fleet import STORE, ServerProcess
from tests.support.kafka_doors import Door
from tests.support.polling import poll_until

log = structlog.get_logger(__name__)

HISTORY_FILE: Final = "history.jsonl"
_ROUTER_LOOK_S: Final = 0.25
_QUIET_S: Final = 60.0
_CALM_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of everything in a run.

    Attributes:
        rate: calls a second.
        batch: half of the calls ask for so many keys; 0: each asks for one.
        writes: records written a second.
        keys_per_partition: that exist; a quarter as many are looked up that don't.
        restarts: nodes that are restarted in turn; `added` come then.
        calm_s: traffic before the first fault and after the last.
        outage_s: how long a fault that passes on its own lasts, at least.
        succession: session timeouts within which a standby controller must have replaced a controller and a node.
        lookups: a soak has at least so many.

    """

    shape: ClusterShape = field(default_factory=ClusterShape)
    rate: float = 300
    batch: int = 0
    writes: float = 100
    keys_per_partition: int = 4
    restarts: int = 5
    added: int = 2
    calm_s: float = 5.0
    outage_s: float = 30
    succession: float = 2.0
    lookups: int = 0

    @property
    def lookups_per_s(self) -> float:
        """How many keys are asked for in a second."""
        return self.rate * (1 + self.batch) / 2 if self.batch else self.rate


class Run:
    """A cluster that is settled and under traffic when entered.

    Left without an error, it ends traffic and writes, waits until all replicas have everything, and notes what they
    hold. `history` is there from then on; the file stays in `directory`. `routers_together`: as in Traffic.
    """

    def __init__(
        self,
        scenario: str,
        size: Size,
        directory: Path,
        start_node: Callable[[RobustCluster, str], ServerProcess] = lambda cluster, name: cluster.node(name),
        doors: Mapping[str, Door] = NO_DOORS,
        *,
        routers_together: bool = False,
    ) -> None:
        self.scenario, self.size, self.directory = scenario, size, directory
        directory.mkdir(parents=True, exist_ok=True)
        self.recorder = Recorder(directory / HISTORY_FILE)
        self.cluster = RobustCluster(directory, size.shape, self._take_epoch, start_node, doors)
        self._routers_together = routers_together
        self.keys = Keys.spread(self.cluster.partition_of, size.shape.partitions, size.keys_per_partition)
        self._parts = ExitStack()
        self._stop = threading.Event()
        self.history = History()

    def __enter__(self) -> Self:
        with ExitStack() as parts:
            parts.enter_context(self.recorder)
            cluster = parts.enter_context(self.cluster)
            changelog, place = cluster.changelog, cluster.partition_of
            self.writer = parts.enter_context(
                Writer(cluster.bootstrap, changelog, self.keys.existing, place, self.size.writes, self.recorder)
            )
            self.wait_complete()
            watcher = threading.Thread(target=self._watch_routers, name="router-watcher", daemon=True)
            watcher.start()
            parts.callback(watcher.join)
            parts.callback(self._stop.set)
            targets = {name: router.target for name, router in cluster.routers.items()}
            self.traffic = parts.enter_context(
                Traffic(
                    targets,
                    self.keys,
                    place,
                    self.size.rate,
                    self.recorder,
                    batch=self.size.batch,
                    together=self._routers_together,
                    certificates=cluster.keys,
                )
            )
            self.wait_traffic(self.size.calm_s)
            cluster.wait_settled(quiet_s=_CALM_S)  # traffic on a busy machine may have held up the last hand-overs
            self._parts = parts.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        with self._parts:
            if kind is not None:
                return
            self.wait_traffic(self.size.calm_s)
            seconds = self.recorder.now
            self.traffic.__exit__()
            self.writer.__exit__()
            self.cluster.wait_settled()
            self.wait_complete()
            for record in self._finals():
                self.recorder.add(record)
            count = query_service_pb2.CountRequest(store=STORE, exact=True)
            router = next(iter(self.cluster.routers.values()))
            counted = router.call(router.query.Count, count, 30.0).count
            copies = 1 + self.size.shape.standbys
            self.recorder.add(RunRecord(self.scenario, seconds, repr(self.size), copies, counted))
        self.history = History.load(self.directory / HISTORY_FILE)

    @contextmanager
    def fault(self, kind: str, target: str, may_fail: tuple[str, ...] = ()) -> Iterator[None]:
        """Note a fault that lasts as long as the context; `may_fail` as in FaultRecord."""
        began_at = self.recorder.now
        log.info("fault begins", kind=kind, target=target, at=f"{began_at:.1f}")
        try:
            yield
        finally:
            ended_at = self.recorder.now
            log.info("fault is over", kind=kind, target=target, at=f"{ended_at:.1f}")
            self.recorder.add(FaultRecord(kind, target, began_at, ended_at, may_fail))

    def wait_traffic(self, seconds: float) -> None:
        """Let traffic go on for so long, as a part of what is tested."""
        self.traffic.wait(seconds)

    def _take_epoch(self, at: float, assignment: Assignment) -> None:
        tasks = [assignment.tasks.get(TaskId(0, number)) for number in range(self.size.shape.partitions)]
        self.recorder.add(
            EpochRecord(
                assignment.epoch,
                self.recorder.at(at),
                tuple((task.active or "") if task else "" for task in tasks),
                tuple(task.replicas if task else () for task in tasks),
                assignment.reason,
            )
        )

    def _watch_routers(self) -> None:
        """Note which epoch each router acts on, by connections of our own."""
        channels = {name: router.new_channel() for name, router in self.cluster.routers.items()}
        known: dict[str, int] = {}
        while not self._stop.wait(_ROUTER_LOOK_S):
            for name, channel in channels.items():
                stub = fleet_service_pb2_grpc.FleetServiceStub(channel)
                try:
                    epoch = stub.GetFleet(fleet_service_pb2.GetFleetRequest(), timeout=2.0).epoch
                except grpc.RpcError:
                    continue
                if known.get(name) != epoch:
                    known[name] = epoch
                    self.recorder.add(RouterRecord(name, epoch, self.recorder.now))
        for channel in channels.values():
            channel.close()

    def wait_complete(self) -> None:
        """Wait until every replica of every task has confirmed an end asked for from now on."""
        began_at = self.recorder.now

        def is_complete() -> bool:
            since_ms = (self.recorder.now - began_at) * 1000
            stores = [
                store for node in self.cluster.running.values() for task in node.node().tasks for store in task.stores
            ]
            return all(store.HasField("staleness_ms") and store.staleness_ms < since_ms for store in stores)

        poll_until(is_complete, _QUIET_S, "every replica to have all that was written")

    def _finals(self) -> Iterator[FinalRecord]:
        """Read every key that exists from every replica of its partition."""
        for partition in range(self.size.shape.partitions):
            keys = [key for key in self.keys.existing if self.cluster.partition_of(key) == partition]
            requests = [query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key)) for key in keys]
            for name in self.cluster.task(partition).replicas:
                node = self.cluster.nodes[name]
                batch = query_service_pb2.BatchGetRequest(requests=requests)
                results = node.call(node.query.BatchGet, batch, 30.0).results
                for key, result in zip(keys, results, strict=True):
                    response = result.response
                    version = int(response.value.text) if response.found else None
                    role = Role(response.replica.role).name if result.HasField("response") else ""
                    yield FinalRecord(key, partition, name, role, version)
