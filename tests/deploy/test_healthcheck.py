"""The health check's answers, one server after the other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from statehouse.local.certificates import make_certificates
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.observability.metrics import MetricsServer, new_registry
from statehouse.settings import RouterSettings
from tests.deploy.files import DEPLOY

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@contextmanager
def _serving(credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """Run a server that serves as a whole, with one service that doesn't; give its address."""
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    servicer.set("", _SERVING)
    servicer.set("restoring", _NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    anywhere = "127.0.0.1:0"
    port = server.add_secure_port(anywhere, credentials) if credentials else server.add_insecure_port(anywhere)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with _serving() as address:
        yield address


def _check(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    command = [sys.executable, str(DEPLOY / "healthcheck.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | (env or {}))
    return done.returncode, done.stdout.strip()


def test_says_what_the_server_says(address: str) -> None:
    assert _check(address) == (0, "SERVING")
    assert _check(address, "--service", "restoring") == (1, "NOT_SERVING")
    assert _check(address, "--service", "nobody") == (1, "NOT_FOUND")


def test_nobody_there_is_unhealthy() -> None:
    assert _check(f"127.0.0.1:{free_port()}") == (1, "UNAVAILABLE")


def test_over_tls_it_shows_what_options_or_the_servers_own_variables_name(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca, certificate, key = (str(tmp_path / name) for name in ("ca.pem", "node.pem", "node.key"))
    pair = (Path(key).read_bytes(), Path(certificate).read_bytes())
    credentials = grpc.ssl_server_credentials([pair], Path(ca).read_bytes(), require_client_auth=True)
    with _serving(credentials) as address:
        options = ("--tls-ca", ca, "--tls-certificate", certificate, "--tls-key", key)
        assert _check(address, *options) == (0, "SERVING")
        env = {"STATEHOUSE_TLS_CA": ca, "STATEHOUSE_TLS_CERTIFICATE": certificate, "STATEHOUSE_TLS_KEY": key}
        assert _check(address, env=env) == (0, "SERVING")
        assert _check(address) == (1, "UNAVAILABLE")
        assert _check(address, "--tls-ca", str(tmp_path / "nowhere")) == (2, "")


@pytest.mark.feature("probes-under-mutual")
def test_over_http_it_says_what_the_probe_says(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca, certificate, key = (str(tmp_path / name) for name in ("ca.pem", "node.pem", "node.key"))
    plain = RouterSettings(application_id="tests")
    secured = RouterSettings(application_id="tests", tls_ca=ca, tls_certificate=certificate, tls_key=key)
    probes = {"/livez": lambda: "", "/readyz": lambda: "query scores is RESTARTING"}
    servers = [MetricsServer(new_registry(), LOOPBACK, 0, each, None, probes) for each in (plain, secured)]
    try:
        address, encrypted = (f"{LOOPBACK}:{server.port}" for server in servers)
        assert _check(address, "--http", "/livez") == (0, "SERVING")
        assert _check(address, "--http", "/readyz") == (1, "NOT_SERVING query scores is RESTARTING")
        env = {"STATEHOUSE_TLS_CA": ca, "STATEHOUSE_TLS_CERTIFICATE": certificate, "STATEHOUSE_TLS_KEY": key}
        assert _check(encrypted, "--http", "/livez", env=env) == (0, "SERVING")
        code, said = _check(encrypted, "--http", "/livez", "--tls-ca", ca)
        assert (code, said.split()[0]) == (1, "UNAVAILABLE"), "it shows no certificate"
    finally:
        for server in servers:
            server.close()
    code, said = _check(address, "--http", "/livez")
    assert (code, said.split()[0]) == (1, "UNAVAILABLE")


def test_an_address_without_a_port_is_refused() -> None:
    assert _check("127.0.0.1") == (2, "")
