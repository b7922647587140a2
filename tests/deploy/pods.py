"""A pod of the chart as a plain process: command, variables, files, probes and stop, at addresses of this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from statehouse.local.ports import LOOPBACK, free_port
from statehouse.local.process import descendants
from tests.deploy.chart import Container
from tests.deploy.files import ROOT
from tests.support.polling import poll_until

# What the images call by name, called with this Python.
_PROGRAMS: Final = {"statehouse": [sys.executable, "-m", "statehouse.cli"], "python": [sys.executable]}
_SCRATCH: Final = "/tmp"  # noqa: S108 - a volume
_PORT_VARIABLES: Final = {
    7100: "STATEHOUSE_ROUTER_PORT",
    7101: "STATEHOUSE_NODE_PORT",
    9100: "STATEHOUSE_METRICS_PORT",
    7000: "STATEHOUSE_HTTP_PORT",
}


class Pod:
    """The process of a container. `files`: the folders that stand for its volumes, by their names.

    Files of the pod are found at their places by replacing paths: in variables, commands and the settings' file.
    """

    def __init__(
        self,
        container: Container,
        directory: Path,
        settings: str,
        files: Mapping[str, Path],
        replaced: Mapping[str, str],
    ) -> None:
        self.container, self.name = container, container.pod
        self._paths: dict[str, str] = {}
        own = directory / container.pod
        # A socket's path may have 107 bytes, and the folders of tests have long names.
        self._scratch = tempfile.TemporaryDirectory(prefix="pod-")
        for volume, place in container.mounts.items():
            folder = Path(self._scratch.name) if place == _SCRATCH else files.get(volume, own / volume)
            folder.mkdir(parents=True, exist_ok=True)
            self._paths[place] = str(folder)
        (own / "settings" / "statehouse.toml").write_text(self._here(settings))
        self.ports = {port: free_port() for port in container.ports.values()}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STATEHOUSE_")}
        environment |= {name: self._here(value) for name, value in container.environment.items()}
        environment |= {_PORT_VARIABLES[given]: str(port) for given, port in self.ports.items()}
        environment |= {"STATEHOUSE_BIND_HOST": LOOPBACK, "TMPDIR": self._here(_SCRATCH), "PYTHONPATH": str(ROOT)}
        if "STATEHOUSE_ADVERTISED_HOST" in environment:
            environment["STATEHOUSE_ADVERTISED_HOST"] = LOOPBACK
        environment |= replaced
        self._log = own / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command(container.argv), env=environment, cwd=ROOT, stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def target(self) -> str:
        """Where it serves gRPC."""
        return f"{LOOPBACK}:{self.ports[self.container.ports['grpc']]}"

    def probe(self, kind: str) -> bool:
        """Ask a probe as the kubelet does; return whether it succeeds."""
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.log[-3000:]}"
        return self.asks(self.container.probes[kind])

    def asks(self, probe: Mapping[str, Any]) -> bool:
        """Ask with a probe."""
        timeout_s = float(probe["timeoutSeconds"])
        if "grpc" in probe:
            with grpc.insecure_channel(f"{LOOPBACK}:{self.ports[probe['grpc']['port']]}") as channel:
                request = health_pb2.HealthCheckRequest(service=probe["grpc"]["service"])
                try:
                    answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
                except grpc.RpcError:
                    return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        if "httpGet" in probe:
            port = self.ports[self.container.ports[probe["httpGet"]["port"]]]
            try:
                with urllib.request.urlopen(f"http://{LOOPBACK}:{port}{probe['httpGet']['path']}", timeout=timeout_s):
                    return True
            except (urllib.error.URLError, OSError):
                return False
        return self.run(probe["exec"]["command"], timeout_s) == 0

    def run(self, argv: list[str], timeout_s: float) -> int:
        """Run a command in the container; return its exit code."""
        done = subprocess.run(self._command(argv), cwd=ROOT, capture_output=True, check=False, timeout=timeout_s)
        return done.returncode

    def wait(self, *, ready: bool) -> None:
        """Wait until it has started, and is ready or not; meanwhile and then it is alive."""
        poll_until(lambda: self.probe("startup"), 60.0, f"{self.name} to start:\n{self.log[-2000:]}")
        try:
            poll_until(lambda: self.probe("readiness") is ready, 60.0, f"{self.name} to be ready: {ready}")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log:\n{self.log[-3000:]}") from error
        assert self.probe("liveness")

    def begin_stop(self) -> float:
        """Do what the kubelet does first; return the seconds that are left of the grace period."""
        began = time.monotonic()
        if self.container.pre_stop:
            assert self.run(self.container.pre_stop, self.container.grace_s) == 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.container.grace_s - (time.monotonic() - began)

    def stop(self) -> int:
        """Stop it as the kubelet does; return the exit code, given within the grace period."""
        children = descendants(self.process.pid)
        code = self.process.wait(self.begin_stop())
        # In a pod the rest is killed with its first process. A JVM ends a moment after its driver.
        poll_until(lambda: not any(child.is_alive for child in children), 10.0, "its children to end")
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(20.0)
        self._scratch.cleanup()

    def _command(self, argv: list[str]) -> list[str]:
        words = [self._here(word) for word in argv]
        for given, port in getattr(self, "ports", {}).items():
            words = [word.replace(f"127.0.0.1:{given}", f"{LOOPBACK}:{port}") for word in words]
        if getattr(self, "process", None) is not None:  # in the container it is the first process
            words = [word.replace("os.kill(1,", f"os.kill({self.process.pid},") for word in words]
        return [*_PROGRAMS[words[0]], *words[1:]]

    def _here(self, text: str) -> str:
        """Return a text with the container's paths replaced by ours."""
        places = "|".join(re.escape(place) for place in sorted(self._paths, key=len, reverse=True))
        return re.sub(rf"(?<![\w.])({places})(?![\w-])", lambda found: self._paths[found[1]], text)
