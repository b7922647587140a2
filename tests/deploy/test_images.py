"""Each Dockerfile built, and its image run: as its user, without rights, on files that nobody can change."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from examples.leaderboard import topology
from statehouse.client import Client
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from tests.deploy.files import DOCKERFILES, Service, read_image, services
from tests.deploy.images import Built, build, needed, remove_containers
from tests.support.polling import poll_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]

_VOLUME: Final = "/var/lib/statehouse"
_USER: Final = 10_001
_PORTS: Final = ("STATEHOUSE_NODE_PORT", "STATEHOUSE_ROUTER_PORT", "STATEHOUSE_HTTP_PORT")


@pytest.fixture(scope="module")
def images() -> Iterator[Mapping[str, Built]]:
    """All images, by the end of their Dockerfiles' names."""
    assert os.geteuid() == 0, "images are built and mounted as root"
    assert needed() == [], f"these are missing; as root: apt-get install buildah mmdebstrap ({', '.join(needed())})"
    try:
        yield {
            path.suffix.lstrip("."): build(read_image(path), f"statehouse-{path.suffix.lstrip('.')}:local")
            for path in DOCKERFILES
        }
    finally:
        remove_containers()


class Container:
    """A service of compose.yaml, run in its image on this machine's network, at addresses of this machine."""

    def __init__(self, service: Service, image: Built, directory: Path, replaced: Mapping[str, str]) -> None:
        self._image, self.name = image, service.name
        self._grace_s = service.stop_grace_s
        volume = directory / service.name
        if not volume.exists():
            volume.mkdir()
            os.chown(volume, _USER, _USER)
        self._binds = {_VOLUME: volume}
        environment = dict(service.spec.get("environment", {}))
        given = {name: environment[name] for name in _PORTS if name in environment}
        self.port = free_port()
        environment |= dict.fromkeys(given, str(self.port))
        environment |= {name: value for name, value in replaced.items() if name in environment}
        argv = [*service.spec.get("entrypoint", image.entrypoint), *service.spec.get("command", [])]
        own = service.spec.get("healthcheck", {})
        check = own["test"][1:] if "test" in own else ([] if own.get("disable") else image.healthcheck)
        for port in given.values():
            check = [word.replace(f"127.0.0.1:{port}", f"{LOOPBACK}:{self.port}") for word in check]
        self._check, self._environment = check, environment
        self._log = directory / f"{service.name}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                image.command(argv, environment, self._binds), stdout=log, stderr=log, start_new_session=True
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def health(self) -> int:
        """Run the health check in the image; return its exit code."""
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.log[-3000:]}"
        command = self._image.command(self._check, self._environment, self._binds)
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode

    def wait_healthy(self, timeout_s: float) -> None:
        try:
            poll_until(lambda: self.health() == 0, timeout_s, f"{self.name} to be healthy")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log:\n{self.log[-3000:]}") from error

    def status(self) -> Mapping[str, str]:
        """What the kernel says of its process."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def stop(self) -> int:
        """End it as Compose does; return the exit code, given within the grace period."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(self._grace_s)

    def kill(self) -> None:
        """End it without a word, and all that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20.0)


Start = Callable[[str], Container]


@pytest.fixture
def start(images: Mapping[str, Built], kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Start]:
    """Start a service by its name in compose.yaml. The broker is the tests': its image is not ours."""
    ports: dict[str, int] = {}
    with ExitStack() as containers:

        def run(name: str) -> Container:
            service = services()[name]
            assert service.image is not None
            replaced = {"STATEHOUSE_BOOTSTRAP": kafka.bootstrap, "STATEHOUSE_ADVERTISED_HOST": LOOPBACK}
            if "router" in ports:
                replaced["STATEHOUSE_ROUTER"] = f"{LOOPBACK}:{ports['router']}"
            image = images[service.image.path.suffix.lstrip(".")]
            container = Container(service, image, tmp_path, replaced)
            containers.callback(container.kill)
            ports[name] = container.port
            return container

        yield run


def test_every_image_is_one_that_was_built(images: Mapping[str, Built]) -> None:
    assert images.keys() == {"service", "processor"}
    for built in images.values():
        assert built.entrypoint == ["statehouse"]
        done = subprocess.run(
            built.command(["statehouse", "--version"], {}, {}), capture_output=True, text=True, check=False, timeout=120
        )
        assert (done.returncode, done.stdout.split()[0]) == (0, "statehouse"), done.stderr


def test_the_cluster_of_the_images_answers_and_survives_a_kill(start: Start) -> None:
    nodes = [start(name) for name in ("node-1", "node-2", "node-3")]
    router, controller = start("router"), start("controller")
    for container in (*nodes, router, controller):
        poll_until(lambda each=container: each.status()["Uid"].split()[1] == str(_USER), 30.0, "its user")
        status = container.status()
        assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {"0" * 16}
        assert status["NoNewPrivs"] == "1"
    poll_until(lambda: "listening" in nodes[0].log, 60.0, "the first node to listen")
    assert nodes[0].health() != 0, "a node without an assignment has nothing to serve"

    assert start("sample-data").process.wait(120.0) == 0
    processor = start("processor")
    for container in (*nodes, router):
        container.wait_healthy(300.0)
    api = start("http-api")
    api.wait_healthy(300.0)

    with Client(f"{LOOPBACK}:{router.port}", timeout=20.0) as client:

        def answers() -> Any:
            try:
                return client.get(topology.STORE, "1")
            except LookupFailure:
                return None

        first = poll_until(answers, 120.0, "the router to answer")
        assert first is not None
        nodes[1].kill()
        for _ in range(50):
            assert client.get(topology.STORE, "1") is not None, "standbys answer for a node that is gone"
    again = start("node-2")
    again.wait_healthy(300.0)

    assert api.stop() in {0, -signal.SIGTERM}, api.log[-3000:]
    assert processor.stop() == 0, processor.log[-3000:]
    assert controller.stop() == 0, controller.log[-3000:]
    assert router.stop() == 0, router.log[-3000:]
    for node in (again, nodes[0], nodes[2]):
        assert node.stop() == 0, node.log[-3000:]
