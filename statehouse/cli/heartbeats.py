"""Asks nodes that the router hears nothing of whether their heartbeats fail: they know, and Kafka can't tell."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

import grpc

from statehouse.client import ClientTls, Fleet
from statehouse.membership import target
from statehouse.rpc.channels import blocking_channel
from statehouse.v1 import node_service_pb2, node_service_pb2_grpc

_LATE_MS: Final = 3_000
"""Heartbeats come each second by default. Nodes whose last one is younger are not asked."""
_ANSWERS_WITHIN_S: Final = 1.0
"""Many of those that are asked are dead, and it is a person who waits."""
_ASKED_MAX: Final = 100


def failing_heartbeats(fleet: Fleet, tls: ClientTls | None) -> dict[str, int]:
    """Return how long no heartbeat of a node has reached Kafka, in milliseconds, by instance id.

    Only of those that say that theirs fail. They are all asked at once.
    """
    late = [node.host for node in fleet.nodes if node.heartbeat_age_ms > _LATE_MS]
    with ExitStack() as channels:
        answers: dict[str, grpc.Future[Any]] = {}
        for host in late[:_ASKED_MAX]:
            channel = channels.enter_context(blocking_channel(target(host.host, host.port), tls))
            stub = node_service_pb2_grpc.NodeServiceStub(channel)
            request = node_service_pb2.GetNodeRequest()
            answers[host.instance_id] = stub.GetNode.future(request, timeout=_ANSWERS_WITHIN_S)
        return {name: failing_ms for name, answer in answers.items() if (failing_ms := _failing_ms(answer)) is not None}


def _failing_ms(answer: grpc.Future[Any]) -> int | None:
    try:
        node: node_service_pb2.GetNodeResponse = answer.result()
    except grpc.RpcError:
        return None  # the table says already that its heartbeats are late, and whether the router reaches it
    return node.heartbeats_failing_ms if node.HasField("heartbeats_failing_ms") else None
