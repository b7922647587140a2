"""The containers' processes, started as compose.yaml says, on this machine and the tests' broker."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import members_topic
from statehouse.kafka.clients import admin
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import ensure_free, free_port
from statehouse.local.process import descendants
from tests.deploy.files import ROOT, services
from tests.support.fleet import Fleet
from tests.support.kafka import read_all
from tests.support.polling import poll_until

# What the images call by name, called with this Python.
_PROGRAMS: Final = {
    "statehouse": [sys.executable, "-m", "statehouse.cli"],
    "python": [sys.executable],
}
_PORT_VARIABLES: Final = ("STATEHOUSE_NODE_PORT", "STATEHOUSE_ROUTER_PORT", "STATEHOUSE_HTTP_PORT")
_VOLUME: Final = "/var/lib/statehouse"


class Container:
    """A service of compose.yaml as a plain process: its command and variables, with this machine's addresses."""

    def __init__(self, name: str, directory: Path, replaced: dict[str, str]) -> None:
        service = services()[name]
        environment = {
            variable: value for variable, value in os.environ.items() if not variable.startswith("STATEHOUSE_")
        }
        ours = {key: value for key, value in service.environment.items() if key != "PATH"}
        (variable,) = (each for each in _PORT_VARIABLES if each in ours)
        given_port, self.port = ours[variable], free_port()
        self.state = directory / name
        self.state.mkdir()
        for key, value in ours.items():
            environment[key] = value.replace(_VOLUME, str(self.state)) if value.startswith(_VOLUME) else value
        environment[variable] = str(self.port)
        environment |= {key: value for key, value in replaced.items() if key in ours}
        # As in an image, where the code is where the command runs or installed.
        environment["PYTHONPATH"] = str(ROOT)
        self.name = name
        self._command = _local(service.argv)
        self._check = [
            word.replace(f"127.0.0.1:{given_port}", f"127.0.0.1:{self.port}") for word in _local(service.healthcheck)
        ]
        assert self._check != _local(service.healthcheck), "the health check asks another port"
        self._log = directory / f"{name}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=environment, cwd=ROOT, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def health(self) -> tuple[int, str]:
        """Run the health check: exit code, and what it says."""
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.log[-3000:]}"
        done = subprocess.run(self._check, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.strip()

    def wait_health(self, expected: tuple[int, str]) -> None:
        try:
            poll_until(lambda: self.health() == expected, 30.0, f"{self.name} to be {expected[1]}")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log:\n{self.log[-3000:]}") from error

    def stop(self, number: signal.Signals) -> int:
        """Signal it; return its exit code, given within the grace period of compose.yaml."""
        children = descendants(self.process.pid)
        self.process.send_signal(number)
        code = self.process.wait(services()[self.name].stop_grace_s)
        assert not [child for child in children if child.is_alive]
        ensure_free(self.port)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(20.0)


Start = Callable[[str], Container]


@pytest.fixture
def application_id(unique_name: Callable[[str], str]) -> str:
    return unique_name("app")


@pytest.fixture
def start(kafka: EmbeddedKafka, application_id: str, tmp_path: Path) -> Iterator[Start]:
    """Start a service by its name in compose.yaml."""
    started: list[Container] = []

    def run(name: str) -> Container:
        replaced = {"STATEHOUSE_BOOTSTRAP": kafka.bootstrap, "STATEHOUSE_APPLICATION_ID": application_id}
        # Nodes advertise the names of a network that exists only among containers.
        replaced["STATEHOUSE_ADVERTISED_HOST"] = "127.0.0.1"
        routers = [container for container in started if container.name == "router"]
        if routers:
            replaced["STATEHOUSE_ROUTER"] = f"127.0.0.1:{routers[0].port}"
        started.append(Container(name, tmp_path, replaced))
        return started[-1]

    yield run
    for container in started:
        container.close()


@pytest.mark.feature("nodes-routers-create")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_before_the_processor_has_ever_run_all_wait_and_end_when_told(
    kafka: EmbeddedKafka, application_id: str, start: Start, number: signal.Signals
) -> None:
    node, router = start("node-1"), start("router")
    node.wait_health((1, "NOT_SERVING"))
    router.wait_health((1, "NOT_SERVING"))
    assert node.stop(number) == 0, node.log
    assert router.stop(number) == 0, router.log
    assert _files(node.state) == []
    topics = admin(kafka.bootstrap, "test").list_topics(timeout=10.0).topics
    assert not [topic for topic in topics if topic.startswith(application_id)], "they create none"


def test_becomes_healthy_with_an_assignment_and_leaves_nothing_behind(
    kafka: EmbeddedKafka, application_id: str, start: Start, tmp_path: Path
) -> None:
    def members() -> dict[bytes | None, bytes | None]:
        return dict(read_all(kafka.bootstrap, members_topic(application_id)))

    with Fleet(kafka.bootstrap, application_id, tmp_path) as fleet:
        first, second, router = start("node-1"), start("node-2"), start("router")
        poll_until(lambda: members().keys() == {b"node-1", b"node-2"}, 30.0, "both nodes to join")
        for container in (first, second, router):
            container.wait_health((1, "NOT_SERVING"))

        assert second.stop(signal.SIGTERM) == 0, second.log
        assert members()[b"node-2"] is None
        assert members()[b"node-1"] is not None
        assert _files(second.state) == []

        fleet.assign(TaskAssignment("node-1"), TaskAssignment("node-1"))
        first.wait_health((0, "SERVING"))
        router.wait_health((0, "SERVING"))

        # The sample's store isn't there: the HTTP API runs and says that it has nothing to answer with.
        api = start("http-api")
        poll_until(lambda: _answers(api.port), 30.0, "the HTTP API to answer")
        assert api.health()[0] == 1
        api.process.send_signal(signal.SIGTERM)
        assert api.process.wait(services()["http-api"].stop_grace_s) in {0, -signal.SIGTERM}, api.log

        assert router.stop(signal.SIGTERM) == 0, router.log
        # Nobody is there to take its tasks over: SIGTERM would wait for that. SIGINT is for one that will be back.
        assert first.stop(signal.SIGINT) == 0, first.log
        assert members()[b"node-1"] is not None
        locks = list(first.state.rglob(".lock"))
        assert locks, "tasks keep their directories, and with them their state, for a restart"
        for lock in locks:
            with lock.open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if somebody still holds it


def _local(argv: list[str]) -> list[str]:
    return [*_PROGRAMS[argv[0]], *argv[1:]]


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
            return True
    except OSError:
        return False
