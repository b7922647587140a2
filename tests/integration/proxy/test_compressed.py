"""Compressed requests by every way that they take through the real proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from statehouse.errors import Reason
from tests.integration.proxy.served import BATCH_GET, GET, MAX_BYTES, SCAN, SERVICE, TWICE, call, reason, served

ALGORITHMS = (grpc.Compression.Gzip, grpc.Compression.Deflate)
ZEROS = bytes(MAX_BYTES - 1_000)
TOO_MANY = bytes(MAX_BYTES + 1)


@asynccontextmanager
async def compressing(target: str, algorithm: grpc.Compression) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(target, options=options, compression=algorithm) as made:
        yield made


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_compressed_requests_take_every_way(algorithm: grpc.Compression) -> None:
    async with served() as it, compressing(it.target, algorithm) as at:
        it.may_go_on.set()
        request = b"k" * 1_000  # gRPC sends as it is what does not become smaller
        for path in (GET, BATCH_GET, SCAN):
            assert await call(at, path, request) == [request]
        assert await call(at, TWICE, request) == [request] * 2
        assert await call(at, BATCH_GET, ZEROS) == [ZEROS]
        checked: Any = health_pb2_grpc.HealthStub(at).Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=20)
        assert (await checked).status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_request_is_as_large_as_it_is_decompressed(algorithm: grpc.Compression) -> None:
    async with served() as it, compressing(it.target, algorithm) as at:
        it.may_go_on.set()
        for path in (BATCH_GET, TWICE):
            assert await reason(at, path, TOO_MANY) is Reason.MESSAGE_TOO_LARGE
        assert await call(at, GET, b"ab") == [b"ba"]
