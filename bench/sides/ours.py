"""Our fleet: the ownership controller, query nodes and a router, each a process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc

from bench.shape import Shape, Side
from bench.sides.servers import MAX_OFFSETS, ROOT, Copy, Options, Servers, Spark
from bench.trees import program_of
from bench.waiting import wait_for
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import TaskId, changelog_topic
from statehouse.kafka import clients
from statehouse.kafka.offsets import end_offsets
from statehouse.link.proxy import NONE
from statehouse.local.certificates import CRL, RULES, make_certificates
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.local.process import ManagedProcess
from statehouse.v1 import (
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    node_service_pb2,
    node_service_pb2_grpc,
    query_service_pb2,
    query_service_pb2_grpc,
    types_pb2,
)

STORE: Final = "latest"
_ROUTER: Final = "router"
_ANSWER_S: Final = 2.0
_READY_S: Final = 60.0
_STOP_S: Final = 45.0


class Fleet(Servers):
    """Serves a topic, used as a changelog, by a static topology: there is no Spark in it."""

    def __init__(
        self, side: Side, bootstrap: str, shape: Shape, directory: Path, source_topic: str, tree: Path = ROOT
    ) -> None:
        """Prepare; `tree` has the code."""
        super().__init__(side, bootstrap, shape, directory, source_topic)
        self._tree = tree
        self.application_id = f"{source_topic}-{side}"
        self._router_port = free_port()
        self._certificates = self._made_certificates() if side is Side.OURS_TLS else None
        self._controller = self._controller_process()
        self.nodes = {name: self._node_process(name) for name in self.node_names}
        self._router = self._router_process(_ROUTER, self._router_port)

    @property
    def changelog(self) -> str:
        """See Servers."""
        return self.source_topic

    @property
    def router_target(self) -> str:
        """Where the router listens."""
        return f"{LOOPBACK}:{self._router_port}"

    @property
    def straight(self) -> Options:
        """See Servers."""
        return {"kind": "ours", "store": STORE, **self.owners(), **self._shown}

    def anywhere(self, names: Sequence[str] | None = None) -> Options:  # noqa: ARG002 - the router is no node
        """See Servers."""
        return {
            "kind": "ours",
            "store": STORE,
            "targets": [self.router_target],
            "partitions": self.shape.partitions,
            **self._shown,
        }

    def processes(self) -> Sequence[ManagedProcess]:
        """See Servers."""
        return (self._controller, *self.nodes.values(), self._router)

    def copies(self) -> list[Copy]:
        """See Servers."""
        return [copy for name in self.node_names for copy in self._copies_of(name)]

    def is_processing(self) -> bool:
        """See Servers; here nothing has to be processed."""
        return True

    def read(self, name: str | None, keys: Sequence[str]) -> list[bytes | None]:
        """See Servers."""
        requests = [query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key), raw=True) for key in keys]
        target = self.router_target if name is None else self.target(name)
        stub = query_service_pb2_grpc.QueryServiceStub(self.channel(target))
        try:
            batch = stub.BatchGet(query_service_pb2.BatchGetRequest(requests=requests), timeout=_ANSWER_S)
        except grpc.RpcError:
            return [None] * len(keys)
        return [result.response.value.raw if result.response.found else None for result in batch.results]

    def wait_settled(self) -> None:
        """See Servers; also wait until the router knows the nodes' assignment."""
        super().wait_settled()
        wait_for(self._router_is_ready, _READY_S, "the router to know the assignment")

    def _copies_of(self, name: str) -> list[Copy]:
        node = self._node(name)
        tasks = [] if node is None else node.tasks
        return [
            Copy(
                name,
                TaskId.parse(task.task).partition,
                task.role == types_pb2.REPLICA_ROLE_ACTIVE,
                store.position,
                task.state == TaskState.RUNNING and store.HasField("lag") and store.lag == 0,
            )
            for task in tasks
            for store in task.stores
        ]

    def _node(self, name: str) -> node_service_pb2.GetNodeResponse | None:
        stub = node_service_pb2_grpc.NodeServiceStub(self.channel(self.target(name)))
        try:
            return stub.GetNode(node_service_pb2.GetNodeRequest(), timeout=_ANSWER_S)
        except grpc.RpcError:
            return None

    def _router_is_ready(self) -> bool:
        nodes = [self._node(name) for name in self.node_names]
        stub = fleet_service_pb2_grpc.FleetServiceStub(self.channel(self.router_target))
        try:
            fleet = stub.GetFleet(fleet_service_pb2.GetFleetRequest(), timeout=_ANSWER_S)
        except grpc.RpcError:
            return False
        return {fleet.epoch} == {0 if node is None else node.epoch for node in nodes}

    def _controller_process(self) -> ManagedProcess:
        """Return the process of the controller."""
        self.directory.mkdir(parents=True, exist_ok=True)
        topology = self.directory / "topology.toml"
        topology.write_text(
            f'application_id = "{self.application_id}"\n'
            f'[[stores]]\nname = "{STORE}"\nvalue_serde = "string"\nchangelog_topic = "{self.source_topic}"\n'
        )
        # Commits before the one that `--against` names may have only the second.
        module = "processor" if (self._tree / "processor" / "__main__.py").exists() else "processor.cli"
        return self._python("controller", module, {"static": topology, **self._standbys, **self._timing})

    def _node_process(self, name: str) -> ManagedProcess:
        options = {
            "instance-id": name,
            "port": self.ports[name],
            "state-dir": self.state_dir(name),
            **self._serving,
            **self._secured("node"),
        }
        # After SIGTERM a node first hands its tasks over, here to nodes that are about to stop as well.
        return self._python(name, "query_service", options | self._timing, stop_signal=signal.SIGINT)

    def _router_process(self, name: str, port: int) -> ManagedProcess:
        options = {"port": port, "workers": self.shape.router_workers, **self._serving, **self._secured("router")}
        return self._python(name, "router", options)

    @property
    def _serving(self) -> dict[str, object]:
        proxy = NONE if self.side is Side.OURS_GRPCIO else program_of(self._tree)
        return {"application-id": self.application_id, "proxy": proxy}

    def _made_certificates(self) -> Path:
        """Make certificates and rules, and take what an operator shows; return where they are."""
        folder = self.directory / "certificates"
        make_certificates(folder)
        files = (folder / "ca.pem", folder / "operator.key", folder / "operator.pem")
        self.credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        return folder

    def _pair(self, identity: str) -> dict[str, Path]:
        """Return the CA's certificate, and an identity's with its key, by what they are called; none without TLS."""
        if self._certificates is None:
            return {}
        return {
            "ca": self._certificates / "ca.pem",
            "certificate": self._certificates / f"{identity}.pem",
            "key": self._certificates / f"{identity}.key",
        }

    def _secured(self, identity: str) -> dict[str, object]:
        """Return the options of a process that is this identity."""
        if self._certificates is None:
            return {}
        files = {"tls-crl": self._certificates / CRL, "security-rules": self._certificates / RULES}
        return {**{f"tls-{name}": path for name, path in self._pair(identity).items()}, **files}

    @property
    def _shown(self) -> Options:
        """What the load generator shows."""
        return {f"tls_{name}": str(path) for name, path in self._pair("reader").items()}

    @property
    def _standbys(self) -> dict[str, object]:
        return {"num-standby-replicas": min(1, self.shape.nodes - 1)}

    @property
    def _timing(self) -> dict[str, object]:
        return {
            "heartbeat-interval-ms": self.shape.session_timeout_ms // 10,
            "session-timeout-ms": self.shape.session_timeout_ms,
        }

    def _python(
        self,
        name: str,
        module: str,
        options: Mapping[str, object],
        env: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> ManagedProcess:
        command = [sys.executable, "-m", *module.split()]
        for option, value in {"bootstrap": self.bootstrap, **options}.items():
            command += [f"--{option}", str(value)]
        log = self.directory / "logs" / f"{name}.log"
        return ManagedProcess(
            name,
            command,
            log,
            env={**os.environ, "PYTHONPATH": str(self._tree), **(env or {})},
            cwd=self._tree,
            stop_signal=stop_signal,
            stop_timeout_s=_STOP_S,
        )


class SparkFleet(Fleet):
    """The same with the processor: a Spark application (`bench.topology`) makes the changelog from the source topic."""

    _topology = "bench.topology"

    @property
    def changelog(self) -> str:
        """See Servers."""
        return changelog_topic(self.application_id, STORE)

    def is_processing(self) -> bool:
        """See Servers; here: Spark has planned its first batch."""
        return any(self._checkpoints.glob("**/offsets/0"))

    @property
    def spark(self) -> Spark:
        """See Servers."""
        return Spark(self._controller, self._checkpoints, self._written)

    def _written(self) -> int:
        places = [(self.changelog, partition) for partition in range(self.shape.partitions)]
        return sum(end_offsets(clients.admin(self.bootstrap, "bench"), places).values())

    @property
    def _checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def _controller_process(self) -> ManagedProcess:
        options = {
            "checkpoint-dir": self._checkpoints,
            "max-offsets": MAX_OFFSETS,
            **self._standbys,
            **self._timing,
        }
        env = {
            "BENCH_APPLICATION_ID": self.application_id,
            "BENCH_SOURCE": self.source_topic,
            "SPARK_LOCAL_DIRS": str(self.directory / "spark"),
        }
        return self._python("processor", f"processor.cli {self._topology}", options, env)
