"""Ask a server of ours for its health: `python healthcheck.py HOST:PORT`.

By gRPC, where nodes and routers serve; with --http PATH on the port of the metrics, where processors and controllers
have their probes. Over TLS if --tls-ca or STATEHOUSE_TLS_CA is given; the other variables and settings of a server
serve here, too. Prints the status, and exits with 0 if it is SERVING, else with 1: what a container engine expects. The
images hold no grpc_health_probe, because Python and grpcio are in them anyway.
"""  # noqa: INP001 - run as a file

from __future__ import annotations

import argparse
import os
import socket
import ssl
import sys
from http.client import HTTPConnection, HTTPException
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from statehouse.errors import ConfigurationError
from statehouse.rpc.channels import blocking_channel
from statehouse.rpc.credentials import VARIABLES, ClientTls, CredentialFiles, ssl_context

_FLAGS: Final = {
    "--tls-ca": "ca",
    "--tls-certificate": "certificate",
    "--tls-key": "key",
    "--token-file": "token",
    "--tls-server-name": "server_name",
}
_REASON_MAX_BYTES: Final = 1_000


def status_of(address: str, service: str, timeout_s: float, tls: ClientTls | None) -> str:
    """Return the health status's name, or the name of the gRPC code that came instead of one.

    Raises:
        ConfigurationError: a file of `tls` can't be used.

    """
    with blocking_channel(address, tls) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def http_status_of(address: str, path: str, timeout_s: float, tls: ClientTls | None) -> str:
    """Return SERVING for 200, NOT_SERVING and the reason for 503, else the status or the error that came instead.

    Raises:
        ConfigurationError: a file of `tls` can't be used.

    """
    host, _, port = address.rpartition(":")
    token = "" if tls is None else CredentialFiles(tls).token
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as plain:
            connection = HTTPConnection(host)
            connection.sock = plain if tls is None else _encrypted(plain, tls, host)
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            response = connection.getresponse()
            reason = response.read(_REASON_MAX_BYTES).decode(errors="replace").strip()
            connection.close()
    except (OSError, HTTPException) as error:
        return f"UNAVAILABLE {error}"
    named = {200: "SERVING", 503: f"NOT_SERVING {reason}"}
    return named.get(response.status, f"{response.status} {reason}")


def _encrypted(plain: socket.socket, tls: ClientTls, host: str) -> ssl.SSLSocket:
    return ssl_context(tls).wrap_socket(plain, server_hostname=tls.server_name or host.strip("[]"))


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Exit with 0 if the server is SERVING, else with 1.")
    parser.add_argument("address", help="host:port")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--service",
        default="",
        help="by gRPC: readiness, liveness, or a service's full name; default: the server as a whole",
    )
    asked.add_argument(
        "--http", default="", metavar="PATH", help="by HTTP, on the port of the metrics: /startupz, /livez or /readyz"
    )
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds; keep it below the health check's own")
    for flag, field in _FLAGS.items():
        parser.add_argument(
            flag, dest=field, default=os.environ.get(VARIABLES[field], ""), help=f"default: {VARIABLES[field]}"
        )
    arguments = parser.parse_args()
    if not arguments.address.rpartition(":")[2].isdigit():
        parser.error(f"{arguments.address!r} is not host:port")
    try:
        tls = ClientTls.from_texts({field: getattr(arguments, field) for field in VARIABLES})
        if arguments.http:
            status = http_status_of(arguments.address, arguments.http, arguments.timeout, tls)
        else:
            status = status_of(arguments.address, arguments.service, arguments.timeout, tls)
    except ConfigurationError as error:
        parser.error(str(error))
    sys.stdout.write(f"{status}\n")
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main())
