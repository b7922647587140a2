"""Ask a server of ours for its health: `python healthcheck.py HOST:PORT`.

Over TLS if --tls-ca or STATEHOUSE_TLS_CA is given; the other variables and settings of a server serve here, too.
Prints the status, and exits with 0 if it is SERVING, else with 1: what a container engine expects. The images hold no
grpc_health_probe, because Python and grpcio are in them anyway.
"""  # noqa: INP001 - run as a file

from __future__ import annotations

import argparse
import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from statehouse.errors import ConfigurationError
from statehouse.rpc.channels import blocking_channel
from statehouse.rpc.credentials import VARIABLES, ClientTls

_FLAGS = {
    "--tls-ca": "ca",
    "--tls-certificate": "certificate",
    "--tls-key": "key",
    "--token-file": "token",
    "--tls-server-name": "server_name",
}


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


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Exit with 0 if the gRPC server is SERVING, else with 1.")
    parser.add_argument("address", help="host:port")
    parser.add_argument("--service", default="", help="one service's full name; default: the server as a whole")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds; keep it below the health check's own")
    for flag, field in _FLAGS.items():
        parser.add_argument(
            flag, dest=field, default=os.environ.get(VARIABLES[field], ""), help=f"default: {VARIABLES[field]}"
        )
    arguments = parser.parse_args()
    try:
        tls = ClientTls.from_texts({field: getattr(arguments, field) for field in VARIABLES})
        status = status_of(arguments.address, arguments.service, arguments.timeout, tls)
    except ConfigurationError as error:
        parser.error(str(error))
    sys.stdout.write(f"{status}\n")
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main())
