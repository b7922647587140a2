"""A whole cluster on one machine: broker, processor, standby controller, nodes, router and HTTP API, each a process.

For `statehouse up`, demonstrations and tests. Everything is kept in one run directory, and everything can be found
again from it: the program that started a cluster may end, and another one stop it or a part of it.
"""

from __future__ import annotations

import shutil
import string
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from statehouse.client import Client, ClientTls
from statehouse.contract.version_names import FIRST
from statehouse.local.applications import LocalApplication
from statehouse.local.certificates import are_current, make_certificates
from statehouse.local.cluster_parts import CHECK, SAMPLE_DATA, ClusterPart, PartFactory
from statehouse.local.cluster_progress import ClusterProgress, OnProgress
from statehouse.local.cluster_state import (
    FED_MARKER,
    ClusterState,
    ClusterStopped,
    DeployedVersion,
    RunDirectoryBusy,
    delete_data,
    locked,
)
from statehouse.local.contents import ContentsUnknown, StoreContent, await_contents, find_contents
from statehouse.local.errors import LocalError
from statehouse.local.jars import resolve_jars
from statehouse.local.java import find_java
from statehouse.local.ports import ClusterPorts, free_port
from statehouse.local.process import ManagedProcess, ProcessFailed
from statehouse.local.tls_files import TLS_FOLDER

_POLL_S: Final = 0.1
_CHECK_TIMEOUT_S: Final = 300.0
_FEED_TIMEOUT_S: Final = 120.0
_LOOKUP_TIMEOUT_S: Final = 60.0
_NODES_MAX: Final = len(string.ascii_lowercase)


