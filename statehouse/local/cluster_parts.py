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
from pathlib import Path
from typing import Final

import grpc
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from statehouse.kafka.offsets import last_stable_offsets
from statehouse.local.applications import LocalApplication
from statehouse.local.certificates import CRL, RULES
from statehouse.local.ports import LOOPBACK, ensure_free
from statehouse.local.process import ManagedProcess, ProcessFailed, Ready
from statehouse.local.tls_files import TLS_FOLDER, tls_of
from statehouse.rpc.channels import blocking_channel
from statehouse.rpc.credentials import VARIABLES, ClientTls
from statehouse.topology import commits_topic
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc, node_service_pb2, node_service_pb2_grpc

# Short, so that people see a lost node replaced while they watch. The price: shorter pauses cause a rebalance.
HEARTBEAT_INTERVAL_MS: Final = 500
SESSION_TIMEOUT_MS: Final = 3_000

_PROBE_TIMEOUT_S: Final = 1.0
_BASELINE_TIMEOUT_S: Final = 10.0
# Variables that say how this machine is set up. Our other variables are not passed on: they would configure every part
# alike, and three nodes can't have one port.
_KEPT_VARIABLES: Final = frozenset({"STATEHOUSE_CACHE_DIR", "STATEHOUSE_IVY_SETTINGS", "STATEHOUSE_LOG_LEVEL"})


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
        ready_timeout_s: float,
        changed: Callable[[], None],
    ) -> None:
        self.process = process
        self.port = port
        self._port_flag = port_flag
        self._arm, self._changed = arm, changed
        self._ready_timeout_s = ready_timeout_s
        self._ready: Ready = lambda: False

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

    def check_port(self) -> None:
        """Raise PortTaken, naming the flag, if something else listens on its port."""
        if self.port is not None and not self.is_running:
            ensure_free(self.port, self._port_flag)

    def spawn(self) -> None:
        """Start its process; returns at once."""
        self.check_port()
        self._ready = self._arm()
        self.process.start()
        self._changed()

    def is_ready(self, waited_s: float) -> bool:
        """Whether the spawned process works by now.

        Raises:
            ProcessFailed: it ended, or its time is over.

        """
        if self._ready():
            return True
        self.process.check()
        if waited_s >= self._ready_timeout_s:
            raise self.process.not_ready(self._ready_timeout_s)
        return False

    def start(self) -> float:
        """Start it and wait until it works; return the seconds that took."""
        self.spawn()
        return self.process.wait_ready(self._ready, self._ready_timeout_s)

    def stop(self) -> bool:
        """Stop it by a signal; return whether it ended by itself."""
        went = self.process.stop()
        self._changed()
        return went

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        self.process.kill()
        self._changed()

    def restart(self) -> float:
        """Stop it by a signal and start it again; return the seconds until it worked."""
        self.stop()
        return self.start()


