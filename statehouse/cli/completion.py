"""What shells are offered to complete a word: names that the router knows, asked for with a short deadline.

A completion never fails and never says anything: somebody is typing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc
import typer

from statehouse.cli.addresses import router_of
from statehouse.cli.context_file import read_contexts
from statehouse.client.addresses import addresses
from statehouse.errors import StatehouseError
from statehouse.rpc.channels import blocking_channel
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc

_ANSWERS_WITHIN_S: Final = 0.5
"""For all routers together: longer than a router takes, and short enough for somebody who types."""

_Stub = fleet_service_pb2_grpc.FleetServiceStub


def complete_store(context: typer.Context, incomplete: str) -> list[str]:
    """Return the stores that begin so."""
    request = fleet_service_pb2.ListStoresRequest()
    return _ask(
        context,
        incomplete,
        lambda stub, timeout_s: (store.name for store in stub.ListStores(request, timeout=timeout_s).stores),
    )


def complete_node(context: typer.Context, incomplete: str) -> list[str]:
    """Return the nodes that begin so."""
    request = fleet_service_pb2.ListNodesRequest()
    return _ask(
        context,
        incomplete,
        lambda stub, timeout_s: (node.host.instance_id for node in stub.ListNodes(request, timeout=timeout_s).nodes),
    )


def complete_context(incomplete: str) -> list[str]:
    """Return the contexts that begin so."""
    try:
        return _beginning(incomplete, read_contexts().by_name)
    except StatehouseError:
        return []


def _ask(context: typer.Context, incomplete: str, call: Callable[[_Stub, float], Iterable[str]]) -> list[str]:
    """Ask the router that the words before name, or another one of the same context; empty if none answers in time."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    options: dict[str, Any] = dict(context.params)
    try:
        router = router_of(options)
        targets = addresses(router.target)
        for target in targets:
            with blocking_channel(target, router.tls) as channel:
                try:
                    return _beginning(incomplete, call(_Stub(channel), _ANSWERS_WITHIN_S / len(targets)))
                except grpc.RpcError:
                    continue
    except StatehouseError:
        pass
    return []


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
