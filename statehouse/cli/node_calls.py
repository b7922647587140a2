"""Asks nodes for what only they know, all at the same time, over connections that are kept for the next time."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Self

import grpc

from statehouse.client import ClientTls, Fleet, Host
from statehouse.client.node_readings import NodeReading, read_node
from statehouse.contract.membership import NodeState, target
from statehouse.rpc.channels import blocking_channel
from statehouse.v1 import node_service_pb2, node_service_pb2_grpc

ASKED_MAX: Final = 100
"""Nodes that are asked at a time; each has a connection."""
_ANSWERS_WITHIN_S: Final = 1.0
"""Many of those that are asked are dead, and it is a person who waits."""
_LATE_MS: Final = 3_000
"""Heartbeats come each second by default. Nodes whose last one is younger are not asked whether theirs fail."""


class NodeCalls:
    """Calls of NodeService, which routers don't pass on. A context manager: it closes the connections."""

    def __init__(self, tls: ClientTls | None) -> None:
        self._tls = tls
        self._channels: dict[str, grpc.Channel] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._keep(())

    def get_nodes(self, hosts: Iterable[Host]) -> dict[str, NodeReading]:
        """Return what nodes say of themselves, by instance id, without those that don't answer within a second.

        Only the first 100 are asked: it is for people, who see what the router knows of the others.
        """
        request = node_service_pb2.GetNodeRequest()
        addresses = {host.instance_id: target(host.host, host.port) for host in islice(hosts, ASKED_MAX)}
        self._keep(addresses.values())
        asked = {
            name: self._stub(address).GetNode.future(request, timeout=_ANSWERS_WITHIN_S)
            for name, address in addresses.items()
        }
        answers = ((name, _answer(call)) for name, call in asked.items())
        return {name: answer for name, answer in answers if answer is not None}

    def _stub(self, address: str) -> node_service_pb2_grpc.NodeServiceStub:
        if address not in self._channels:
            self._channels[address] = blocking_channel(address, self._tls)
        return node_service_pb2_grpc.NodeServiceStub(self._channels[address])

    def _keep(self, addresses: Collection[str]) -> None:
        """Close the connections to others: a fleet's nodes come and go while somebody looks."""
        for address in self._channels.keys() - addresses:
            self._channels.pop(address).close()


@dataclass(frozen=True, slots=True)
class SaidByNodes:
    """What nodes say that Kafka can't tell, by instance id.

    Attributes:
        failing_heartbeats: how long no heartbeat of a node has reached Kafka, in milliseconds.
        passed_over: what a node's stores were not restored from, and why.

    """

    failing_heartbeats: dict[str, int]
    passed_over: dict[str, list[str]]


def said_by_nodes(fleet: Fleet, tls: ClientTls | None, *, is_wide: bool) -> SaidByNodes:
    """Ask nodes whose heartbeats are late, and those that restore; if `is_wide`, all.

    Those that don't answer have a line in the table, which says already that their heartbeats are late, and whether the
    router reaches them.
    """
    asked = [
        node.host
        for node in fleet.nodes
        if is_wide or node.heartbeat_age_ms > _LATE_MS or node.state == NodeState.REBALANCING
    ]
    with NodeCalls(tls) as nodes:
        answers = nodes.get_nodes(asked)
    return SaidByNodes(
        {name: node.heartbeats_failing_ms for name, node in answers.items() if node.heartbeats_failing_ms is not None},
        {name: found for name, node in answers.items() if (found := list(_passed_over(node)))},
    )


def _passed_over(node: NodeReading) -> Iterator[str]:
    for each in node.replicas:
        for reason in each.passed_over:
            yield f"{each.store}/{each.partition} is restored from {each.restored_by}, not from {reason}"


def _answer(call: grpc.Future[Any]) -> NodeReading | None:
    try:
        return read_node(call.result(), time.monotonic())
    except grpc.RpcError:
        return None
