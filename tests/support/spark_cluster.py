"""A standalone Spark cluster: a master and workers as real processes on loopback, from the pip package only."""

from __future__ import annotations

import itertools
import json
import os
import sys
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import pyspark

from statehouse.local.jars import resolve_jars
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.local.process import ManagedProcess, ProcessIdentity, descendants
from tests.support.polling import poll_until

SPARK_HOME: Final = Path(pyspark.__file__).parent
START_S: Final = 60.0
_ROOT: Final = Path(__file__).parents[2]
_EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
# Everything stays on this machine and runs this Python; workers start executors with the jars of SPARK_HOME.
ENVIRONMENT: Final = MappingProxyType(
    {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
)
# Executors live as short here as drivers do (tests/conftest.py).
_FAST_START: Final = "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_DAEMON_ENVIRONMENT: Final = MappingProxyType(
    {
        "SPARK_DAEMON_MEMORY": "256m",
        # The master's second way to submit has a port that is the same for all masters of a machine.
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -Dspark.master.rest.enabled=false",
    }
)


def spark_submit(master_url: str) -> list[str]:
    """Return the command that submits a topology to a cluster; the topology's module and options follow."""
    jars = ",".join(str(jar) for jar in resolve_jars("spark"))
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master_url, "--jars", jars, "--conf", _FAST_START]
    return [*command, str(_ROOT / "processor" / "cli.py")]


def process_on(master_url: str) -> list[str]:
    """Return the command that runs a topology's driver here, as `statehouse process` does, its tasks on a cluster."""
    return [sys.executable, "-m", "processor.cli", "--master", master_url, "--conf", _FAST_START]


class SparkCluster:
    """One master; workers come and go, each with one executor of an application."""

    def __init__(
        self, directory: Path, workers: int = 2, *, memory_mb: int = 1024, prefixes: Iterable[list[str]] = ()
    ) -> None:
        """Prepare. `prefixes`: what goes before the commands of the first workers; it holds for executors, too."""
        self._directory, self._memory_mb, self._first_workers = directory, memory_mb, workers
        self._prefixes = iter(prefixes)
        self._port, self._ui_port = free_port(), free_port()
        self._numbers = itertools.count(1)
        self._master = self._daemon(
            "master",
            "org.apache.spark.deploy.master.Master",
            LOOPBACK,
            "--port",
            str(self._port),
            "--webui-port",
            str(self._ui_port),
        )
        self.workers: list[ManagedProcess] = []

    @property
    def url(self) -> str:
        """What applications name as their master."""
        return f"spark://{LOOPBACK}:{self._port}"

    def __enter__(self) -> Self:
        self._master.start()
        try:
            self._master.wait_ready(lambda: self._state() is not None, START_S)
            for _ in range(self._first_workers):
                self.add_worker()
            self.wait_for_workers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.workers, self._master):
            process.kill()

    def add_worker(self) -> ManagedProcess:
        """Start a worker with one core; applications that run get an executor on it."""
        number = next(self._numbers)
        # As if each were a machine: a second attempt of a task goes to another host than the first.
        name, host = f"worker-{number}", f"127.0.0.{number + 1}"
        options = ["--cores", "1", "--memory", f"{self._memory_mb}m", "--work-dir", str(self._directory / name)]
        options += ["--webui-port", "0", self.url]
        prefix = next(self._prefixes, [])
        worker = self._daemon(name, "org.apache.spark.deploy.worker.Worker", host, *options, prefix=prefix)
        worker.start()
        self.workers.append(worker)
        return worker

    def remove_worker(self, worker: ManagedProcess) -> None:
        """Stop a worker, and with it its executors."""
        self.workers.remove(worker)
        worker.stop()

    def wait_for_workers(self) -> None:
        """Wait until every worker is registered."""
        poll_until(lambda: (self._state() or {}).get("aliveworkers") == len(self.workers), START_S, "the workers")

    def executors(self) -> list[ProcessIdentity]:
        """Return the executors' processes, those that are just starting left out."""
        children = [child for worker in self.workers if worker.pid for child in descendants(worker.pid)]
        return [child for child in children if _EXECUTOR in command_line(child.pid)]

    def wait_for_executors(self, count: int, timeout_s: float = START_S) -> list[ProcessIdentity]:
        """Wait until so many executors run."""

        def running() -> list[ProcessIdentity]:
            now = self.executors()
            return now if len(now) == count else []

        return poll_until(running, timeout_s, f"{count} executors")

    def _daemon(
        self, name: str, main_class: str, host: str, *options: str, prefix: Sequence[str] = ()
    ) -> ManagedProcess:
        command = [*prefix, str(SPARK_HOME / "bin" / "spark-class"), main_class, "--host", host, *options]
        return ManagedProcess(
            f"Spark's {name}",
            command,
            self._directory / f"{name}.log",
            env={**os.environ, **ENVIRONMENT, **_DAEMON_ENVIRONMENT, "SPARK_LOCAL_IP": host},
        )

    def _state(self) -> dict[str, Any] | None:
        """Return what the master says of itself; None before it answers, or while its pages are being attached."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._ui_port}/json/", timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
                return state
        except (OSError, ValueError):
            return None


def command_line(pid: int) -> str:
    """Return what a process was started with; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
