"""The parts of a local cluster: how each is run, and how to tell that it works."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import grpc
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from statehouse.contract.topology import commits_topic
from statehouse.contract.version_names import FIRST, application_of
from statehouse.kafka.offsets import last_stable_offsets
from statehouse.local.application_file import FILE
from statehouse.local.certificates import CRL, RULES
from statehouse.local.cluster_state import ClusterState, DeployedVersion
from statehouse.local.log_lines import LOGS, FollowedLog
from statehouse.local.ports import LOOPBACK, ROUTER_METRICS, ensure_free
from statehouse.local.process import ManagedProcess, Ready
from statehouse.local.samples import DEFAULT_PARTITIONS
from statehouse.local.start_stages import stage_of
from statehouse.local.tls_files import TLS_FOLDER, tls_of
from statehouse.rpc.channels import blocking_channel
from statehouse.rpc.credentials import VARIABLES, ClientTls, ssl_context
from statehouse.settings import CONFIG_ENV, ENV_PREFIX
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc, node_service_pb2, node_service_pb2_grpc

# Short, so that people see a lost node replaced while they watch. The price: shorter pauses cause a rebalance.
HEARTBEAT_INTERVAL_MS: Final = 500
SESSION_TIMEOUT_MS: Final = 3_000

# Nodes, the router and the HTTP API work once the processor has made the stores, and Spark may start slowly. A part
# that fails ends, which is noticed immediately.
_READY_TIMEOUT_S: Final = 900.0
SAMPLE_DATA: Final = "sample-data"
"""The name of the program that feeds the sample."""
CHECK: Final = "check"
"""The name of the program that checks the application's code."""
_PROBE_TIMEOUT_S: Final = 1.0
_BASELINE_TIMEOUT_S: Final = 10.0
# Variables that say how this machine is set up. Our other variables are not passed on: they would configure every part
# alike, and three nodes can't have one port.
_KEPT_VARIABLES: Final = frozenset(
    {"STATEHOUSE_CACHE_DIR", "STATEHOUSE_CLASS_ARCHIVE", "STATEHOUSE_IVY_SETTINGS", "STATEHOUSE_LOG_LEVEL"}
)


class ClusterPart:
    """A part of the cluster: a process, its port, and how to tell that it works.

    `arm` is called before each start and returns the ready check of that start. `changed` is called after each start
    and end, so that the cluster can write the new pid down.
    """

    def __init__(
        self,
        process: ManagedProcess,
        arm: Callable[[], Ready],
        *,
        port: int | None,
        port_flag: str,
        changed: Callable[[], None],
    ) -> None:
        self.process = process
        self.port = port
        self._port_flag = port_flag
        self._arm, self._changed = arm, changed
        self._ready: Ready = lambda: False
        self._is_awaited = False
        self._log: FollowedLog | None = None

    @property
    def name(self) -> str:
        """The part's name."""
        return self.process.name

    @property
    def address(self) -> str:
        """Where it listens; empty for a part that doesn't."""
        return "" if self.port is None else f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process id, None unless it runs."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process exists."""
        return self.process.is_running

    @property
    def is_starting(self) -> bool:
        """Whether it was spawned here, runs, and hasn't been seen to work yet."""
        return self._is_awaited and self.is_running

    def check_port(self) -> None:
        """Raise PortTaken, naming the flag, if something else listens on its port."""
        if self.port is not None and not self.is_running:
            ensure_free(self.port, self._port_flag)

    def spawn(self) -> None:
        """Start its process; returns immediately."""
        self.check_port()
        self._ready = self._arm()
        self._log = FollowedLog(self.process.log_path, last=0)
        self.process.start()
        self._is_awaited = True
        self._changed()

    def stages(self) -> list[str]:
        """Return what its log says, since the last call, of how far its start is."""
        lines = [] if self._log is None else self._log.lines()
        return [stage for stage in map(stage_of, lines) if stage is not None]

    def is_ready(self, waited_s: float) -> bool:
        """Whether the spawned process works by now.

        Raises:
            ProcessFailed: it ended, or its time is over.

        """
        is_ready = self.process.is_ready(self._ready, waited_s, _READY_TIMEOUT_S)
        self._is_awaited = self._is_awaited and not is_ready
        return is_ready

    def start(self) -> float:
        """Start it and wait until it works; return the seconds that took."""
        self.spawn()
        seconds = self.process.wait_ready(self._ready, _READY_TIMEOUT_S)
        self._is_awaited = False
        return seconds

    def stop(self) -> bool:
        """Stop it by a signal; return whether it ended on its own."""
        went = self.process.stop()
        self._changed()
        return went

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        self.process.kill()
        self._changed()


