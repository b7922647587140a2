"""A whole cluster on one machine: broker, processor, standby controller, nodes, router and HTTP API, each a process.

For `statehouse up`, demonstrations and tests. Everything is kept in one run directory, and everything can be found
again from it: the program that started a cluster may end, and another one stop it.
"""

from __future__ import annotations

import importlib.util
import shutil
import string
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from statehouse.client import Client, ClientTls
from statehouse.errors import LookupFailure
from statehouse.local.applications import LocalApplication, installed_application
from statehouse.local.certificates import are_current, make_certificates
from statehouse.local.cluster_parts import ClusterPart, PartFactory
from statehouse.local.cluster_state import ClusterState, locked
from statehouse.local.errors import LocalError
from statehouse.local.java import find_java
from statehouse.local.ports import free_port
from statehouse.local.process import ProcessFailed
from statehouse.local.tls_files import TLS_FOLDER

_POLL_S: Final = 0.1
_PRODUCE_TIMEOUT_S: Final = 120.0
_LOOKUP_TIMEOUT_S: Final = 60.0
_FED_MARKER: Final = "sample-data.fed"
_NODES_MAX: Final = len(string.ascii_lowercase)
# A stop without keep_data deletes only these: a run directory may hold other people's files.
_OWN_FILES: Final = ("kafka", "nodes", "checkpoints", "spark", "logs", TLS_FOLDER)
_OWN_SMALL_FILES: Final = ("kafka.ready", _FED_MARKER, "state.json", "state.json.new", "lock", ".gitignore")


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """Something that happens to a part, for progress shown to people.

    `event` is "starting", "ready", "stopped" or "killed"; `seconds` is how long the part took to get there.
    """

    part: str
    event: str
    seconds: float = 0.0
    detail: str = ""


OnProgress = Callable[[ClusterProgress], None]


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """The ports of a cluster's parts; nodes take `first_node` and those that follow. 0 is any free one."""

    kafka: int = 9092
    router: int = 7100
    http: int = 7000
    first_node: int = 7101

    @classmethod
    def free(cls) -> ClusterPorts:
        """Return any free ports."""
        return cls(0, 0, 0, 0)

    def resolved(self, nodes: Iterable[str]) -> dict[str, int]:
        """Return the port of each part by its name.

        Raises:
            LocalError: two parts would have the same port.

        """
        ports = {"kafka": self.kafka, "router": self.router, "http": self.http}
        ports |= {name: self.first_node + index if self.first_node else 0 for index, name in enumerate(nodes)}
        taken = {port for port in ports.values() if port}
        if len(taken) < sum(1 for port in ports.values() if port):
            raise LocalError(f"two parts can't have one port: {ports}. Choose others by the flags.")
        for name in [name for name, port in ports.items() if port == 0]:
            while ports[name] == 0 or ports[name] in taken:
                ports[name] = free_port()
            taken.add(ports[name])
        return ports


