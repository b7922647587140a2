"""The chart's pods played on this machine and the tests' broker: probes, and the way to the end."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import members_topic
from statehouse.local.certificates import make_certificates, rules
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.deploy.chart import render
from tests.deploy.pods import Pod
from tests.support.fleet import STORE, Fleet
from tests.support.kafka import read_all
from tests.support.polling import poll_until

pytestmark = pytest.mark.long

REQUEST = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="a"))
TLS = {
    "enabled": True,
    "nodeSecret": "node",
    "routerSecret": "router",
    "processorSecret": "processor",
    "healthSecret": "health",
    "rules": rules(),
}


class Start(Protocol):
    """Starts a pod of a component."""

    def __call__(self, component: str, values: Mapping[str, Any], ordinal: int = 0) -> Pod: ...


@pytest.fixture
def application_id(unique_name: Callable[[str], str]) -> str:
    return unique_name("app")


@pytest.fixture
def start(kafka: EmbeddedKafka, application_id: str, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as pods:

        def run(component: str, values: Mapping[str, Any], ordinal: int = 0) -> Pod:
            given = {**values, "applicationId": application_id, "kafka": {"bootstrap": kafka.bootstrap}}
            rendered = render(given, tmp_path)
            container = rendered.container(component, ordinal)
            pod = Pod(container, tmp_path, rendered.settings, _secrets(container.volumes, tmp_path), {})
            pods.callback(pod.close)
            return pod

        yield run


@pytest.fixture
def fleet(kafka: EmbeddedKafka, application_id: str, tmp_path: Path) -> Iterator[Fleet]:
    """The application's topics, and an assignment that the test writes."""
    with Fleet(kafka.bootstrap, application_id, tmp_path, partitions=1) as fleet:
        fleet.put({"a": "1"})
        yield fleet


def _secrets(volumes: Mapping[str, Mapping[str, Any]], directory: Path) -> dict[str, Path]:
    """Make the folders of Secrets with certificates, and of the rules, as the cluster would."""
    made = directory / "certificates"
    found = {}
    for name, volume in volumes.items():
        if "secret" in volume:
            if not made.exists():
                make_certificates(made)
            role = volume["secret"]["secretName"]
            folder = found[name] = directory / "secrets" / role
            folder.mkdir(parents=True, exist_ok=True)
            for file, source in (("tls.crt", f"{role}.pem"), ("tls.key", f"{role}.key"), ("ca.crt", "ca.pem")):
                shutil.copy(made / source, folder / file)
        elif name == "rules":
            folder = found[name] = directory / "rules"
            folder.mkdir(exist_ok=True)
            (folder / "rules.toml").write_text(rules())
    return found


def members(fleet: Fleet) -> dict[bytes | None, bytes | None]:
    return dict(read_all(fleet.bootstrap, members_topic(fleet.application_id)))


@pytest.mark.feature("router-goes-answering")
def test_probes_follow_a_start_an_assignment_and_the_end(start: Start, fleet: Fleet) -> None:
    values = {"routers": {"lameDuckSeconds": 20}}
    node, router, controller = start("node", values), start("router", values), start("controller", values)
    node.wait(ready=False)
    router.wait(ready=False)
    controller.wait(ready=True)

    fleet.assign(TaskAssignment(node.name))
    node.wait(ready=True)
    router.wait(ready=True)
    with grpc.insecure_channel(router.target) as channel:
        stub = query_service_pb2_grpc.QueryServiceStub(channel)
        assert stub.Get(REQUEST, timeout=10.0, wait_for_ready=True).found

        left_s = router.begin_stop()
        poll_until(lambda: not router.probe("readiness"), 10.0, "the router to be taken out of its Service")
        assert router.probe("liveness"), "nobody is to kill it before its time"
        for _ in range(10):
            assert stub.Get(REQUEST, timeout=10.0).found, "callers that have not heard of it are answered"
    assert router.process.wait(left_s) == 0, router.log
    assert controller.stop() == 0, controller.log

    # Nobody is there to take its tasks over: it waits for that, and leaves all the same.
    assert node.stop() == 0, node.log
    assert members(fleet)[node.name.encode()] is None, "it has left"


def test_a_node_that_keeps_its_tasks_leaves_nothing_behind_but_them(start: Start, fleet: Fleet) -> None:
    values = {"nodes": {"onStop": "keep"}, "settings": {"session_timeout_ms": 60_000}}
    node = start("node", values, ordinal=2)
    assert node.name.endswith("-node-2")
    fleet.assign(TaskAssignment(node.name))
    node.wait(ready=True)
    assert node.stop() == 0, node.log
    assert members(fleet)[node.name.encode()] is not None, "a member that will be back"
    again = start("node", values, ordinal=2)
    again.wait(ready=True)
    again.process.send_signal(signal.SIGINT)
    assert again.process.wait(30.0) == 0


@pytest.mark.feature("probes-under-mutual")
def test_probes_work_under_mutual_tls_and_rules(start: Start, fleet: Fleet) -> None:
    node, router, controller = (start(component, {"tls": TLS}) for component in ("node", "router", "controller"))
    controller.wait(ready=True)
    node.wait(ready=False)
    fleet.assign(TaskAssignment(node.name))
    node.wait(ready=True)
    router.wait(ready=True)

    probe = node.container.probes["liveness"]
    command = [word for word in probe["exec"]["command"] if not word.startswith(("--tls-certificate", "--tls-key"))]
    assert not node.asks({**probe, "exec": {"command": command}}), "who shows nothing is told nothing"
    assert router.stop() == 0, router.log
    assert controller.stop() == 0, controller.log
    assert node.stop() == 0, node.log


def test_the_own_certificate_serves_where_there_is_none_for_health(start: Start, fleet: Fleet) -> None:
    router = start("router", {"tls": {**TLS, "healthSecret": ""}})
    fleet.assign(TaskAssignment("nobody"))
    router.wait(ready=True)
    assert router.stop() == 0, router.log


@pytest.mark.feature("startup-readiness-liveness")
def test_a_processor_has_started_once_its_queries_run_and_ends_its_batch(start: Start) -> None:
    processor = start(
        "processor", {"processor": {"module": "examples.tally.topology", "settings": {"create_sources": 1}}}
    )
    assert not processor.probe("startup"), "Spark takes seconds to start"
    poll_until(lambda: processor.probe("startup"), processor.container.startup_s, "the processor to start")
    processor.wait(ready=True)
    assert processor.stop() == 0, processor.log
