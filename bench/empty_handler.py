"""A gRPC server that answers each lookup with bytes made beforehand: it shows what grpcio itself costs.

`python -m bench.empty_handler --port PORT --keys KEYS --store NAME`. It parses no request and builds no answer: a dict
maps the bytes of a request to the bytes of its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import Any

import grpc.aio

from bench.data import key_of, value_of
from statehouse.local.ports import LOOPBACK
from statehouse.v1 import query_service_pb2, types_pb2


def answers_of(store: str, keys: int) -> dict[bytes, bytes]:
    """Return the answer to each key's request, both as the bytes on the wire."""
    stamp = types_pb2.ReplicaStamp(
        partition=0,
        epoch=1,
        host=types_pb2.Host(host="127.0.0.1", port=65_000),
        role=types_pb2.REPLICA_ROLE_ACTIVE,
        position=keys,
        lag=0,
        staleness_ms=10,
    )
    answers = {}
    for number in range(keys):
        request = query_service_pb2.GetRequest(store=store, key=types_pb2.Key(text=key_of(number)))
        value = types_pb2.Value(text=value_of(number))
        answer = query_service_pb2.GetResponse(found=True, value=value, replica=stamp)
        answers[request.SerializeToString()] = answer.SerializeToString()
    return answers


async def serve(port: int, answers: dict[bytes, bytes]) -> None:
    """Serve until SIGTERM or SIGINT."""

    async def get(request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return answers[request]

    server = grpc.aio.server()
    methods: dict[str, Any] = {"Get": grpc.unary_unary_rpc_method_handler(get)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("statehouse.v1.QueryService", methods),))
    server.add_insecure_port(f"{LOOPBACK}:{port}")
    await server.start()
    ended = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    await ended.wait()
    await server.stop(None)


def main() -> None:
    """Serve, with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.empty_handler", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--store", required=True)
    options = parser.parse_args()
    asyncio.run(serve(options.port, answers_of(options.store, options.keys)))


if __name__ == "__main__":
    main()
