"""`statehouse logs` and `restart` on a cluster that runs, as its operators use them."""

from __future__ import annotations

from pathlib import Path

import pytest

from statehouse.cli.exits import ExitCode
from statehouse.client import Client
from statehouse.local.cluster import LocalCluster
from tests.e2e.conftest import is_settled
from tests.support.polling import poll_until
from tests.support.statehouse import Ran, statehouse, staying

# The start of the cluster counts towards the first test that asks for it.
pytestmark = pytest.mark.timeout(600)


def command(cluster: LocalCluster, *arguments: str) -> Ran:
    return statehouse(cluster.run_dir, *arguments, "--run-dir", str(cluster.run_dir))


def test_logs_of_one_part_are_its_last_lines(cluster: LocalCluster):
    ran = command(cluster, "logs", "processor", "--lines", "3")
    assert ran.code == ExitCode.DONE, ran.err
    lines = ran.out.splitlines()
    assert len(lines) == 3
    assert all(line in cluster.processor.process.log_path.read_text() for line in lines)


@pytest.mark.feature("logs-parts-shown")
def test_logs_of_several_parts_are_told_apart(cluster: LocalCluster):
    ran = command(cluster, "logs", "-n", "1")
    parts = {line.partition(" | ")[0].strip() for line in ran.out.splitlines()}
    assert {"kafka", "processor", "sample-data"} <= parts <= {*(part.name for part in cluster.parts), "sample-data"}


def test_a_part_that_is_not_there_is_told_with_those_that_are(cluster: LocalCluster):
    for words in (("logs", "node-z"), ("restart", "node-z")):
        ran = command(cluster, *words)
        assert ran.code == ExitCode.ERROR
        assert "node-z" in ran.err
        assert "node-a, node-b, node-c" in ran.err


@pytest.mark.feature("logs-parts-shown")
def test_a_part_is_restarted_and_its_log_followed(cluster: LocalCluster, client: Client, tmp_path: Path):
    said, before = tmp_path / "said", cluster.node("node-b").pid
    poll_until(lambda: is_settled(client), 120, "every partition to have a caught-up standby")
    with staying(tmp_path, said, "logs", "node-b", "-f", "-n", "0", "--run-dir", str(cluster.run_dir)) as following:
        ran = command(cluster, "restart", "node-b")
        assert ran.code == ExitCode.DONE, ran.err
        assert [line.split()[:2] for line in ran.err.splitlines()] == [
            ["node-b", word] for word in ("stopped", "starting", "ready")
        ]
        poll_until(lambda: "RUNNING" in said.read_text(), 30, "the restarted node's lines")
        assert following.poll() is None
    assert following.returncode == ExitCode.INTERRUPTED

    assert not cluster.node("node-b").is_running, "the one that was started with the cluster"
    cluster.check()
    assert cluster.node("node-b").is_running, "the one that the command has started"
    assert cluster.node("node-b").pid != before
    assert client.get("leader-boards", "1").found
