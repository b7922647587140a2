"""The health check's answers, one server after the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from statehouse.local.ports import free_port
from tests.deploy.files import DEPLOY

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server that serves as a whole, with one service that doesn't."""
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    servicer.set("", _SERVING)
    servicer.set("restoring", _NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def _check(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(DEPLOY / "healthcheck.py"), *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip()


def test_says_what_the_server_says(address: str) -> None:
    assert _check(address) == (0, "SERVING")
    assert _check(address, "--service", "restoring") == (1, "NOT_SERVING")
    assert _check(address, "--service", "nobody") == (1, "NOT_FOUND")


def test_nobody_there_is_unhealthy() -> None:
    assert _check(f"127.0.0.1:{free_port()}") == (1, "UNAVAILABLE")
