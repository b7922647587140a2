"""One cluster for all end-to-end tests: a broker, Spark, three nodes, a router and the HTTP API start slowly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statehouse.client import Client
from statehouse.local.cluster import ClusterPorts, LocalCluster

Grpcurl = Callable[..., Any]

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The leaderboard with its sample data; a test that breaks something mends it before it ends."""
    run_dir = tmp_path_factory.mktemp("cluster")
    with LocalCluster(run_dir, ClusterPorts.free()) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the cluster's router."""
    with Client(cluster.router.address) as connected:
        yield connected


@pytest.fixture(scope="package")
def grpcurl(cluster: LocalCluster) -> Grpcurl:
    """Call grpcurl on the router without proto files, as people do."""
    path = os.pathsep.join([str(_ROOT / ".tools" / "bin"), os.environ.get("PATH", "")])
    program = shutil.which("grpcurl", path=path)
    if program is None:
        pytest.skip("grpcurl is not installed: run `make tools`")

    def call(*arguments: str, data: object = None) -> Any:
        given = [] if data is None else ["-d", json.dumps(data)]
        command = [program, "-plaintext", *given, cluster.router.address, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout if data is None else json.loads(done.stdout)

    return call
