"""One cluster for all end-to-end tests: a broker, Spark, three nodes, a router and the HTTP API start slowly."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from examples.leaderboard.local import APPLICATION
from statehouse.client import Client
from statehouse.local.cluster import LocalCluster
from statehouse.local.ports import ClusterPorts
from tests.support.tools import tool

Grpcurl = Callable[..., Any]


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The leaderboard with its sample data; a test that breaks something mends it before it ends."""
    run_dir = tmp_path_factory.mktemp("cluster")
    with LocalCluster(run_dir, APPLICATION, ClusterPorts.free()) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the cluster's router."""
    with Client(cluster.router.address) as connected:
        yield connected


@pytest.fixture(scope="package")
def grpcurl(cluster: LocalCluster) -> Grpcurl:
    """Call grpcurl on the router without proto files, as people do."""
    program = tool("grpcurl")

    def call(*arguments: str, data: object = None) -> Any:
        given = [] if data is None else ["-d", json.dumps(data)]
        command = [program, "-plaintext", *given, cluster.router.address, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout if data is None else json.loads(done.stdout)

    return call


def is_settled(client: Client) -> bool:
    """Whether nothing is being moved, and every partition has an active and a standby that are caught up."""
    return all(
        task.active is not None
        and task.standbys
        and not task.warm_ups
        and {replica.instance_id for replica in task.replicas if replica.state == "running" and replica.lag == 0}
        >= {task.active, *task.standbys}
        for task in client.fleet().tasks
    )
