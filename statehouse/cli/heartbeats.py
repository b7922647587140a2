"""Asks nodes that the router hears nothing of whether their heartbeats fail: they know, and Kafka can't tell."""

from __future__ import annotations

from typing import Final

from statehouse.cli.node_calls import NodeCalls
from statehouse.client import ClientTls, Fleet

_LATE_MS: Final = 3_000
"""Heartbeats come each second by default. Nodes whose last one is younger are not asked."""


def failing_heartbeats(fleet: Fleet, tls: ClientTls | None) -> dict[str, int]:
    """Return how long no heartbeat of a node has reached Kafka, in milliseconds, by instance id.

    Only of those that say that theirs fail. Those that don't answer have a line in the table, which says already that
    their heartbeats are late, and whether the router reaches them.
    """
    late = [node.host for node in fleet.nodes if node.heartbeat_age_ms > _LATE_MS]
    with NodeCalls(tls) as nodes:
        answers = nodes.get_nodes(late)
    return {
        name: node.heartbeats_failing_ms for name, node in answers.items() if node.heartbeats_failing_ms is not None
    }
