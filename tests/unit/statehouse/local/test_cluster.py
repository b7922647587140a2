"""A local cluster's ports and what it writes down; running one is tests/e2e's job."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from examples.leaderboard.local import APPLICATION
from statehouse.local.applications import installed_application
from statehouse.local.cluster import ClusterPorts, LocalCluster, cluster_of
from statehouse.local.cluster_state import ClusterState, RunDirectoryBusy, locked
from statehouse.local.errors import LocalError, PortTaken
from statehouse.local.process import ProcessIdentity

_SECURITY = ("tls_certificate", "tls_key", "tls_ca", "tls_crl", "security_rules")


def test_nodes_take_the_ports_that_follow():
    ports = ClusterPorts().resolved(["node-a", "node-b"])

    assert ports == {"kafka": 9092, "router": 7100, "http": 7000, "node-a": 7101, "node-b": 7102}


def test_free_ports_differ_from_each_other():
    ports = ClusterPorts.free().resolved([f"node-{letter}" for letter in "abcdef"])

    assert 0 not in ports.values()
    assert len(set(ports.values())) == len(ports)


def test_one_port_for_two_parts_is_refused():
    with pytest.raises(LocalError, match="can't have one port"):
        ClusterPorts(router=7102).resolved(["node-a", "node-b"])


def test_state_comes_back_as_it_was_saved(tmp_path: Path):
    state = ClusterState(APPLICATION.name, {"kafka": 1, "node-b": 3, "node-a": 2}, {"kafka": ProcessIdentity(7, "123")})
    state.save(tmp_path)

    assert ClusterState.load(tmp_path) == state
    assert state.nodes == ["node-a", "node-b"]
    ClusterState.forget(tmp_path)
    assert ClusterState.load(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 99}'])
def test_a_damaged_state_is_told(tmp_path: Path, text: str):
    (tmp_path / "state.json").write_text(text)

    with pytest.raises(LocalError, match=r"state\.json"):
        ClusterState.load(tmp_path)


def test_one_command_at_a_time(tmp_path: Path):
    with locked(tmp_path), pytest.raises(RunDirectoryBusy), locked(tmp_path):
        pass

    with locked(tmp_path):
        pass


def test_a_cluster_that_was_started_is_found_with_its_ports(tmp_path: Path):
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    ClusterState(APPLICATION.name, {"kafka": 1, "router": 2, "http": 3, "node-a": 4}, {"router": own}).save(tmp_path)

    cluster = LocalCluster(tmp_path, APPLICATION, ClusterPorts(), nodes=3)

    assert [part.name for part in cluster.parts] == ["kafka", "processor", "controller", "node-a", "router", "http"]
    assert cluster.router.address == "127.0.0.1:2"
    assert cluster.router.is_running
    assert not cluster.kafka.is_running
    assert not cluster.is_running


def test_one_of_which_nothing_runs_has_no_claim_to_its_ports(tmp_path: Path):
    gone = ProcessIdentity(os.getpid(), "a time long ago")
    ClusterState(APPLICATION.name, {"kafka": 1, "router": 2, "http": 3, "node-a": 4}, {"router": gone}).save(tmp_path)

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
    ClusterState(APPLICATION.name, {"kafka": 1, "router": 2, "http": 3, "node-a": 4}).save(tmp_path)
    (tmp_path / "kafka").mkdir()
    (tmp_path / "notes.txt").write_text("mine")

    LocalCluster(tmp_path, APPLICATION).stop()

    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_stop_can_keep_the_data(tmp_path: Path):
    ClusterState(APPLICATION.name, {"kafka": 1, "router": 2, "http": 3, "node-a": 4}).save(tmp_path)
    (tmp_path / "kafka").mkdir()

    LocalCluster(tmp_path, APPLICATION).stop(keep_data=True)

    assert (tmp_path / "kafka").is_dir()
    assert not (tmp_path / "state.json").exists()


def test_the_state_is_readable_by_people(tmp_path: Path):
    ClusterState(APPLICATION.name, {"kafka": 1}, {"kafka": ProcessIdentity(7, "123")}).save(tmp_path)

    assert json.loads((tmp_path / "state.json").read_text())["processes"] == {"kafka": {"pid": 7, "started": "123"}}


def test_the_cluster_of_another_application_is_not_taken_over(tmp_path: Path):
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    ClusterState("another", {"kafka": 1, "router": 2, "http": 3, "node-a": 4}, {"router": own}).save(tmp_path)

    with pytest.raises(LocalError, match="has the cluster of 'another'"):
        LocalCluster(tmp_path, APPLICATION)


def test_applications_come_from_installed_packages(tmp_path: Path):
    assert installed_application("leaderboard") is APPLICATION
    assert cluster_of(tmp_path, "leaderboard").application is APPLICATION
    with pytest.raises(LocalError, match=r"no application 'nobody'; installed are: .*leaderboard"):
        installed_application("nobody")


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
        "http": {"tls_ca": "ca.pem", "tls_certificate": "reader.pem", "tls_key": "reader.key"},
    }
    assert cluster.tls is not None
    assert cluster.tls.certificate == tmp_path / "tls" / "operator.pem"


def test_whether_a_cluster_has_tls_is_found_again(tmp_path: Path):
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    ports = {"kafka": 1, "router": 2, "http": 3, "node-a": 4}
    ClusterState(APPLICATION.name, ports, {"router": own}, tls=True).save(tmp_path)
    assert LocalCluster(tmp_path, APPLICATION).tls is not None
    ClusterState(APPLICATION.name, ports, {"router": own}).save(tmp_path)
    assert LocalCluster(tmp_path, APPLICATION, tls=True).tls is None
    # One of which nothing runs has no claim.
    ClusterState(APPLICATION.name, ports, {}).save(tmp_path)
    assert LocalCluster(tmp_path, APPLICATION, tls=True).tls is not None
