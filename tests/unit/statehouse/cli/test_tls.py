"""The options of TLS: what commands show to routers and nodes, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.local.certificates import make_certificates
from statehouse.v1 import fleet_service_pb2, node_service_pb2, node_service_pb2_grpc
from tests.support.fake_router import NODE, FakeRouter, fake_router

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose cluster has certificates."""
    run_dir = tmp_path_factory.mktemp("somewhere") / ".statehouse"
    make_certificates(run_dir / "tls")
    return run_dir


@pytest.fixture(scope="module")
def demands(run_dir: Path) -> grpc.ServerCredentials:
    folder = run_dir / "tls"
    pair = ((folder / "router.key").read_bytes(), (folder / "router.pem").read_bytes())
    return grpc.ssl_server_credentials([pair], (folder / "ca.pem").read_bytes(), require_client_auth=True)


@pytest.fixture
def router(demands: grpc.ServerCredentials) -> Iterator[FakeRouter]:
    with fake_router(demands) as running:
        running.values = {"1": "one"}
        yield running


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)  # where no cluster was started
    return lambda *arguments, env=None: CliRunner().invoke(app, list(arguments), env=env)


def files(run_dir: Path, name: str = "reader") -> list[str]:
    folder = run_dir / "tls"
    shown = {"ca": folder / "ca.pem", "certificate": folder / f"{name}.pem", "key": folder / f"{name}.key"}
    return [word for field, path in shown.items() for word in (f"--tls-{field}", str(path))]


@pytest.mark.parametrize(
    "command", [["get", "boards", "1"], ["scan", "boards"], ["count", "boards"], ["locate", "boards", "1"]]
)
def test_commands_show_what_options_name(run: Run, router: FakeRouter, run_dir: Path, command: list[str]) -> None:
    done = run(*command, "--router", router.target, *files(run_dir))
    assert done.exit_code == ExitCode.DONE, done.stderr
    assert router.shown[-1] == ("reader", "")
    assert run(*command, "--router", router.target).exit_code == ExitCode.UNAVAILABLE


def test_variables_say_the_same(run: Run, router: FakeRouter, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of-the-test")
    folder = run_dir / "tls"
    env = {
        "STATEHOUSE_ROUTER": router.target,
        "STATEHOUSE_TLS_CA": str(folder / "ca.pem"),
        "STATEHOUSE_TLS_CERTIFICATE": str(folder / "reader.pem"),
        "STATEHOUSE_TLS_KEY": str(folder / "reader.key"),
        "STATEHOUSE_TLS_SERVER_NAME": "localhost",
        "STATEHOUSE_TOKEN_FILE": str(tmp_path / "token"),
    }
    assert run("nodes", "list", env=env).exit_code == ExitCode.DONE
    assert router.shown[-1] == ("reader", "Bearer of-the-test")
    failed = run("status", env=env | {"STATEHOUSE_TLS_SERVER_NAME": "elsewhere"})
    assert failed.exit_code == ExitCode.UNAVAILABLE
    assert "TLS: the server's certificate has other names" in failed.stderr


def test_beside_a_cluster_with_tls_its_operator_calls(
    run: Run, router: FakeRouter, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_dir.parent)
    port = int(router.target.rpartition(":")[2])
    (run_dir / "state.json").write_text(json.dumps({"ports": {"router": port}, "tls": True}))
    assert run("get", "boards", "1").exit_code == ExitCode.DONE
    assert run("get", "boards", "1", "--router", router.target).exit_code == ExitCode.DONE
    assert {name for name, _ in router.shown} == {"operator"}
    assert run("get", "boards", "1", *files(run_dir)).exit_code == ExitCode.DONE
    assert router.shown[-1][0] == "reader", "what is given counts"
    (run_dir / "state.json").write_text(json.dumps({"ports": {"router": port}}))
    failed = run("get", "boards", "1")
    assert failed.exit_code == ExitCode.UNAVAILABLE
    assert "TLS: if the server speaks nothing else" in failed.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--token-file", "token"], "--tls-ca"),
        (["--tls-ca", "ca.pem", "--tls-key", "a.key"], "go together"),
        (["--tls-ca", "nowhere.pem"], "can't read nowhere.pem"),
    ],
)
def test_what_does_not_go_together_is_refused(run: Run, options: list[str], told: str) -> None:
    failed = run("get", "boards", "1", *options)
    assert failed.exit_code == ExitCode.USAGE
    assert told in failed.stderr


class DrainedNode(node_service_pb2_grpc.NodeServiceServicer):
    """Takes a Drain over TLS."""

    def __init__(self, demands: grpc.ServerCredentials) -> None:
        self.drained_by = ""
        self._server = grpc.server(ThreadPoolExecutor(1))
        node_service_pb2_grpc.add_NodeServiceServicer_to_server(self, self._server)
        self.port = self._server.add_secure_port("127.0.0.1:0", demands)
        self._server.start()

    def Drain(self, _request: node_service_pb2.DrainRequest, context: Any) -> node_service_pb2.DrainResponse:  # noqa: N802 - the service's name
        self.drained_by = context.auth_context()["x509_common_name"][0].decode()
        return node_service_pb2.DrainResponse(active_tasks=["0_0"])

    def stop(self) -> None:
        self._server.stop(0).wait()


def test_a_drain_goes_to_the_node_over_tls(
    run: Run, router: FakeRouter, run_dir: Path, demands: grpc.ServerCredentials
) -> None:
    node = DrainedNode(demands)
    info = fleet_service_pb2.NodeInfo()
    info.CopyFrom(NODE)
    info.host.port = node.port
    router.nodes = [info]
    told = run("nodes", "drain", "node-a", "--no-wait", "--router", router.target, *files(run_dir, "operator"))
    node.stop()
    assert told.exit_code == ExitCode.DONE, told.stderr
    assert node.drained_by == "operator"
