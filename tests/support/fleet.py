"""A fleet of real node and router processes on a real broker, with an assignment written by the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import grpc
from confluent_kafka import Producer

from statehouse.contract.assignment import Assignment, TaskAssignment, encode
from statehouse.contract.membership import TaskState
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import (
    StoreSpec,
    SubTopology,
    TaskId,
    assignment_topic,
    changelog_topic,
    commits_topic,
    members_topic,
)
from statehouse.errors import LookupFailure
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.local.process import ProcessIdentity, descendants
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import (
    fleet_service_pb2_grpc,
    node_service_pb2,
    node_service_pb2_grpc,
    query_service_pb2,
    query_service_pb2_grpc,
    types_pb2,
)
from tests.support.constants import VARIABLE, constants_among
from tests.support.kafka import create_topic, produce_placed
from tests.support.nursery import SHOWS_STACKS, Child, can_bear, nursery
from tests.support.polling import poll_until
from tests.support.proxy import stands_still

STORE = "counts"
_ANY_TIMESTAMP: Final = {"message.timestamp.after.max.ms": str(2**63 - 1)}
"""Of control topics, as processors create them."""
# Longer than a busy machine keeps an active from Kafka: one that isn't sure of its role doesn't claim it.
SESSION_TIMEOUT_MS = 6_000
NAME = "localhost"
"""A name that all certificates of tests have."""


@dataclass(frozen=True, slots=True)
class Build:
    """A version of the code that processes can be started from: its folder, and what its processes find in their
    environment."""

    name: str
    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)


THIS: Final = Build("this", Path(__file__).parents[2])
"""The tree that the tests are in."""


def _without(command: Sequence[str], options: Collection[str]) -> list[str]:
    flags = {f"--{name.replace('_', '-')}" for name in options}
    return [word for at, word in enumerate(command) if word not in flags and (at == 0 or command[at - 1] not in flags)]


class ServerProcess:
    """A node, router or controller as a process of its own.

    `prefix` goes before its command, as `ip netns exec NAME` does, and `words` after the module; `host` is where we
    reach it.
    """

    def __init__(
        self,
        name: str,
        module: str,
        options: Mapping[str, object],
        port: int,
        log_dir: Path,
        *,
        prefix: Sequence[str] = (),
        words: Sequence[str] = (),
        host: str = LOOPBACK,
    ) -> None:
        self.name, self.host, self.port, self._module = name, host, port, module
        names = constants_among({option.replace("-", "_"): value for option, value in options.items()})
        self._constants = {name: options[name.replace("_", "-")] for name in names}
        self._command = [*prefix, sys.executable, "-m", module, *words]
        for option, value in options.items():
            if value is True:
                self._command.append(f"--{option}")
            elif value is not False:
                self._command += [f"--{option}", str(value)]
        self._log = log_dir / f"{name}.log"
        self.credentials: grpc.ChannelCredentials | None = None
        """What we show to it; None: nothing is encrypted."""
        self.build = THIS
        self._process: subprocess.Popen[bytes] | Child | None = None
        self._frozen: list[ProcessIdentity] = []
        self._channel: grpc.Channel | None = None

    @property
    def target(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> ServerProcess:
        command, environment = self._command, {**os.environ, SHOWS_STACKS: "1", **self.build.environment}
        if self._constants and self.build is THIS:
            # Options of builds before this one; here they are constants.
            command = _without(command, self._constants)
            at = command.index("-m") + 1
            command = [*command[:at], "tests.support.constants", *command[at:]]
            environment[VARIABLE] = json.dumps(self._constants)
        # Other constants must be there before anything is imported.
        is_plain = self.build is THIS and command[0] == sys.executable and not self._constants
        is_forked = is_plain and can_bear(self._module, environment)
        with self._log.open("ab") as log:
            if is_forked:
                args = command[command.index("-m") + 1 :]
                self._process = nursery().start(args, log.fileno(), self.build.root, environment)
            else:
                self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.build.root, env=environment)
        return self

    def kill(self) -> None:
        """End it without a chance to clean up."""
        self._signal(signal.SIGKILL)

    def tell(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def stop(self, number: int = signal.SIGINT, timeout_s: float = 20.0) -> int:
        """Ask it to end; return its exit code."""
        assert self._process is not None
        os.kill(self._process.pid, number)
        code = self._process.wait(timeout_s)
        self._disconnect()
        return code

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait until it ends on its own; return its exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._disconnect()
        return code

    def freeze(self) -> None:
        """Let it stand still, with all that it has started: its program in front of it answers nothing either."""
        self.freeze_python()
        for each in descendants(self.pid):
            self._freeze(each)

    def freeze_python(self) -> None:
        """Let Python alone stand still: what it has started goes on."""
        python = ProcessIdentity.of(self.pid)
        assert python is not None, f"{self.name} has ended"
        self._freeze(python)

    def _freeze(self, process: ProcessIdentity) -> None:
        self._frozen.append(process)
        process.send(signal.SIGSTOP)
        # On a busy machine threads go on for a while.
        poll_until(lambda: not process.is_alive or stands_still(process.pid), 20, f"{self.name} to stand still")

    def thaw(self) -> None:
        """Let all that stands still go on."""
        for each in self._frozen:
            each.send(signal.SIGCONT)
        self._frozen.clear()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self.thaw()  # else nobody would ever end what it has started
        self._process.wait(20.0)
        self._disconnect()

    def _disconnect(self) -> None:
        """Forget the connection to a process that is gone: the next one must not be asked over it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def close(self) -> None:
        self._disconnect()
        if self._process is not None and self._process.poll() is None:
            self._signal(signal.SIGKILL)

    @property
    def channel(self) -> grpc.Channel:
        """A connection, made when it is first asked for: how long a start takes is no part of a call's time."""
        self._assert_runs()
        if self._channel is None:
            channel = self.new_channel()
            connected = grpc.channel_ready_future(channel)
            try:
                poll_until(lambda: connected.done() or not self.is_running, 60, f"{self.name} to listen")
            except AssertionError as error:
                raise AssertionError(f"{error}:\n{self._ended_with_stacks()}") from None
            self._channel = channel
            self._assert_runs()
        return self._channel

    def new_channel(self) -> grpc.Channel:
        """Return a further connection, which the caller closes."""
        options: list[tuple[str, int | str]] = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
        ]
        if self.credentials is None:
            return grpc.insecure_channel(self.target, options)
        if self.host != LOOPBACK:
            # A namespace's address, which nobody knew when its certificate was made.
            options.append(("grpc.ssl_target_name_override", NAME))
        return grpc.secure_channel(self.target, self.credentials, options)

    def _ended_with_stacks(self) -> str:
        """End it; return the end of its log, which shows where each of its threads stood."""
        self._signal(signal.SIGABRT)
        return self.log[-8_000:]

    def _assert_runs(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"{self.name} has ended with {self._process.returncode}:\n{self.log[-3000:]}")

    @property
    def query(self) -> query_service_pb2_grpc.QueryServiceStub:
        return query_service_pb2_grpc.QueryServiceStub(self.channel)

    @property
    def fleet(self) -> fleet_service_pb2_grpc.FleetServiceStub:
        return fleet_service_pb2_grpc.FleetServiceStub(self.channel)

    def node(self, *, timeout: float = 30.0, wait_for_ready: bool = True) -> node_service_pb2.GetNodeResponse:
        stub = node_service_pb2_grpc.NodeServiceStub(self.channel)
        try:
            return stub.GetNode(node_service_pb2.GetNodeRequest(), timeout=timeout, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            error.add_note(f"the log of {self.name} ends with:\n{self.log[-3000:]}")
            raise

    def get(
        self, key: str, *, store: str = STORE, timeout: float = 5.0, **freshness: Any
    ) -> query_service_pb2.GetResponse:
        """Read a key; a failure is raised as `LookupFailure`."""
        request = query_service_pb2.GetRequest(
            store=store, key=types_pb2.Key(text=key), freshness=types_pb2.Freshness(**freshness)
        )
        answer: query_service_pb2.GetResponse = self.call(self.query.Get, request, timeout)
        return answer

    @staticmethod
    def call(method: Any, request: Any, timeout: float = 5.0) -> Any:
        try:
            return method(request, timeout=timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


class Servers:
    """The node and router processes of one application; they end with the context."""

    def __init__(
        self,
        bootstrap: str,
        application_id: str,
        directory: Path,
        *,
        heartbeat_interval_ms: int = 250,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        self.bootstrap, self.application_id, self.directory = bootstrap, application_id, directory
        self.credentials: grpc.ChannelCredentials | None = None
        self.build = THIS
        """Of the processes that are made from now on."""
        self._timing = {"heartbeat-interval-ms": heartbeat_interval_ms, "session-timeout-ms": session_timeout_ms}
        self.processes: list[ServerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.close()

    def node(self, name: str, *, prefix: Sequence[str] = (), host: str = LOOPBACK, **options: object) -> ServerProcess:
        """Start a node; `options` are command line options with underscores."""
        own = {"instance-id": name, "state-dir": self.directory / name, **self._timing}
        return self._started("query_service", name, own, options, prefix, host)

    def router(
        self, name: str = "router", *, prefix: Sequence[str] = (), host: str = LOOPBACK, **options: object
    ) -> ServerProcess:
        """Start a router."""
        return self._started("router", name, {}, options, prefix, host)

    def _started(
        self,
        module: str,
        name: str,
        own: Mapping[str, object],
        options: Mapping[str, object],
        prefix: Sequence[str],
        host: str,
    ) -> ServerProcess:
        port = free_port()
        common = {"application-id": self.application_id, "bootstrap": self.bootstrap, "port": port}
        given = {key.replace("_", "-"): value for key, value in options.items()}
        process = ServerProcess(
            name, module, {**common, **own, **given}, port, self.directory, prefix=prefix, host=host
        )
        process.credentials, process.build = self.credentials, self.build
        self.processes.append(process)
        return process.start()


class Fleet(Servers):
    """One application with one store `counts` (string keys, long values unless told otherwise)."""

    def __init__(
        self,
        bootstrap: str,
        application_id: str,
        directory: Path,
        *,
        partitions: int = 2,
        value_serde: str = "string",
        changelog_config: Mapping[str, str] | None = None,
        heartbeat_interval_ms: int = 250,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        beside: Iterable[StoreSpec] = (),
        **spec: Any,
    ) -> None:
        """Create the topics. Further stores may be given to publish, whose topics are there already."""
        super().__init__(
            bootstrap,
            application_id,
            directory,
            heartbeat_interval_ms=heartbeat_interval_ms,
            session_timeout_ms=session_timeout_ms,
        )
        self.partitions = partitions
        self.changelog = changelog_topic(application_id, STORE)
        self.spec = StoreSpec(STORE, self.changelog, partitions, 0, value_serde=value_serde, **spec)
        self.stores = MappingProxyType({each.name: each for each in (self.spec, *beside)})
        self.assignment = Assignment()
        create_topic(
            bootstrap, self.changelog, partitions, {"cleanup.policy": "compact"} | dict(changelog_config or {})
        )
        for topic in (members_topic, assignment_topic, commits_topic):
            create_topic(bootstrap, topic(application_id), 1, {"cleanup.policy": "compact", **_ANY_TIMESTAMP})
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{application_id}-test-controller",
                "log_level": 2,  # a broker that is away is what some tests want: a line each try would hide the rest
            }
        )
        self._producer.init_transactions(30.0)

    def add_store(self, name: str, changelog_config: Mapping[str, str] | None = None, **spec: Any) -> None:
        """Create the changelog of a further store; the next epoch publishes the store."""
        changelog = changelog_topic(self.application_id, name)
        create_topic(
            self.bootstrap, changelog, self.partitions, {"cleanup.policy": "compact"} | dict(changelog_config or {})
        )
        added = StoreSpec(name, changelog, self.partitions, 0, **{"value_serde": "string", **spec})
        self.stores = MappingProxyType({**self.stores, name: added})

    def assign(self, *holders: TaskAssignment, reason: str = "test") -> int:
        """Publish an epoch with these holders, one a partition; return it."""
        following = Assignment(
            self.assignment.epoch + 1,
            reason,
            "test",
            self.stores,
            MappingProxyType({0: SubTopology(0, "query", self.partitions)}),
            MappingProxyType({TaskId(0, partition): holder for partition, holder in enumerate(holders)}),
        )
        self.assignment, records = encode(self.assignment, following)
        self._producer.begin_transaction()
        for key, value in records:
            self._producer.produce(assignment_topic(self.application_id), key=key, value=value, partition=0)
        self._producer.commit_transaction(30.0)
        return self.assignment.epoch

    def reassign(self, partition: int, **changes: Any) -> int:
        """Publish an epoch with one task's holders changed."""
        holders = [self.assignment.tasks[TaskId(0, each)] for each in range(self.partitions)]
        holders[partition] = replace(holders[partition], **changes)
        return self.assign(*holders)

    def put(self, entries: Mapping[str, str | None], store: str = STORE) -> None:
        """Write entries to a changelog, as a processor would."""
        produce_placed(
            self.bootstrap,
            self.stores[store].changelog_topic,
            (
                (self.partition_of(key), key.encode(), None if value is None else value.encode(), 0)
                for key, value in entries.items()
            ),
        )

    def put_records(self, records: Iterable[tuple[str, bytes, bytes | None, int]], store: str = STORE) -> None:
        """Write (key, record key, value, timestamp) as a processor does: placed by the key without its suffix."""
        produce_placed(
            self.bootstrap,
            self.stores[store].changelog_topic,
            (
                (self.partition_of(key), record_key, value, timestamp_ms)
                for key, record_key, value, timestamp_ms in records
            ),
        )

    def partition_of(self, key: str) -> int:
        return partition_for(key.encode(), self.partitions)

    def keys_in(self, partition: int, count: int = 1) -> list[str]:
        """Return keys that belong to a partition."""
        found = (key for key in map("k{}".format, range(10_000)) if self.partition_of(key) == partition)
        return [key for _, key in zip(range(count), found, strict=False)]

    def wait_running(self, processes: Iterable[ServerProcess], timeout_s: float = 30.0) -> None:
        """Wait until every task the nodes hold at the newest epoch runs."""
        for process in processes:
            assigned = {str(task) for task in self.assignment.all_tasks_of(process.name)}

            def settled(process: ServerProcess = process, assigned: set[str] = assigned) -> bool:
                node = process.node()
                running = {task.task for task in node.tasks if task.state == TaskState.RUNNING}
                return node.epoch == self.assignment.epoch and running == assigned and len(node.tasks) == len(running)

            poll_until(settled, timeout_s, f"{process.name} to run its tasks")


def confirmed(node: ServerProcess, key: str) -> query_service_pb2.GetResponse:
    """Return what a node answers once it is sure of being the active: it reads its assignment a moment before."""

    def asked() -> query_service_pb2.GetResponse | None:
        answer = node.get(key)
        return answer if answer.replica.role == types_pb2.REPLICA_ROLE_ACTIVE else None

    return poll_until(asked, 20, f"{node.name} to be sure that it is active")


def is_answered_by_active(router: ServerProcess, key: str) -> bool:
    """Whether a router's answer for a key comes from an active that is sure of being it and has all that's written."""
    try:
        return router.get(key, active_only=True, max_lag=0).found
    except LookupFailure:
        return False


def content(node: ServerProcess, page_size: int = 1_000) -> dict[str, str]:
    """Read all entries of partition 0 of a node's store."""
    request = query_service_pb2.ScanRequest(store=STORE, partition=0, page_size=page_size)
    found: dict[str, str] = {}
    while True:
        page = node.call(node.query.Scan, request)
        found |= {entry.key.text: entry.value.text for entry in page.entries}
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def is_at_end(replica: types_pb2.ReplicaStamp | node_service_pb2.StoreReplica) -> bool:
    """Whether a replica says that it has all there is: one that doesn't know yet says nothing, which reads as 0."""
    return replica.HasField("lag") and replica.lag == 0