class LocalCluster:
    """A cluster in a run directory.

    If a cluster runs there already, this object takes charge of it, with its ports; `ports`, `nodes` and `tls` then
    have no effect. With `as_saved` it does so, too, if no process of it runs any more. It must run the same
    application. `folder` is where the application is imported from, by default the working directory. `tls`: its parts
    call each other over TLS, held to rules, with certificates that are made in the run directory if there are none.

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
        folder: Path | None = None,
        progress: OnProgress | None = None,
        as_saved: bool = False,
    ) -> None:
        if not 1 <= nodes <= _NODES_MAX:
            raise LocalError(f"a local cluster has 1 to {_NODES_MAX} nodes, not {nodes}.")
        self.run_dir = run_dir.resolve()
        self.progress: OnProgress = progress or (lambda _step: None)
        """Hears what happens to the parts; may be replaced."""
        found = ClusterState.load(self.run_dir)
        # For a start: if no process of it runs any more (a failed start, a reboot), its data counts, but not its ports.
        if found is None or not (as_saved or found.is_alive):
            names = [f"node-{letter}" for letter in string.ascii_lowercase[:nodes]]
            resolved = (ports or ClusterPorts()).resolved(names)
            kept = found if found is not None and found.application.topology == application.topology else None
            found = ClusterState(application, (folder or Path.cwd()).resolve(), resolved, tls=tls)
            if kept is not None:  # the topics say which version serves
                found.deployed, found.is_first_retired = kept.deployed, kept.is_first_retired
                found.ports.update({name: free_port() for each in kept.deployed for name in each.nodes})
        elif found.application.topology != application.topology:
            raise LocalError(
                f"{self.run_dir} has the cluster of {found.application.name!r}, not of {application.name!r}: stop it "
                "with `statehouse down`, or give another --run-dir."
            )
        self.application, self.folder = found.application, found.folder
        self._state = found
        self._saving = threading.Lock()
        factory = PartFactory(found, self.run_dir, self._save)
        self._factory = factory
        self.kafka = factory.kafka()
        self.processor = factory.processor()
        self.controller = factory.controller()
        self.nodes = tuple(factory.node(name) for name in found.nodes)
        self.router = factory.router()
        self.http = factory.http_api()
        self.deployed = {version.name: self._parts_of(version) for version in found.deployed}
        """The parts of versions beside the first one: processor, controller and nodes."""
        for part in self.parts:
            part.process.adopt(found.processes.get(part.name))

    @property
    def parts(self) -> tuple[ClusterPart, ...]:
        """All parts, in the order in which they are started."""
        beside = (part for parts in self.deployed.values() for part in parts)
        first = () if self._state.is_first_retired else (self.processor, self.controller, *self.nodes)
        return (self.kafka, *first, self.router, self.http, *beside)

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

    def part(self, name: str) -> ClusterPart:
        """Return a part by its name.

        Raises:
            LocalError: no part has this name.

        """
        for part in self.parts:
            if part.name == name:
                return part
        raise LocalError(f"there is no part {name!r}; there are: {', '.join(part.name for part in self.parts)}.")

    def contents(self) -> list[StoreContent]:
        """Return a key that exists for each store, as a router's fleet has them now.

        Raises:
            LookupFailure: the fleet can't answer.

        """
        with Client(self.router.address, tls=self.tls) as client:
            return find_contents(client)

    def start(self, *, spare: bool = False, check: bool = False) -> Self:
        """Start what does not run, and return once lookups through the router show what the processor has made.

        With `check`, Spark first analyses the application's queries, before anything else is started. If anything
        fails, the parts that this call started are killed. With `spare` the others go on if it is the
        application's code that fails: the next call then starts what it needs.

        Raises:
            LocalError: a port is taken, a part failed, Java is missing, …

        """
        find_java()
        with locked(self.run_dir):
            if self.tls is not None and not are_current(self.run_dir / TLS_FOLDER):
                make_certificates(self.run_dir / TLS_FOLDER, force=True)
            missing = [part for part in self.parts if not part.is_running or part.is_starting]
            for part in missing:
                part.check_port()
            try:
                self._start(missing, check=check)
                self._await_contents()
            except BaseException as failure:
                # Killing is quick: a second interrupt must not leave half of the parts running.
                self._end([self.processor] if spare and self.is_of_code(failure) else missing, ClusterPart.kill)
                raise
        return self

    def is_of_code(self, failure: BaseException) -> bool:
        """Whether what failed is a process that runs the application's code."""
        return isinstance(failure, ProcessFailed) and failure.process in {self.processor.name, CHECK, SAMPLE_DATA}

    def deploy(self, version: DeployedVersion) -> None:
        """Start one more version of the application; return once its processor has committed a batch.

        Raises:
            LocalError: it is there already, or a part failed: none of its parts run then; or another command is at
                work.

        """
        with locked(self.run_dir):
            self._adopt()
            if version.name in self.deployed:
                raise LocalError(f"version {version.name} is there already.")
            self._state.ports.update({name: free_port() for name in version.nodes})
            parts = self._parts_of(version)
            self._state.deployed.append(version)
            self.deployed[version.name] = parts
            try:
                self._bring_up(list(parts))
            except BaseException:
                self._remove(version.name, ClusterPart.kill)
                raise

    def remove(self, version: str) -> None:
        """Stop a version's parts and delete their data; do nothing if none are here.

        Raises:
            LocalError: another command is at work.

        """
        with locked(self.run_dir):
            self._adopt()
            if version in self.deployed:
                self._remove(version, ClusterPart.stop)
            elif version == FIRST and not self._state.is_first_retired:
                self._end([self.processor, self.controller, *self.nodes], ClusterPart.stop)
                self._state.is_first_retired = True
                self._forget_nodes(node.name for node in self.nodes)

    def _remove(self, version: str, end: Callable[[ClusterPart], object]) -> None:
        parts = self.deployed[version]
        self._end(parts, end)
        del self.deployed[version]
        gone = next(each for each in self._state.deployed if each.name == version)
        self._state.deployed.remove(gone)
        self._forget_nodes(gone.nodes)

    def _forget_nodes(self, names: Iterable[str]) -> None:
        for name in names:
            self._state.ports.pop(name, None)
            shutil.rmtree(self.run_dir / "nodes" / name, ignore_errors=True)
        self._save()

    def _parts_of(self, version: DeployedVersion) -> tuple[ClusterPart, ...]:
        factory = PartFactory(self._state, self.run_dir, self._save, version)
        return (factory.processor(), factory.controller(), *map(factory.node, version.nodes))

    def restart(self, part: ClusterPart) -> None:
        """Stop a part, if it runs, and start it again; return once it works.

        Raises:
            LocalError: it failed, and doesn't run now; or another command is at work.

        """
        with locked(self.run_dir):
            self._adopt()
            self._end([part], ClusterPart.stop)
            try:
                self._bring_up([part])
            except BaseException:
                part.kill()
                raise

    def stop(self, *, keep_data: bool = False) -> None:
        """Stop everything, the broker last; delete the data, unless `keep_data`. May be called when stopped.

        An interrupt (Ctrl-C) in between kills what has not stopped yet.
        """
        with locked(self.run_dir):
            if (state := ClusterState.load(self.run_dir)) is not None:
                self._follow(state)
            try:
                self._end(self.parts, ClusterPart.stop)
            except BaseException:
                self._end(self.parts, ClusterPart.kill)
                raise
            finally:
                if not any(part.is_running for part in self.parts):
                    has_versions = self._state.deployed or self._state.is_first_retired
                    if not (keep_data and has_versions):
                        ClusterState.forget(self.run_dir)
                    if not keep_data:
                        delete_data(self.run_dir)

    def check(self, but: Iterable[ClusterPart] = ()) -> None:
        """Return if every part's process exists, those in `but` aside, or another command is at work on them.

        Raises:
            ProcessFailed: one has ended.
            ClusterStopped: another command has stopped the cluster.

        """
        if all(part.is_running for part in self.parts if part not in but):
            return
        try:
            self._check_state()
            with locked(self.run_dir):
                self._adopt()
        except RunDirectoryBusy:
            return
        for part in self.parts:
            if part not in but:
                part.process.check()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _check_state(self) -> ClusterState:
        state = ClusterState.load(self.run_dir)
        if state is None or not state.processes:
            raise ClusterStopped(
                f"the cluster in {self.run_dir} was stopped by another command; `statehouse up` starts it again."
            )
        return state

    def _adopt(self) -> None:
        """Take charge of the versions and processes that other commands have started since."""
        self._follow(self._check_state())

    def _follow(self, state: ClusterState) -> None:
        known = self._state
        before = {each.name: each for each in known.deployed}
        known.deployed, known.is_first_retired = state.deployed, state.is_first_retired
        nodes = {name for each in state.deployed for name in each.nodes}
        known.ports.update({name: port for name, port in state.ports.items() if name in nodes})
        self.deployed = {
            each.name: self.deployed[each.name] if before.get(each.name) == each else self._parts_of(each)
            for each in state.deployed
        }
        for part in self.parts:
            identity = state.processes.get(part.name)
            if identity is not None and identity != part.process.identity:
                part.process.adopt(identity)

    def _start(self, missing: list[ClusterPart], *, check: bool) -> None:
        self._fetch_jars()
        if check and self.processor in missing:
            self._run(self._factory.check(), _CHECK_TIMEOUT_S)
        if self.kafka in missing:
            self._bring_up([self.kafka])
        self._feed()
        # All at the same time: each waits for what it needs, and the slow ones (Spark) start while the others do.
        self._bring_up([part for part in missing if part is not self.kafka])

    def _fetch_jars(self) -> None:
        """Fetch what the parts need here rather than in the parts, so that people see how far it is."""
        for jar_set in ("broker", "spark"):
            resolve_jars(jar_set, progress=lambda step: self._tell("jars", "downloading", detail=str(step)))

    def _bring_up(self, parts: list[ClusterPart]) -> None:
        """Start parts, and return once they work."""
        waiting = list(parts)
        begin = time.monotonic()
        for part in waiting:
            if not part.is_running:
                self._tell(part.name, "starting")
                part.spawn()
        while waiting:
            self._tell_stages()
            for part in list(waiting):
                waited_s = time.monotonic() - begin
                if part.is_ready(waited_s):
                    waiting.remove(part)
                    self._tell(part.name, "ready", waited_s, part.address)
            time.sleep(_POLL_S if waiting else 0)

    def _feed(self) -> None:
        """Feed the sample data, unless this run directory's broker has it already."""
        marker, sample = self.run_dir / FED_MARKER, self.application.sample
        fed = marker.read_text().splitlines() if marker.exists() else []
        if not sample or sample in fed:
            return
        self._run(self._factory.sample_data(), _FEED_TIMEOUT_S)
        marker.write_text("".join(f"{name}\n" for name in (*fed, sample)))

    def _run(self, program: ManagedProcess, timeout_s: float) -> None:
        """Run a program to its end.

        Raises:
            ProcessFailed: it failed, or its time is over.

        """
        self._tell(program.name, "starting")
        try:
            program.start()
            seconds = program.wait_ready(lambda: program.exit_code == 0, timeout_s)
        finally:
            program.kill()
        self._tell(program.name, "ready", seconds)

    def _await_contents(self) -> None:
        """Return once lookups are answered, and show what the processor has made of what the sources have."""
        begin = time.monotonic()

        def meanwhile() -> None:
            self._tell_stages()
            for part in self.parts:
                part.process.check()

        self._tell("lookups", "starting")
        try:
            with Client(self.router.address, tls=self.tls) as client:
                await_contents(client, _LOOKUP_TIMEOUT_S, meanwhile)
        except ContentsUnknown as failure:
            raise ProcessFailed(
                "router",
                f"answered no lookup within {_LOOKUP_TIMEOUT_S:g} s ({failure})",
                self.router.process.log_path,
                self.router.process.last_log_lines(),
            ) from failure
        self._tell_stages()
        self._tell("lookups", "ready", time.monotonic() - begin)

    def _tell_stages(self) -> None:
        """Tell what the processor, the slowest part to start, says of itself."""
        for stage in self.processor.stages():
            self._tell(self.processor.name, "doing", detail=stage)

    def _tell(self, part: str, event: str, seconds: float = 0.0, detail: str = "") -> None:
        self.progress(ClusterProgress(part, event, seconds, detail))

    def _end(self, parts: Iterable[ClusterPart], end: Callable[[ClusterPart], object]) -> None:
        """End parts, those that others depend on last."""
        ending = set(parts)
        beside = {part for parts in self.deployed.values() for part in parts}
        middle = {*self.nodes, self.processor, self.controller, *beside}
        front = {*self.parts} - middle - {self.kafka}

        def timed(part: ClusterPart) -> None:
            begin = time.monotonic()
            if part.is_running:
                went = end(part)
                self._tell(part.name, "stopped" if went else "killed", time.monotonic() - begin)

        for group in (ending & front, ending & middle, ending & {self.kafka}):
            if group:
                with ThreadPoolExecutor(len(group)) as pool:
                    list(pool.map(timed, sorted(group, key=lambda part: part.name)))

    def _save(self) -> None:
        """Write down which processes are ours, before anything else can fail."""
        with self._saving:  # parts are stopped in threads, several at the same time
            running = {part.name: part.process.identity for part in self.parts if part.is_running}
            self._state.processes = {name: identity for name, identity in running.items() if identity is not None}
            self._state.save(self.run_dir)


def cluster_of(run_dir: Path, *, progress: OnProgress | None = None) -> LocalCluster:
    """Return the cluster that was started in a run directory, with its ports, also if nothing of it runs any more.

    Raises:
        LocalError: none was.

    """
    found = ClusterState.load(run_dir)
    if found is None:
        raise LocalError(f"nothing is running in {run_dir.resolve()}; `statehouse up` starts a cluster.")
    return LocalCluster(run_dir, found.application, progress=progress, as_saved=True)
