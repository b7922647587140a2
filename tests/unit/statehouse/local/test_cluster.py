"""A local cluster's ports and what it writes down; running one is tests/e2e's job."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from examples.leaderboard.local import APPLICATION
from statehouse.contract.version_names import FIRST
from statehouse.local import cluster as cluster_module
from statehouse.local.applications import LocalApplication
from statehouse.local.cluster import LocalCluster, cluster_of
from statehouse.local.cluster_parts import PartFactory
from statehouse.local.cluster_state import (
    ClusterState,
    ClusterStopped,
    DeployedVersion,
    ForeignDirectory,
    RunDirectoryBusy,
    delete_data,
    locked,
)
from statehouse.local.errors import LocalError, PortTaken
from statehouse.local.ports import ROUTER_METRICS, ClusterPorts
from statehouse.local.process import ManagedProcess, ProcessFailed, ProcessIdentity

HELLO = LocalApplication("hello", "hello", "hello.topology")
_SECURITY = ("tls_certificate", "tls_key", "tls_ca", "tls_crl", "security_rules")


def test_nodes_take_the_ports_that_follow():
    ports = ClusterPorts().resolved(["node-a", "node-b"])

    assert ports.pop(ROUTER_METRICS) not in {0, *ports.values()}
    assert ports == {"kafka": 9092, "router": 7100, "http": 7000, "node-a": 7101, "node-b": 7102}


def test_free_ports_differ_from_each_other():
    ports = ClusterPorts.free().resolved([f"node-{letter}" for letter in "abcdef"])

    assert 0 not in ports.values()
    assert len(set(ports.values())) == len(ports)


def test_one_port_for_two_parts_is_refused():
    with pytest.raises(LocalError, match="can't have one port"):
        ClusterPorts(router=7102).resolved(["node-a", "node-b"])


def test_versions_beside_the_first_one_are_remembered_with_their_nodes(tmp_path: Path) -> None:
    ports = {"kafka": 1, "node-a": 2, "node-v2-a": 3}
    beside = DeployedVersion("v2", "examples.leaderboard.top_five", 16, ("node-v2-a",))
    ClusterState(APPLICATION, tmp_path, ports, deployed=[beside]).save(tmp_path)
    found = ClusterState.load(tmp_path)
    assert found is not None
    assert found.deployed == [beside]
    assert found.nodes == ["node-a"], "of the first version alone"
    assert (beside.processor, beside.controller) == ("processor-v2", "controller-v2")
    assert [found.topology_of(version) for version in (FIRST, "v2")] == [APPLICATION.topology, beside.topology]


def with_versions(run_dir: Path, *processes: str, **state: Any) -> ClusterState:
    """Write down a cluster with a version beside the first one. These parts run."""
    ports = {"kafka": 1, "router": 2, "http": 3, ROUTER_METRICS: 5, "node-a": 4, "node-v2-a": 6}
    beside = DeployedVersion("v2", "hello.topology", 16, ("node-v2-a",))
    own = alive()["router"]
    made = ClusterState(HELLO, run_dir, ports, dict.fromkeys(processes, own), deployed=[beside], **state)
    made.save(run_dir)
    return made


def names_of(cluster: LocalCluster) -> list[str]:
    return [part.name for part in cluster.parts]


def test_a_version_that_another_command_deploys_is_taken_over(tmp_path: Path) -> None:
    ports = {"kafka": 1, "router": 2, "http": 3, "node-a": 4, ROUTER_METRICS: 5}
    everything = ["kafka", "processor", "controller", "node-a", "router", "http"]
    ClusterState(HELLO, tmp_path, ports, dict.fromkeys(everything, alive()["router"])).save(tmp_path)
    cluster = LocalCluster(tmp_path, HELLO)
    with_versions(tmp_path, *everything, "processor-v2", "controller-v2", "node-v2-a", is_first_retired=True)
    cluster._adopt()
    assert names_of(cluster) == ["kafka", "router", "http", "processor-v2", "controller-v2", "node-v2-a"]
    assert all(part.is_running for part in cluster.parts)
    assert cluster.part("node-v2-a").address == "127.0.0.1:6"
    cluster.check()


def test_the_first_version_is_removed_with_its_nodes_data_and_not_started_again(tmp_path: Path) -> None:
    with_versions(tmp_path, "kafka")
    for name in ("node-a", "node-v2-a"):
        (tmp_path / "nodes" / name).mkdir(parents=True)
    LocalCluster(tmp_path, HELLO).remove(FIRST)
    assert [each.name for each in (tmp_path / "nodes").iterdir()] == ["node-v2-a"]
    found = cluster_of(tmp_path)
    assert found.nodes == ()
    assert names_of(found) == ["kafka", "router", "http", "processor-v2", "controller-v2", "node-v2-a"]
    found.remove(FIRST)
    found.remove("v2")
    assert list((tmp_path / "nodes").iterdir()) == []
    assert names_of(cluster_of(tmp_path)) == ["kafka", "router", "http"]


def test_versions_stay_with_the_data(tmp_path: Path) -> None:
    with_versions(tmp_path, is_first_retired=True)
    LocalCluster(tmp_path, HELLO, ClusterPorts.free()).stop(keep_data=True)
    cluster = LocalCluster(tmp_path, HELLO, ClusterPorts.free(), nodes=1)
    assert names_of(cluster) == ["kafka", "router", "http", "processor-v2", "controller-v2", "node-v2-a"]
    assert cluster.part("node-v2-a").port not in {None, 6}
    with pytest.raises(ClusterStopped):
        cluster.check()
    cluster.stop()
    assert not (tmp_path / "state.json").exists()


def test_state_comes_back_as_it_was_saved(tmp_path: Path):
    ports = {"kafka": 1, "node-b": 3, "node-a": 2}
    state = ClusterState(APPLICATION, tmp_path / "app", ports, {"kafka": ProcessIdentity(7, "123")}, tls=True)
    state.save(tmp_path)

    assert ClusterState.load(tmp_path) == state
    assert state.nodes == ["node-a", "node-b"]
    ClusterState.forget(tmp_path)
    assert ClusterState.load(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 99}', '{"version": 3, "application": {"colour": "red"}}']
)
def test_a_damaged_state_is_told(tmp_path: Path, text: str):
    (tmp_path / "state.json").write_text(text)

    with pytest.raises(LocalError, match=r"state\.json"):
        ClusterState.load(tmp_path)


@pytest.mark.feature("check-names-mistakes")
def test_nothing_is_started_when_the_code_has_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = [sys.executable, "-c", "print('error: topology.py:3: no such column'); exit(1)"]
    monkeypatch.setattr(cluster_module, "find_java", lambda: None)
    monkeypatch.setattr(LocalCluster, "_fetch_jars", lambda _self: None)
    monkeypatch.setattr(PartFactory, "check", lambda _self: ManagedProcess("check", program, tmp_path / "check.log"))
    cluster = LocalCluster(tmp_path / "run", HELLO, ClusterPorts.free())
    with pytest.raises(ProcessFailed, match=r"error: topology\.py:3: no such column") as raised:
        cluster.start(check=True)
    assert cluster.is_of_code(raised.value)
    assert [part.name for part in cluster.parts if part.is_running] == []
    assert not (tmp_path / "run" / "logs").exists()


def test_one_command_at_a_time(tmp_path: Path):
    with locked(tmp_path), pytest.raises(RunDirectoryBusy), locked(tmp_path):
        pass

    with locked(tmp_path):
        pass


@pytest.mark.feature("acts-told-getfleet")
def test_a_cluster_that_was_started_is_found_with_its_ports(tmp_path: Path):
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    ClusterState(
        APPLICATION, tmp_path, {"kafka": 1, "router": 2, "http": 3, "node-a": 4, ROUTER_METRICS: 5}, {"router": own}
    ).save(tmp_path)

    cluster = LocalCluster(tmp_path, APPLICATION, ClusterPorts(), nodes=3)

    assert [part.name for part in cluster.parts] == ["kafka", "processor", "controller", "node-a", "router", "http"]
    assert cluster.router.address == "127.0.0.1:2"
    assert cluster.router.is_running
    assert not cluster.kafka.is_running
    assert not cluster.is_running


def test_one_of_which_nothing_runs_has_no_claim_to_its_ports(tmp_path: Path):
    gone = ProcessIdentity(os.getpid(), "a time long ago")
    ClusterState(
        APPLICATION, tmp_path, {"kafka": 1, "router": 2, "http": 3, "node-a": 4, ROUTER_METRICS: 5}, {"router": gone}
    ).save(tmp_path)

    cluster = LocalCluster(tmp_path, APPLICATION, ClusterPorts(router=7200), nodes=2)

    assert cluster.router.address == "127.0.0.1:7200"
    assert [node.name for node in cluster.nodes] == ["node-a", "node-b"]


def test_a_taken_port_is_told_before_anything_is_started(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = ClusterPorts.free().resolved([])
        ports = ClusterPorts(free["kafka"], taken.getsockname()[1], free["http"], 0)

        with pytest.raises(PortTaken, match="--router-port"):
            LocalCluster(tmp_path / "run", APPLICATION, ports).start()

    assert not (tmp_path / "run" / "state.json").exists()


def test_no_cluster_of_no_nodes(tmp_path: Path):
    with pytest.raises(LocalError, match="1 to 26 nodes"):
        LocalCluster(tmp_path, APPLICATION, nodes=0)


def test_stop_removes_its_own_files_and_no_others(tmp_path: Path):
    ClusterState(APPLICATION, tmp_path, {"kafka": 1, "router": 2, "http": 3, "node-a": 4, ROUTER_METRICS: 5}).save(
        tmp_path
    )
    (tmp_path / "kafka").mkdir()
    (tmp_path / "notes.txt").write_text("mine")

    LocalCluster(tmp_path, APPLICATION).stop()

    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_stop_can_keep_the_data(tmp_path: Path):
    ClusterState(APPLICATION, tmp_path, {"kafka": 1, "router": 2, "http": 3, "node-a": 4, ROUTER_METRICS: 5}).save(
        tmp_path
    )
    (tmp_path / "kafka").mkdir()

    LocalCluster(tmp_path, APPLICATION).stop(keep_data=True)

    assert (tmp_path / "kafka").is_dir()
    assert not (tmp_path / "state.json").exists()


def test_the_state_is_readable_by_people(tmp_path: Path):
    ClusterState(APPLICATION, tmp_path, {"kafka": 1}, {"kafka": ProcessIdentity(7, "123")}).save(tmp_path)

    assert json.loads((tmp_path / "state.json").read_text())["processes"] == {"kafka": {"pid": 7, "started": "123"}}


def test_the_cluster_of_another_application_is_not_taken_over(tmp_path: Path):
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    ClusterState(
        HELLO, tmp_path, {"kafka": 1, "router": 2, "http": 3, "node-a": 4, ROUTER_METRICS: 5}, {"router": own}
    ).save(tmp_path)

    with pytest.raises(LocalError, match="has the cluster of 'hello'"):
        LocalCluster(tmp_path, APPLICATION)


def test_a_cluster_is_found_with_its_application_and_folder(tmp_path: Path):
    with pytest.raises(LocalError, match=r"nothing is running in .*`statehouse up`"):
        cluster_of(tmp_path)
    ClusterState(
        HELLO, tmp_path / "app", {"kafka": 1, "router": 2, "http": 3, "node-a": 4, ROUTER_METRICS: 5}, alive()
    ).save(tmp_path)
    cluster = cluster_of(tmp_path)
    assert cluster.application == HELLO
    assert {part.process._cwd for part in cluster.parts} == {tmp_path / "app"}


def test_one_of_which_nothing_runs_is_found_as_it_was(tmp_path: Path):
    ports = {"kafka": 1, "router": 2, "http": 3, "node-a": 40, "node-b": 7, ROUTER_METRICS: 5}
    ClusterState(HELLO, tmp_path / "app", ports, {}, tls=True).save(tmp_path)
    cluster = cluster_of(tmp_path)
    addresses = {part.name: part.address for part in cluster.parts if part.address}
    assert addresses == {name: f"127.0.0.1:{ports[name]}" for name in addresses}
    assert addresses.keys() >= {"kafka", "router", "http", "node-a", "node-b"}
    assert cluster.tls is not None


def alive() -> dict[str, ProcessIdentity]:
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    return {"router": own}


def test_an_application_without_an_http_api_has_the_page_and_the_api_of_all_stores(tmp_path: Path):
    cluster = LocalCluster(tmp_path, HELLO, nodes=1)
    assert [part.name for part in cluster.parts] == ["kafka", "processor", "controller", "node-a", "router", "http"]
    assert "statehouse.web" in cluster.http.process._command
    metrics = (cluster.router.process._env or {})["STATEHOUSE_METRICS_PORT"]
    assert (cluster.http.process._env or {})["STATEHOUSE_ROUTER_METRICS"] == f"127.0.0.1:{metrics}"


def test_a_part_is_found_by_its_name(tmp_path: Path):
    cluster = LocalCluster(tmp_path, HELLO, nodes=1)
    assert cluster.part("node-a") is cluster.node("node-a")
    with pytest.raises(
        LocalError, match="no part 'node-z'; there are: kafka, processor, controller, node-a, router, http"
    ):
        cluster.part("node-z")


def test_the_parts_run_in_the_applications_folder_with_its_settings(tmp_path: Path):
    folder = tmp_path / "app"
    folder.mkdir()
    settings = {part.process._env["STATEHOUSE_APPLICATION_ID"] for part in cluster_in(folder, tmp_path).parts}
    assert settings == {"hello"}
    assert not any("STATEHOUSE_CONFIG" in (part.process._env or {}) for part in cluster_in(folder, tmp_path).parts)
    (folder / "statehouse.toml").touch()
    for part in cluster_in(folder, tmp_path).parts:
        assert (part.process._env or {})["STATEHOUSE_CONFIG"] == str(folder / "statehouse.toml")
        assert part.process._cwd == folder


def cluster_in(folder: Path, run_dir: Path) -> LocalCluster:
    return LocalCluster(run_dir / "run", HELLO, nodes=1, folder=folder)


def test_a_part_that_another_command_started_again_is_taken_over(tmp_path: Path):
    ports = {"kafka": 1, "router": 2, "http": 3, "node-a": 4, ROUTER_METRICS: 5}
    ClusterState(HELLO, tmp_path, ports, dict.fromkeys(("kafka", "node-a"), alive()["router"])).save(tmp_path)
    cluster = LocalCluster(tmp_path, HELLO)
    idle = [cluster.processor, cluster.controller, cluster.http]
    with pytest.raises(ProcessFailed, match="router ended"):
        cluster.check(but=idle)
    ClusterState(HELLO, tmp_path, ports, dict.fromkeys(("kafka", "node-a", "router"), alive()["router"])).save(tmp_path)
    cluster.check(but=idle)
    assert cluster.router.is_running
    with locked(tmp_path):
        cluster.check()  # the command that has the lock is at work on the parts that don't run
    ClusterState.forget(tmp_path)
    with pytest.raises(ClusterStopped, match="stopped by another command"):
        cluster.check()


@pytest.mark.parametrize("name", [".gitignore", "logs", "nodes"])
def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path, name: str):
    theirs = tmp_path / name
    theirs.write_text("theirs")
    with pytest.raises(ForeignDirectory, match=re.escape(f"has {name}")), locked(tmp_path):
        pass
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(name, "theirs")]


def test_what_is_left_is_deleted_and_nothing_else(tmp_path: Path):
    run_dir = tmp_path / "run"
    with locked(run_dir):
        (run_dir / "logs").mkdir()
        (run_dir / "sample-data.fed").touch()
        delete_data(run_dir)
    assert not run_dir.exists()


@pytest.mark.parametrize("has_another", [False, True])
def test_a_lock_that_was_deleted_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_another: bool):
    take = fcntl.flock

    def late(*arguments: Any) -> None:
        (tmp_path / "lock").unlink()
        if has_another:
            (tmp_path / "lock").touch()
        take(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(RunDirectoryBusy), locked(tmp_path):
        pass


def test_nobody_else_begins_until_all_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_dir, unlink = tmp_path / "run", Path.unlink
    with ExitStack() as next_command:

        def watched(path: Path, **options: Any) -> None:
            if (run_dir / "lock").exists():
                with pytest.raises(RunDirectoryBusy), locked(run_dir):
                    pass
            unlink(path, **options)
            if not (run_dir / "lock").exists():
                next_command.enter_context(locked(run_dir))

        with locked(run_dir):
            monkeypatch.setattr(Path, "unlink", watched)
            delete_data(run_dir)
        monkeypatch.undo()
        assert {path.name for path in run_dir.iterdir()} == {"lock", ".gitignore"}
        with pytest.raises(RunDirectoryBusy), locked(run_dir):
            pass


def test_with_tls_each_part_serves_and_calls_as_itself(tmp_path: Path):
    cluster = LocalCluster(tmp_path, APPLICATION, ClusterPorts.free(), nodes=1, tls=True)
    shown = {}
    for part in cluster.parts:
        env = part.process._env or {}
        paths = {name: env.get(f"STATEHOUSE_{name.upper()}", "") for name in _SECURITY}
        shown[part.name] = {name: Path(path).name for name, path in paths.items() if path}
        assert all(Path(path).parent == tmp_path / "tls" for path in paths.values() if path)
    serves = {"tls_ca": "ca.pem", "tls_crl": "crl.pem", "security_rules": "rules.toml"}
    assert shown == {
        "kafka": {},
        "processor": serves | {"tls_certificate": "processor.pem", "tls_key": "processor.key"},
        "controller": serves | {"tls_certificate": "processor.pem", "tls_key": "processor.key"},
        "node-a": serves | {"tls_certificate": "node.pem", "tls_key": "node.key"},
        "router": serves | {"tls_certificate": "router.pem", "tls_key": "router.key"},
        "http": serves | {"tls_certificate": "router.pem", "tls_key": "router.key"},
    }
    assert cluster.tls is not None
    assert cluster.tls.certificate == tmp_path / "tls" / "operator.pem"


def test_whether_a_cluster_has_tls_is_found_again(tmp_path: Path):
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    ports = {"kafka": 1, "router": 2, "http": 3, "node-a": 4, ROUTER_METRICS: 5}
    ClusterState(APPLICATION, tmp_path, ports, {"router": own}, tls=True).save(tmp_path)
    assert LocalCluster(tmp_path, APPLICATION).tls is not None
    ClusterState(APPLICATION, tmp_path, ports, {"router": own}).save(tmp_path)
    assert LocalCluster(tmp_path, APPLICATION, tls=True).tls is None
    # A cluster without a running part has no claim.
    ClusterState(APPLICATION, tmp_path, ports, {}).save(tmp_path)
    assert LocalCluster(tmp_path, APPLICATION, tls=True).tls is not None