class PartFactory:
    """Builds the parts of a cluster whose ports are fixed."""

    def __init__(
        self,
        state: ClusterState,
        run_dir: Path,
        changed: Callable[[], None],
        version: DeployedVersion | None = None,
    ) -> None:
        """`version`: builds the parts of this one; None: of the first."""
        self._version = version
        self.tls = tls_of(run_dir, "operator") if state.tls else None
        """How the cluster's operator calls its router and nodes; None without TLS."""
        self._application, self._folder, self._ports = state.application, state.folder, state.ports
        self._run_dir, self._changed = run_dir, changed
        self._bootstrap = f"{LOOPBACK}:{self._ports['kafka']}"
        self._router = f"{LOOPBACK}:{self._ports['router']}"
        self._env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("STATEHOUSE_") or name in _KEPT_VARIABLES
        } | {
            "STATEHOUSE_BOOTSTRAP": self._bootstrap,
            "STATEHOUSE_APPLICATION_ID": application_of(
                state.application.application_id, FIRST if version is None else version.name
            ),
            "STATEHOUSE_HEARTBEAT_INTERVAL_MS": str(HEARTBEAT_INTERVAL_MS),
            "STATEHOUSE_SESSION_TIMEOUT_MS": str(SESSION_TIMEOUT_MS),
            "PYTHONUNBUFFERED": "1",  # so that a log ends with what a process said last
        }
        if (self._folder / FILE).exists():
            self._env[CONFIG_ENV] = str(self._folder / FILE)
        if self._application.import_from:
            inherited = self._env.get("PYTHONPATH")
            self._env["PYTHONPATH"] = os.pathsep.join(filter(None, (self._application.import_from, inherited)))

    @property
    def _topology(self) -> str:
        return self._application.topology if self._version is None else self._version.topology

    def kafka(self) -> ClusterPart:
        """Return the broker."""
        ready_file = self._run_dir / "kafka.ready"

        def arm() -> Ready:
            ready_file.unlink(missing_ok=True)
            return ready_file.exists

        command = ["statehouse.local.kafka", "--data-dir", str(self._run_dir / "kafka")]
        command += ["--ready-file", str(ready_file), "--port", str(self._ports["kafka"])]
        return self._part("kafka", command, arm, flag="--kafka-port", stop_timeout_s=30.0)

    def sample_data(self) -> ManagedProcess:
        """Return the program that creates the sample's topics and feeds them."""
        command = ["statehouse.local.samples", self._application.sample, "--bootstrap", self._bootstrap]
        return self._part(SAMPLE_DATA, command, _is_there).process

    def check(self) -> ManagedProcess:
        """Return the program that has Spark analyse the application's queries; it ends."""
        command = ["statehouse.cli", "check", self._topology]
        return self._part(CHECK, command, _is_there, env=self._spark_files()).process

    def processor(self) -> ClusterPart:
        """Return the Spark application's driver."""
        env = {
            **self._security("processor"),
            "STATEHOUSE_CHECKPOINT_DIR": str(self._run_dir / "checkpoints"),
            "STATEHOUSE_CREATE_SOURCES": str(DEFAULT_PARTITIONS),
            **self._spark_files(),
        }
        topic = commits_topic(self._env["STATEHOUSE_APPLICATION_ID"])
        command, name = ["statehouse.cli", "process", self._topology], "processor"
        if (version := self._version) is not None:
            command += ["--application-version", version.name, "--store-partitions", str(version.partitions)]
            name = version.processor
        return self._part(name, command, lambda: _grown(self._bootstrap, topic), env=env, stop_timeout_s=45.0)

    def controller(self) -> ClusterPart:
        """Return the standby controller. Nothing waits for it, so it works as soon as its process is there."""
        command, env = ["statehouse.cli", "controller", "--standby"], self._security("processor")
        name = "controller" if self._version is None else self._version.controller
        return self._part(name, command, _is_there, env=env)

    def node(self, name: str) -> ClusterPart:
        """Return a query node."""
        port = self._ports[name]
        env = {
            **self._security("node"),
            "STATEHOUSE_NODE_PORT": str(port),
            "STATEHOUSE_STATE_DIR": str(self._run_dir / "nodes" / name),
        }
        return self._part(
            name,
            ["statehouse.cli", "node", "--instance-id", name],
            lambda: self._answers(f"{LOOPBACK}:{port}", _node_runs),
            env=env,
            flag="--first-node-port",
            # SIGTERM would hand its tasks over first, to nodes that are about to stop as well.
            stop_signal=signal.SIGINT,
        )

    def router(self) -> ClusterPart:
        """Return the router."""
        ports = {"ROUTER_PORT": self._ports["router"], "METRICS_PORT": self._ports[ROUTER_METRICS]}
        env = {**self._security("router"), **{f"{ENV_PREFIX}{name}": str(port) for name, port in ports.items()}}
        command = ["statehouse.cli", "router"]
        return self._part(
            "router", command, lambda: self._answers(self._router, _router_routes), env=env, flag="--router-port"
        )

    def http_api(self) -> ClusterPart:
        """Return the HTTP server: the page and /v1, and the application's own paths if it has some."""
        port, own = self._ports["http"], self._application.http_api
        if own:
            command = [own, "--router", self._router, "--port", str(port)]
        else:
            command = ["statehouse.web", "--router", self._router, "--http-port", str(port)]
        scheme = "http" if self.tls is None else "https"
        url = f"{scheme}://{LOOPBACK}:{port}{self._application.http_probe if own else '/healthz'}"
        # It asks the router with a router's rights, and its own callers by the rules.
        env = {**self._security("router"), f"{ENV_PREFIX}ROUTER_METRICS": f"{LOOPBACK}:{self._ports[ROUTER_METRICS]}"}
        return self._part("http", command, lambda: _http_answers(url, self.tls), env=env, flag="--http-port")

    def _answers(self, target: str, is_well: Callable[[grpc.Channel], bool]) -> Ready:
        def answers() -> bool:
            with contextlib.suppress(grpc.RpcError), blocking_channel(target, self.tls) as channel:
                return is_well(channel)
            return False

        return answers

    def _spark_files(self) -> dict[str, str]:
        return {"SPARK_LOCAL_DIRS": str(self._run_dir / "spark")}  # else a killed Spark leaves its files in /tmp

    def _security(self, name: str) -> dict[str, str]:
        """Return the settings, as variables, of a part that serves as this identity; none without TLS."""
        if self.tls is None:
            return {}
        folder, shown = self._run_dir / TLS_FOLDER, tls_of(self._run_dir, name)
        return {
            **{VARIABLES[field]: str(getattr(shown, field)) for field in ("ca", "certificate", "key")},
            "STATEHOUSE_TLS_CRL": str(folder / CRL),
            "STATEHOUSE_SECURITY_RULES": str(folder / RULES),
        }

    def _part(
        self,
        name: str,
        command: list[str],
        arm: Callable[[], Ready],
        *,
        env: Mapping[str, str] | None = None,
        flag: str = "",
        stop_signal: signal.Signals = signal.SIGTERM,
        stop_timeout_s: float = 10.0,
    ) -> ClusterPart:
        process = ManagedProcess(
            name,
            [sys.executable, "-m", *command],
            self._run_dir / LOGS / f"{name}.log",
            env={**self._env, **(env or {})},
            cwd=self._folder,
            stop_signal=stop_signal,
            stop_timeout_s=stop_timeout_s,
        )
        return ClusterPart(process, arm, port=self._ports.get(name), port_flag=flag, changed=self._changed)


