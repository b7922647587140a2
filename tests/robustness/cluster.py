"""A cluster of real processes on a broker of its own: the controller, query nodes, routers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import grpc

from statehouse.contract.assignment import Assignment, AssignmentReader, TaskAssignment
from statehouse.contract.membership import TaskState
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import TaskId, assignment_topic, changelog_topic
from statehouse.errors import LookupFailure
from statehouse.kafka.control_log import ControlLogReader
from statehouse.local.ports import LOOPBACK
from statehouse.local.process import descendants
from statehouse.v1 import fleet_service_pb2, node_service_pb2
from tests.support.fleet import NAME, STORE, ServerProcess, Servers
from tests.support.kafka import create_topic
from tests.support.kafka_doors import Door, KafkaWithDoors
from tests.support.polling import poll_until
from tests.support.secured import Keys

APPLICATION: Final = "robust"
# A replica this near to the end counts as caught up: writes go on, so that the lag is seldom 0.
_CAUGHT_UP_LAG: Final = 500
_READY_S: Final = 120.0
NO_DOORS: Final[Mapping[str, Door]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """How large a cluster is, and its timing; the defaults are the product's own.

    `attempt_timeout_ms`, `hold_window_ms` and `max_lookups` of the routers; None is their default. `starting_nice` of
    nodes until they listen: elsewhere each has a machine of its own. Here a node that starts would take the processors
    from the router that all lookups go through, and from the other nodes.

    `secured`: nodes and routers have TLS, mutual, rules, and a list of revoked certificates.
    """

    nodes: int = 5
    partitions: int = 12
    standbys: int = 1
    routers: int = 1
    secured: bool = False
    heartbeat_interval_ms: int = 1_000
    session_timeout_ms: int = 10_000
    attempt_timeout_ms: int | None = None
    hold_window_ms: int | None = None
    max_lookups: int | None = None
    starting_nice: int = 10


class RobustCluster(Servers):
    """Real processes that can be started, stopped, killed and frozen one by one.

    `on_epoch(at, assignment)` is called for every epoch in the assignment topic, with the monotonic time it was read.
    Entering it starts the broker, the controller, `shape.nodes` nodes n1, n2, … and the routers r1, …, each node by
    `start_node`, which a test may replace to put something between a node and its peers; `doors` are further addresses
    of the broker, for the same purpose.
    """

    def __init__(
        self,
        directory: Path,
        shape: ClusterShape,
        on_epoch: Callable[[float, Assignment], None] = lambda _at, _assignment: None,
        start_node: Callable[[RobustCluster, str], ServerProcess] = lambda cluster, name: cluster.node(name),
        doors: Mapping[str, Door] = NO_DOORS,
    ) -> None:
        self.broker = KafkaWithDoors(directory / "broker", doors=doors)
        super().__init__(
            "",
            APPLICATION,
            directory,
            heartbeat_interval_ms=shape.heartbeat_interval_ms,
            session_timeout_ms=shape.session_timeout_ms,
        )
        self.shape = shape
        self.keys: Keys | None = None
        self.changelog = changelog_topic(APPLICATION, STORE)
        self.nodes: dict[str, ServerProcess] = {}
        self.routers: dict[str, ServerProcess] = {}
        self.assignment = Assignment()
        self._epoch_at = time.monotonic()
        self._on_epoch, self._start_node = on_epoch, start_node
        self._reader = AssignmentReader()
        self.defects: list[Exception] = []

    def __enter__(self) -> Self:
        if self.shape.secured:
            folder = self.directory / "keys"
            folder.mkdir()
            self.keys = Keys(folder)
            self.credentials = self.keys.credentials("all")
        try:
            self.bootstrap = self.broker.start().bootstrap
            create_topic(self.bootstrap, self.changelog, self.shape.partitions, {"cleanup.policy": "compact"})
            self.controller = self._start_controller()
            self._log = ControlLogReader(
                self.bootstrap,
                assignment_topic(APPLICATION),
                self._take_record,
                client_id="robustness",
                on_broken=self.defects.append,
            )
            self._log.start()
            for name in [self._begin_node() for _ in range(self.shape.nodes)]:
                self._end_start(name)
            asked = {
                name: getattr(self.shape, name) for name in ("attempt_timeout_ms", "hold_window_ms", "max_lookups")
            }
            options: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
            if self.keys is not None:
                # Some nodes have an address that nobody knew when their certificate was made.
                options |= self.keys.options("router", tls_node_name=NAME)
            for number in range(self.shape.routers):
                self.routers[f"r{number + 1}"] = self.router(f"r{number + 1}", **options)
            self.wait_settled()
            poll_until(self._routers_are_ready, _READY_S, "the routers to know the assignment")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_log"):
            self._log.stop()
        super().__exit__()
        self.broker.stop()

    def node(self, name: str, *, prefix: Sequence[str] = (), host: str = LOOPBACK, **options: object) -> ServerProcess:
        """Start a node, after whatever must go before its command."""
        if self.keys is not None:
            options |= self.keys.options("node")
        return super().node(name, prefix=(*prefix, "nice", "-n", str(self.shape.starting_nice)), host=host, **options)

    def _start_controller(self) -> ServerProcess:
        """Start `process --static`: the ownership controller without Spark."""
        topology = self.directory / "topology.toml"
        topology.write_text(f'application_id = "{APPLICATION}"\n[[stores]]\nname = "{STORE}"\nvalue_serde = "string"\n')
        options = {
            "static": topology,
            "bootstrap": self.bootstrap,
            "num-standby-replicas": self.shape.standbys,
            **self._timing,
        }
        process = ServerProcess("controller", "processor.cli", options, 0, self.directory)
        process.build = self.build
        self.processes.append(process)
        return process.start()

    def start_standby_controller(self, name: str = "standby") -> ServerProcess:
        """Start a standby controller, and wait until it stands by."""
        options = {"bootstrap": self.bootstrap, "application-id": APPLICATION}
        words = ("controller", "--standby")
        process = ServerProcess(name, "statehouse.cli", options, 0, self.directory, words=words)
        process.build = self.build
        self.processes.append(process)
        process.start()
        poll_until(lambda: "STANDBY" in process.log, _READY_S, f"{name} to stand by")
        return process

    def _take_record(self, key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        snapshot = self._reader.feed(key, value)
        if snapshot is not None:
            self.assignment, self._epoch_at = snapshot, time.monotonic()
            self._on_epoch(self._epoch_at, snapshot)

    @property
    def running(self) -> dict[str, ServerProcess]:
        """The nodes whose process is there, frozen ones among them."""
        return {name: node for name, node in self.nodes.items() if node.is_running}

    def task(self, partition: int) -> TaskAssignment:
        """Return who holds a partition at the newest epoch."""
        return self.assignment.tasks[TaskId(0, partition)]

    def partition_of(self, key: str) -> int:
        return partition_for(key.encode(), self.shape.partitions)

    def actives_of(self, name: str) -> list[int]:
        """Return the partitions a node is active for."""
        return [partition for partition in range(self.shape.partitions) if self.task(partition).active == name]

    # Changing it

    def add_node(self) -> str:
        """Start a node under a new name; return that."""
        name = self._begin_node()
        self._end_start(name)
        return name

    def _begin_node(self) -> str:
        name = f"n{len(self.nodes) + 1}"
        self.nodes[name] = self._start_node(self, name)
        return name

    def restart(self, name: str) -> None:
        """Start a node that has ended, under the same id and with the same directory."""
        assert not self.nodes[name].is_running
        self.nodes[name].start()
        self._end_start(name)

    def _end_start(self, name: str) -> None:
        """Wait until a node listens, and give it the priority that all others have."""
        # A node that was killed a moment ago has left a proxy, which may take the connection and end.
        poll_until(lambda: self._told_by(name) is not None, _READY_S, f"{name} to listen")
        pid = self.nodes[name].pid
        for each in (pid, *(child.pid for child in descendants(pid))):
            for thread in Path(f"/proc/{each}/task").iterdir():
                with suppress(ProcessLookupError):  # threads come and go
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)

    def stop(self, name: str) -> None:
        """Stop a node in order: it hands over, leaves, and ends."""
        assert self.nodes[name].stop(signal.SIGTERM, 60.0) == 0, self.nodes[name].log[-3000:]

    def interrupt(self, name: str) -> None:
        """Stop a node as one that will be back: it hands nothing over."""
        assert self.nodes[name].stop(signal.SIGINT, 60.0) == 0, self.nodes[name].log[-3000:]

    def kill(self, name: str) -> None:
        """End a node by SIGKILL."""
        self.nodes[name].kill()

    # Waiting

    def wait_settled(self, timeout_s: float = _READY_S, *, quiet_s: float = 0.0) -> None:
        """Wait until the fleet is at rest.

        Every running node holds tasks. Each task has all its copies there and no more, all of them caught up. No epoch
        has followed for two heartbeats and a hand-over's linger, or for `quiet_s` if that is longer.
        """

        def has_settled() -> bool:
            assert not self.defects, self.defects
            tasks = self.assignment.tasks.values()
            holders = {node for task in tasks for node in task.replicas}
            is_moving = any(len(task.replicas) > 1 + self.shape.standbys for task in tasks)
            return holders == set(self.running) and not is_moving and self._is_quiet(quiet_s) and self.is_replicated()

        poll_until(has_settled, timeout_s, f"the fleet to settle (epoch {self.assignment.epoch})")

    def wait_replicated(self, timeout_s: float = _READY_S) -> None:
        """Wait until every task has an active and all its standbys on running nodes, caught up."""
        poll_until(self.is_replicated, timeout_s, f"all copies (epoch {self.assignment.epoch})")

    def wait_caught_up(self, name: str, timeout_s: float = _READY_S) -> None:
        """Wait until a node has caught up in all tasks that it knows of, of whatever epoch, and knows of some."""

        def has_caught_up() -> bool:
            told = self._told_by(name)
            return told is not None and bool(told.tasks) and all(map(_is_caught_up, told.tasks))

        poll_until(has_caught_up, timeout_s, f"{name} to catch up")

    def wait_epoch_after(self, epoch: int, timeout_s: float = _READY_S) -> None:
        """Wait until a newer epoch is published."""
        poll_until(lambda: self.assignment.epoch > epoch, timeout_s, f"an epoch after {epoch}")

    def wait_moved_from(self, name: str, timeout_s: float = _READY_S) -> None:
        """Wait until a node holds nothing at the newest epoch."""
        poll_until(lambda: not self.assignment.tasks_of(name), timeout_s, f"the tasks of {name} to be moved")

    def _is_quiet(self, least_s: float) -> bool:
        linger_s = 4 * self.shape.heartbeat_interval_ms / 1000
        return time.monotonic() - self._epoch_at > max(linger_s, least_s)

    def is_replicated(self) -> bool:
        """Whether every task has an active and all its standbys, running and caught up."""
        assignment, running = self.assignment, self.running
        copies = 1 + self.shape.standbys
        tasks = assignment.tasks
        if len(tasks) != self.shape.partitions or any(
            task.active is None
            or len(task.standbys) < self.shape.standbys
            or not set(task.replicas[:copies]) <= set(running)
            for task in tasks.values()
        ):
            return False
        caught_up = {(name, task) for name in running for task in self._caught_up_tasks(name, assignment.epoch)}
        return all((name, str(task)) in caught_up for task, held in tasks.items() for name in held.replicas[:copies])

    def _caught_up_tasks(self, name: str, epoch: int) -> list[str]:
        node = self._told_by(name, wait_for_ready=False)
        if node is None:
            return []
        return [task.task for task in node.tasks if node.epoch == epoch and _is_caught_up(task)]

    def _told_by(self, name: str, *, wait_for_ready: bool = True) -> node_service_pb2.GetNodeResponse | None:
        """Return what a node says of itself, None if it doesn't answer within two seconds."""
        try:
            return self.nodes[name].node(timeout=2.0, wait_for_ready=wait_for_ready)
        except grpc.RpcError:
            return None

    def _routers_are_ready(self) -> bool:
        return all(self.router_epoch(name) == self.assignment.epoch for name in self.routers)

    def router_epoch(self, name: str) -> int:
        """Return the epoch that a router acts on, 0 if it doesn't say."""
        try:
            return self.routers[name].fleet.GetFleet(fleet_service_pb2.GetFleetRequest(), timeout=2.0).epoch
        except (grpc.RpcError, LookupFailure):
            return 0


def _is_caught_up(task: node_service_pb2.TaskReplica) -> bool:
    return task.state == TaskState.RUNNING and all(
        store.HasField("lag") and store.HasField("staleness_ms") and store.lag <= _CAUGHT_UP_LAG
        for store in task.stores
    )
