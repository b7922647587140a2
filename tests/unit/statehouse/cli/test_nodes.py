"""`statehouse nodes`: what is shown of the nodes, and seeing a drain through."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from statehouse.cli import nodes
from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.local.ports import free_port
from statehouse.v1 import fleet_service_pb2, node_service_pb2, node_service_pb2_grpc, types_pb2
from tests.support.fake_router import NODE, FakeRouter, fake_router

Run = Callable[..., Result]


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with fake_router() as running:
        yield running


@pytest.fixture
def run(router: FakeRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATEHOUSE_ROUTER", router.target)
    return lambda *arguments: CliRunner().invoke(app, ["nodes", *arguments])


class FakeNode(node_service_pb2_grpc.NodeServiceServicer):
    """Takes a Drain; what becomes of it is for the test to say, in `fleet`, each time the router is asked."""

    def __init__(self) -> None:
        self.drains: list[node_service_pb2.DrainRequest] = []
        self.profiles: list[node_service_pb2.ProfileRequest] = []
        self.failing_ms: int | None = None
        self.tasks: list[node_service_pb2.TaskReplica] = []
        self.asked = 0
        self._server = grpc.server(ThreadPoolExecutor(2))
        node_service_pb2_grpc.add_NodeServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def Drain(self, request: node_service_pb2.DrainRequest, _context: Any) -> node_service_pb2.DrainResponse:  # noqa: N802 - the service's name
        self.drains.append(request)
        return node_service_pb2.DrainResponse(active_tasks=["0_0", "0_1"])

    def Profile(self, request: node_service_pb2.ProfileRequest, _context: Any) -> node_service_pb2.ProfileResponse:  # noqa: N802 - the service's name
        self.profiles.append(request)
        return node_service_pb2.ProfileResponse(profile=b"a profile")

    def GetNode(self, _request: node_service_pb2.GetNodeRequest, _context: Any) -> node_service_pb2.GetNodeResponse:  # noqa: N802 - the service's name
        self.asked += 1
        return node_service_pb2.GetNodeResponse(heartbeats_failing_ms=self.failing_ms, tasks=self.tasks)

    def stop(self) -> None:
        self._server.stop(0).wait()


def info(port: int, name: str = "node-a", heartbeat_age_ms: int = 100) -> fleet_service_pb2.NodeInfo:
    node = fleet_service_pb2.NodeInfo()
    node.CopyFrom(NODE)
    node.host.instance_id, node.host.port, node.heartbeat_age_ms = name, port, heartbeat_age_ms
    return node


@pytest.fixture
def node(router: FakeRouter, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    monkeypatch.setattr(nodes, "_POLL_S", 0.01)
    node = FakeNode()
    router.nodes = [info(node.port)]
    yield node
    node.stop()


def fleets(router: FakeRouter, *after_the_drain: tuple[int, list[fleet_service_pb2.NodeInfo]]) -> None:
    """Let the router tell of so many actives of node-a and of these nodes, one after the other; the last one stays."""
    first = (2, list(router.nodes))
    router.fleets = iter([first, *after_the_drain])


def test_nodes_are_listed_with_what_they_hold(run: Run, router: FakeRouter) -> None:
    router.nodes.append(
        fleet_service_pb2.NodeInfo(host=types_pb2.Host(instance_id="h-1f"), state="ERROR", dynamic=True)
    )
    header, first, second = run("list").stdout.splitlines()
    shown = dict(zip(header.split(), first.replace("100 ms ago", "100").split(), strict=True))
    assert shown == {
        "NODE": "node-a",
        "KIND": "static",
        "STATE": "RUNNING",
        "ADDRESS": "127.0.0.1:7101",
        "RACK": "-",
        "CAPACITY": "2",
        "ACTIVES": "1",
        "STANDBYS": "0",
        "EPOCH": "5",
        "HEARTBEAT": "100",
        "REACHABLE": "yes",
    }
    assert second.split()[:3] == ["h-1f", "dynamic", "ERROR"]
    document = json.loads(run("list", "-o", "json").stdout)[0]
    assert document["host"] == {"instance_id": "node-a", "host": "127.0.0.1", "port": 7101}
    assert (document["capacity"], document["dynamic"]) == (2, False)
    assert (document["actives"], document["standbys"]) == (1, 0)


def test_status_says_whose_heartbeats_fail(
    router: FakeRouter, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATEHOUSE_ROUTER", router.target)

    def status() -> tuple[str, dict[str, int]]:
        shown = CliRunner().invoke(app, ["status"])
        document = CliRunner().invoke(app, ["status", "-o", "json"])
        assert (shown.exit_code, document.exit_code) == (ExitCode.DONE, ExitCode.DONE)
        return shown.stdout, json.loads(document.stdout)["failing_heartbeats"]

    node.failing_ms = 12_400
    shown, failing = status()
    assert ("reached Kafka" in shown, failing) == (False, {})
    assert node.asked == 0, "its heartbeats arrive"

    late = 20_000
    router.nodes = [info(node.port, heartbeat_age_ms=late), info(free_port(), "gone", late)]
    shown, failing = status()
    assert "node-a  no heartbeat of it has reached Kafka for 12 s: see its log\n" in shown
    assert failing == {"node-a": 12_400}

    node.failing_ms = None
    shown, failing = status()
    assert ("reached Kafka" in shown, failing) == (False, {})


@pytest.mark.feature("store-files-peer")
def test_status_says_why_a_store_is_not_restored_from_a_peer(
    router: FakeRouter, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATEHOUSE_ROUTER", router.target)
    store = node_service_pb2.StoreReplica(
        store="counts", partition=3, restored_by="log", passed_over=["node-b: file_damaged: a bit"]
    )
    node.tasks = [node_service_pb2.TaskReplica(task="0_3", state="restoring", stores=[store])]
    why = "counts/3 is restored from log, not from node-b: file_damaged: a bit"

    def status(*options: str) -> str:
        shown = CliRunner().invoke(app, ["status", *options])
        assert shown.exit_code == ExitCode.DONE
        return shown.stdout

    assert why not in status()
    assert why in status("-o", "wide")
    restores = info(node.port)
    restores.state = "REBALANCING"
    router.nodes = [restores]
    assert why in status()
    assert json.loads(status("-o", "json"))["passed_over"] == {"node-a": [why]}


@pytest.mark.feature("clean-stop-hands")
def test_a_drain_is_seen_through(run: Run, router: FakeRouter, node: FakeNode) -> None:
    there = list(router.nodes)
    fleets(router, (2, there), (1, there), (0, there), (0, []))
    result = run("drain", "node-a", "--timeout", "1.5")
    assert result.exit_code == ExitCode.DONE
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "node-a drains: 2 active tasks to hand over",
        "node-a: 1 active tasks left",
        "node-a: 0 active tasks left",
        "node-a has left",
    ]
    assert [request.timeout_ms for request in node.drains] == [1_500]


def test_a_drain_need_not_be_waited_for(run: Run, node: FakeNode) -> None:
    result = run("drain", "node-a", "--no-wait")
    assert result.exit_code == ExitCode.DONE
    assert result.stderr == "node-a drains: 2 active tasks to hand over\n"
    assert not node.drains[0].HasField("timeout_ms"), "the node's own"


@pytest.mark.usefixtures("node")
def test_a_node_that_leaves_before_all_is_taken_over_is_said(run: Run, router: FakeRouter) -> None:
    fleets(router, (2, []))
    result = run("drain", "node-a")
    assert result.exit_code == ExitCode.DONE
    assert result.stderr.endswith("node-a has left; 2 tasks have no other active yet\n")


@pytest.mark.usefixtures("node")
def test_another_run_under_the_name_means_that_this_one_has_left(run: Run, router: FakeRouter) -> None:
    fleets(router, (2, [fleet_service_pb2.NodeInfo(host=NODE.host, incarnation="2nd")]))
    result = run("drain", "node-a")
    assert result.exit_code == ExitCode.DONE
    assert result.stderr.endswith("node-a has left\n")


@pytest.mark.usefixtures("node")
def test_a_node_that_falls_silent_without_leaving_is_an_error(run: Run, router: FakeRouter) -> None:
    silent = fleet_service_pb2.NodeInfo(host=NODE.host, incarnation=NODE.incarnation, heartbeat_age_ms=31_000)
    fleets(router, (1, [silent]))
    result = run("drain", "node-a")
    assert result.exit_code == ExitCode.ERROR
    assert "node node-a was not heard of for 31 s and has not left: see its log" in result.stderr


def test_who_can_not_be_drained_is_said(run: Run, router: FakeRouter) -> None:
    unknown = run("drain", "node-x")
    assert unknown.exit_code == ExitCode.USAGE
    assert "no node 'node-x' in application app; known: node-a" in " ".join(unknown.stderr.split())
    port = free_port()
    router.nodes = [info(port)]
    unreachable = run("drain", "node-a")
    assert unreachable.exit_code == ExitCode.UNAVAILABLE
    assert f"node node-a can't be reached at 127.0.0.1:{port}" in unreachable.stderr
    assert run("drain", "node-a", "--router", f"127.0.0.1:{free_port()}").exit_code == ExitCode.UNAVAILABLE


@pytest.mark.feature("node-profiled")
def test_a_profile_is_written(run: Run, node: FakeNode, tmp_path: Path) -> None:
    result = run("profile", "node-a", "found.pprof", "--kind", "heap", "--seconds", "0.5")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "found.pprof").read_bytes() == b"a profile"
    (asked,) = node.profiles
    assert (asked.kind, asked.duration_ms) == (node_service_pb2.PROFILE_KIND_HEAP, 500)
    assert "go tool pprof found.pprof" in result.stderr


def test_a_profile_overwrites_nothing(run: Run, node: FakeNode, tmp_path: Path) -> None:
    (tmp_path / "found.pprof").write_text("mine")
    assert run("profile", "node-a", "found.pprof").exit_code == ExitCode.USAGE
    assert (tmp_path / "found.pprof").read_text() == "mine"
    assert not node.profiles
