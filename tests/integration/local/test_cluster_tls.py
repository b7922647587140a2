"""`statehouse up --tls`: everything of a local cluster over TLS, each part held to the rules, a revoked one refused."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.leaderboard.local import APPLICATION
from statehouse.cli.exits import ExitCode
from statehouse.client import Client
from statehouse.errors import LookupFailure, Reason
from statehouse.local import certificates
from statehouse.local.cluster import LocalCluster, cluster_of
from statehouse.local.tls_files import TLS_FOLDER, tls_of
from statehouse.rpc.credentials import ssl_context
from tests.support.polling import poll_until
from tests.support.statehouse import ANY_PORTS, statehouse
from tests.support.tools import tool

# The start of the cluster counts towards the first test that asks for it.
pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

STORE, KEY = "leader-boards", "1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in which a cluster with TLS is up, with what `up` printed in the file `printed`."""
    folder = tmp_path_factory.mktemp("cluster")
    try:
        ran = statehouse(folder, "up", "--tls", "--nodes", "2", *ANY_PORTS, timeout_s=500.0)
        assert ran.code == ExitCode.DONE, ran.err
        (folder / "printed").write_text(ran.out)
        yield folder
    finally:
        statehouse(folder, "down")
        assert not (folder / ".statehouse").exists()


@pytest.fixture
def cluster(folder: Path) -> LocalCluster:
    return cluster_of(folder / ".statehouse")


def http_status(cluster: LocalCluster) -> int:
    """Return what the reader gets of the HTTP API."""
    reader = tls_of(cluster.run_dir, "reader")
    url = f"https://{cluster.http.address}{APPLICATION.http_page}"
    try:
        with urllib.request.urlopen(url, timeout=30, context=ssl_context(reader)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except urllib.error.URLError:  # files are being replaced
        return 0


def test_commands_in_its_directory_just_work(folder: Path, cluster: LocalCluster) -> None:
    ran = statehouse(folder, "get", STORE, KEY)
    assert ran.code == ExitCode.DONE, ran.err
    assert "found" in ran.out
    assert statehouse(folder, "status").code == ExitCode.DONE
    assert statehouse(folder, "nodes", "list").code == ExitCode.DONE
    assert http_status(cluster) == 200


def test_grpcurl_works_as_it_is_printed(folder: Path) -> None:
    (line,) = [line for line in (folder / "printed").read_text().splitlines() if line.startswith("grpcurl ")]
    program, *arguments = line.split()[1:]
    done = subprocess.run([tool(program), *arguments], capture_output=True, text=True, check=False, timeout=30)
    assert "statehouse.v1.QueryService" in done.stdout, done.stderr


def test_who_shows_nothing_is_not_let_in(cluster: LocalCluster) -> None:
    with Client(cluster.router.address) as client, pytest.raises(LookupFailure, match="TLS") as refused:
        client.get(STORE, KEY)
    assert refused.value.reason is Reason.UNREACHABLE


def test_each_identity_may_do_what_its_roles_allow(folder: Path, cluster: LocalCluster) -> None:
    run_dir = folder / ".statehouse"
    for name, is_let_in in (("reader", True), ("operator", True), ("health", False)):
        with Client(cluster.router.address, tls=tls_of(run_dir, name)) as client:
            if is_let_in:
                assert client.get(STORE, KEY).found
            else:
                with pytest.raises(LookupFailure) as denied:
                    client.get(STORE, KEY)
                assert denied.value.reason is Reason.PERMISSION_DENIED
    reader = tls_of(run_dir, "reader")
    options = ["--tls-ca", str(reader.ca), "--tls-certificate", str(reader.certificate), "--tls-key", str(reader.key)]
    ran = statehouse(folder, "nodes", "drain", "node-a", "--no-wait", *options)
    assert ran.code == ExitCode.ERROR
    assert "PERMISSION_DENIED" in ran.err


def test_a_revoked_reader_is_refused_and_new_certificates_let_it_in(folder: Path, cluster: LocalCluster) -> None:
    tls = folder / ".statehouse" / TLS_FOLDER
    assert statehouse(folder, "certs", "revoke", str(tls), "reader").code == ExitCode.DONE
    poll_until(lambda: http_status(cluster) != 200, 30, "the reader's refusal")
    certificates.make_certificates(tls, force=True)
    poll_until(lambda: http_status(cluster) == 200, 60, "all parts with new certificates")
    assert statehouse(folder, "get", STORE, KEY).code == ExitCode.DONE