class LocalCluster:
    """A cluster in a run directory.

    If a cluster runs there already, this object takes charge of it, with its ports; `ports`, `nodes` and `tls` then
    have no effect. It must run the same application. `tls`: its parts call each other over TLS, held to rules, with
    certificates that are made in the run directory if there are none.

        with LocalCluster(tmp_path, application, ClusterPorts.free()) as cluster:
            cluster.node("node-a").kill()

    `processor`, `nodes`, … are parts that can be started, stopped, killed and restarted one by one. Not thread-safe.
    """

    def __init__(
        self,
        run_dir: Path,
        application: LocalApplication,
        ports: ClusterPorts | None = None,
        nodes: int = 3,
        *,
        tls: bool = False,
        progress: OnProgress | None = None,
    ) -> None:
        if not 1 <= nodes <= _NODES_MAX:
            raise LocalError(f"a local cluster has 1 to {_NODES_MAX} nodes, not {nodes}.")
        self.run_dir = run_dir.resolve()
        self.application = application
        self._progress = progress or (lambda _step: None)
        found = ClusterState.load(self.run_dir)
        # If no process of it runs any more (a failed start, a reboot), its data counts, but not its ports.
        if found is None or not any(process.is_alive for process in found.processes.values()):
            names = [f"node-{letter}" for letter in string.ascii_lowercase[:nodes]]
            found = ClusterState(application.name, (ports or ClusterPorts()).resolved(names), tls=tls)
        elif found.application != application.name:
            raise LocalError(
                f"{self.run_dir} has the cluster of {found.application!r}, not of {application.name!r}: stop it."
            )
        self._state = found
        self._saving = threading.Lock()
        factory = PartFactory(application, self.run_dir, found.ports, self._save, tls=found.tls)
        self._factory = factory
        self.kafka = factory.kafka()
        self.processor = factory.processor()
        self.controller = factory.controller()
        self.nodes = tuple(factory.node(name) for name in found.nodes)
        self.router = factory.router()
        self.http = factory.http_api()
        for part in self.parts:
            part.process.adopt(found.processes.get(part.name))

    @property
    def parts(self) -> tuple[ClusterPart, ...]:
        """All parts, in the order in which they are started."""
        return (self.kafka, self.processor, self.controller, *self.nodes, self.router, self.http)

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return self.kafka.address

    @property
    def tls(self) -> ClientTls | None:
        """How its operator calls the router and the nodes; None without TLS."""
        return self._factory.tls

    @property
    def is_running(self) -> bool:
        """Whether every part's process exists."""
        return all(part.is_running for part in self.parts)

    def node(self, name: str) -> ClusterPart:
        """Return a node by its name.

        Raises:
            KeyError: no node has this name.

        """
        return {node.name: node for node in self.nodes}[name]

    def start(self) -> Self:
        """Start what does not run, and return once a lookup through the router is answered.

        If anything fails, the parts that this call started are killed.

        Raises:
            LocalError: a port is taken, a part failed, Java is missing, …

        """
        self._check_machine()
        with locked(self.run_dir):
            if self.tls is not None and not are_current(self.run_dir / TLS_FOLDER):
                make_certificates(self.run_dir / TLS_FOLDER, force=True)
            missing = [part for part in self.parts if not part.is_running]
            for part in missing:
                part.check_port()
            try:
                self._start(missing)
            except BaseException:
                # Killing is quick: a second interrupt must not leave half of the parts running.
                self._end(missing, ClusterPart.kill)
                raise
        return self

    def stop(self, *, keep_data: bool = False) -> None:
        """Stop everything, the broker last; delete the data, unless `keep_data`. May be called when stopped.

        An interrupt (Ctrl-C) in between kills what has not stopped yet.
        """
        with locked(self.run_dir):
            try:
                self._end(self.parts, ClusterPart.stop)
            except BaseException:
                self._end(self.parts, ClusterPart.kill)
                raise
            finally:
                if not any(part.is_running for part in self.parts):
                    ClusterState.forget(self.run_dir)
                    if not keep_data:
                        self._delete()

    def check(self) -> None:
        """Return if every part's process exists.

        Raises:
            ProcessFailed: one has ended.

        """
        for part in self.parts:
            part.process.check()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _check_machine(self) -> None:
        find_java()
        for module in (self.application.topology, self.application.producer, self.application.http_api):
            package = module.rpartition(".")[0]
            try:
                found = importlib.util.find_spec(package)
            except ModuleNotFoundError:
                found = None
            if found is None:
                raise LocalError(f"{package} can't be imported from here. Run this in a checkout of the project.")

    def _start(self, missing: list[ClusterPart]) -> None:
        if self.kafka in missing:
            self._progress(ClusterProgress("kafka", "starting"))
            self._progress(ClusterProgress("kafka", "ready", self.kafka.start(), self.kafka.address))
        self._feed()
        # All at once: each waits for what it needs, and the slow ones (Spark) start while the others do.
        begin = time.monotonic()
        waiting = [part for part in missing if part is not self.kafka]
        for part in waiting:
            self._progress(ClusterProgress(part.name, "starting"))
            part.spawn()
        while waiting:
            for part in list(waiting):
                waited_s = time.monotonic() - begin
                if part.is_ready(waited_s):
                    waiting.remove(part)
                    self._progress(ClusterProgress(part.name, "ready", waited_s, part.address))
            time.sleep(_POLL_S if waiting else 0)
        self._await_lookup()

    def _feed(self) -> None:
        """Feed the sample data, unless this run directory's broker has it already."""
        marker = self.run_dir / _FED_MARKER
        if marker.exists():
            return
        producer = self._factory.sample_data()
        self._progress(ClusterProgress(producer.name, "starting"))
        try:
            producer.start()
            seconds = producer.wait_ready(lambda: producer.exit_code == 0, _PRODUCE_TIMEOUT_S)
        finally:
            producer.kill()
        marker.touch()
        self._progress(ClusterProgress(producer.name, "ready", seconds))

    def _await_lookup(self) -> None:
        """Return once a lookup of the application's key through the router is answered."""
        begin = time.monotonic()
        failure = "no answer"
        with Client(self.router.address, tls=self.tls) as client:
            while time.monotonic() - begin < _LOOKUP_TIMEOUT_S:
                try:
                    if client.get(self.application.store, self.application.key).found:
                        self._progress(ClusterProgress("lookups", "ready", time.monotonic() - begin))
                        return
                    failure = f"key {self.application.key} is not in store {self.application.store}"
                except LookupFailure as error:
                    failure = str(error)
                self.check()
                time.sleep(_POLL_S)
        raise ProcessFailed(
            "router",
            f"answered no lookup within {_LOOKUP_TIMEOUT_S:g} s ({failure})",
            self.router.process.log_path,
            self.router.process.last_log_lines(),
        )

    def _end(self, parts: Iterable[ClusterPart], end: Callable[[ClusterPart], object]) -> None:
        """End parts, those that others depend on last."""
        ending = set(parts)
        front, middle = {self.http, self.router}, {*self.nodes, self.processor, self.controller}

        def timed(part: ClusterPart) -> None:
            begin = time.monotonic()
            if part.is_running:
                went = end(part)
                event = "stopped" if went else "killed"
                self._progress(ClusterProgress(part.name, event, time.monotonic() - begin))

        for group in (ending & front, ending & middle, ending & {self.kafka}):
            if group:
                with ThreadPoolExecutor(len(group)) as pool:
                    list(pool.map(timed, sorted(group, key=lambda part: part.name)))

    def _save(self) -> None:
        """Write down which processes are ours, before anything else can fail."""
        with self._saving:  # parts are stopped in threads, several at once
            running = {part.name: part.process.identity for part in self.parts if part.is_running}
            self._state.processes = {name: identity for name, identity in running.items() if identity is not None}
            self._state.save(self.run_dir)

    def _delete(self) -> None:
        for name in _OWN_FILES:
            shutil.rmtree(self.run_dir / name, ignore_errors=True)
        for name in _OWN_SMALL_FILES:
            (self.run_dir / name).unlink(missing_ok=True)
        if not any(self.run_dir.iterdir()):
            self.run_dir.rmdir()


def cluster_of(
    run_dir: Path,
    default: str,
    ports: ClusterPorts | None = None,
    nodes: int = 3,
    *,
    tls: bool = False,
    progress: OnProgress | None = None,
) -> LocalCluster:
    """Return a run directory's cluster: for the application that was started there, else for the `default` one.

    Raises:
        LocalError: no installed package offers the application.

    """
    found = ClusterState.load(run_dir)
    application = installed_application(default if found is None else found.application)
    return LocalCluster(run_dir, application, ports, nodes, tls=tls, progress=progress)