class PartFactory:
    """Builds the parts of a cluster whose ports are fixed."""

    def __init__(
        self,
        application: LocalApplication,
        run_dir: Path,
        ports: Mapping[str, int],
        changed: Callable[[], None],
        *,
        tls: bool = False,
    ) -> None:
        self.tls = tls_of(run_dir, "operator") if tls else None
        """How the cluster's operator calls its router and nodes; None without TLS."""
        self._application, self._run_dir, self._ports, self._changed = application, run_dir, ports, changed
        self._bootstrap = f"{LOOPBACK}:{ports['kafka']}"
        self._router = f"{LOOPBACK}:{ports['router']}"
        self._env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("STATEHOUSE_") or name in _KEPT_VARIABLES
        } | {
            "STATEHOUSE_BOOTSTRAP": self._bootstrap,
            "STATEHOUSE_APPLICATION_ID": application.application_id,
            "STATEHOUSE_HEARTBEAT_INTERVAL_MS": str(HEARTBEAT_INTERVAL_MS),
            "STATEHOUSE_SESSION_TIMEOUT_MS": str(SESSION_TIMEOUT_MS),
            "PYTHONUNBUFFERED": "1",  # so that a log ends with what a process said last
        }

    def kafka(self) -> ClusterPart:
        """Return the broker."""
        ready_file = self._run_dir / "kafka.ready"

        def arm() -> Ready:
            ready_file.unlink(missing_ok=True)
            return ready_file.exists

        command = [
            "statehouse.local.kafka",
            "--data-dir",
            str(self._run_dir / "kafka"),
            "--ready-file",
            str(ready_file),
        ]
        command += ["--port", str(self._ports["kafka"])]
        # The first start on a machine fetches the jars.
        return self._part("kafka", command, arm, flag="--kafka-port", ready_timeout_s=900.0, stop_timeout_s=30.0)

    def sample_data(self) -> ManagedProcess:
        """Return the program that creates the source topics and feeds them."""
        return self._process("sample-data", [self._application.producer, "--bootstrap", self._bootstrap])

    def processor(self) -> ClusterPart:
        """Return the Spark application's driver."""
        env = {
            **self._security("processor"),
            "STATEHOUSE_CHECKPOINT_DIR": str(self._run_dir / "checkpoints"),
            "SPARK_LOCAL_DIRS": str(self._run_dir / "spark"),  # else a killed Spark leaves its files in /tmp
        }
        topic = commits_topic(self._application.application_id)
        command = ["statehouse.cli", "process", self._application.topology]
        return self._part(
            "processor",
            command,
            lambda: _grown(self._bootstrap, topic),
            env=env,
            ready_timeout_s=900.0,
            stop_timeout_s=45.0,
        )

    def controller(self) -> ClusterPart:
        """Return the standby controller. Nothing waits for it, so it works as soon as its process is there."""
        command, env = ["statehouse.cli", "controller", "--standby"], self._security("processor")
        return self._part("controller", command, lambda: lambda: True, env=env)

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
            lambda: _node_runs(f"{LOOPBACK}:{port}", self.tls),
            env=env,
            flag="--first-node-port",
            # SIGTERM would hand its tasks over first, to nodes that are about to stop as well.
            stop_signal=signal.SIGINT,
            ready_timeout_s=180.0,
        )

    def router(self) -> ClusterPart:
        """Return the router."""
        env = {**self._security("router"), "STATEHOUSE_ROUTER_PORT": str(self._ports["router"])}
        command = ["statehouse.cli", "router"]
        return self._part(
            "router", command, lambda: _router_routes(self._router, self.tls), env=env, flag="--router-port"
        )

    def http_api(self) -> ClusterPart:
        """Return the application's HTTP API."""
        port = self._ports["http"]
        command = [self._application.http_api, "--router", self._router, "--port", str(port)]
        url = f"http://{LOOPBACK}:{port}{self._application.http_probe}"
        return self._part(
            "http", command, lambda: _http_answers(url), env=self._credentials("reader"), flag="--http-port"
        )

    def _security(self, name: str) -> dict[str, str]:
        """Return the settings, as variables, of a part that serves as this identity; none without TLS."""
        if self.tls is None:
            return {}
        folder = self._run_dir / TLS_FOLDER
        further = {"STATEHOUSE_TLS_CRL": str(folder / CRL), "STATEHOUSE_SECURITY_RULES": str(folder / RULES)}
        return self._credentials(name) | further

    def _credentials(self, name: str) -> dict[str, str]:
        """Return the variables of a part that calls as this identity; none without TLS."""
        if self.tls is None:
            return {}
        shown = tls_of(self._run_dir, name)
        return {VARIABLES[field]: str(getattr(shown, field)) for field in ("ca", "certificate", "key")}

    def _part(
        self,
        name: str,
        command: list[str],
        arm: Callable[[], Ready],
        *,
        env: Mapping[str, str] | None = None,
        flag: str = "",
        stop_signal: signal.Signals = signal.SIGTERM,
        ready_timeout_s: float = 120.0,
        stop_timeout_s: float = 10.0,
    ) -> ClusterPart:
        process = self._process(name, command, env, stop_signal, stop_timeout_s)
        return ClusterPart(
            process,
            arm,
            port=self._ports.get(name),
            port_flag=flag,
            ready_timeout_s=ready_timeout_s,
            changed=self._changed,
        )

    def _process(
        self,
        name: str,
        command: list[str],
        env: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        stop_timeout_s: float = 10.0,
    ) -> ManagedProcess:
        return ManagedProcess(
            name,
            [sys.executable, "-m", *command],
            self._run_dir / "logs" / f"{name}.log",
            env={**self._env, **(env or {})},
            stop_signal=stop_signal,
            stop_timeout_s=stop_timeout_s,
        )


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


def _node_runs(target: str, tls: ClientTls | None) -> Ready:
    def runs() -> bool:
        with contextlib.suppress(grpc.RpcError), blocking_channel(target, tls) as channel:
            stub = node_service_pb2_grpc.NodeServiceStub(channel)
            return stub.GetNode(node_service_pb2.GetNodeRequest(), timeout=_PROBE_TIMEOUT_S).state == "RUNNING"
        return False

    return runs


def _router_routes(target: str, tls: ClientTls | None) -> Ready:
    def routes() -> bool:
        with contextlib.suppress(grpc.RpcError), blocking_channel(target, tls) as channel:
            stub = fleet_service_pb2_grpc.FleetServiceStub(channel)
            return bool(stub.GetFleet(fleet_service_pb2.GetFleetRequest(), timeout=_PROBE_TIMEOUT_S).stores)
        return False

    return routes


def _http_answers(url: str) -> Ready:
    def answers() -> bool:
        failures = (urllib.error.URLError, TimeoutError, ConnectionError)
        with contextlib.suppress(*failures), urllib.request.urlopen(url, timeout=_PROBE_TIMEOUT_S) as answer:  # noqa: S310 - http, loopback
            return bool(answer.status == 200)
        return False

    return answers


__all__ = (
    "HEARTBEAT_INTERVAL_MS",
    "SESSION_TIMEOUT_MS",
    "ClusterPart",
    "PartFactory",
    "ProcessFailed",
)