def _is_there() -> Ready:
    """Return a check for a part that nothing waits for."""
    return lambda: True


def _grown(bootstrap: str, topic: str) -> Ready:
    """Return a check that is true once something was written to a topic's partition 0 after this call."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def end() -> int | None:
        try:
            return last_stable_offsets(admin, [(topic, 0)], _PROBE_TIMEOUT_S).get((topic, 0))
        except KafkaException as error:
            return 0 if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART else None

    # A broker that has just started may not lead the topic yet. If that were taken for "empty", old records would look
    # like new ones.
    before, deadline = end(), time.monotonic() + _BASELINE_TIMEOUT_S
    while before is None and time.monotonic() < deadline:
        before = end()
    least = (before or 0) + 1
    return lambda: (end() or 0) >= least


def _node_runs(channel: grpc.Channel) -> bool:
    stub = node_service_pb2_grpc.NodeServiceStub(channel)
    return stub.GetNode(node_service_pb2.GetNodeRequest(), timeout=_PROBE_TIMEOUT_S).state == "RUNNING"


def _router_routes(channel: grpc.Channel) -> bool:
    stub = fleet_service_pb2_grpc.FleetServiceStub(channel)
    return bool(stub.GetFleet(fleet_service_pb2.GetFleetRequest(), timeout=_PROBE_TIMEOUT_S).stores)


def _http_answers(url: str, tls: ClientTls | None) -> Ready:
    context = None if tls is None else ssl_context(tls)

    def answers() -> bool:
        failures = (urllib.error.URLError, TimeoutError, ConnectionError)
        opened = partial(urllib.request.urlopen, url, timeout=_PROBE_TIMEOUT_S, context=context)
        with contextlib.suppress(*failures), opened() as answer:
            return bool(answer.status == 200)
        return False

    return answers
