"""Asks which restores are under way: the nodes that restore, and where they can't be reached the router."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from statehouse.cli.node_calls import NodeCalls
from statehouse.client import Fleet
from statehouse.client.node_readings import NodeReading
from statehouse.client.restore_rates import RestoreSample
from statehouse.contract.membership import TaskState

_GONE_MS: Final = 30_000
"""A node that has neither written a heartbeat for so long nor answers restores nothing."""


def restore_samples(fleet: Fleet, nodes: NodeCalls) -> list[RestoreSample]:
    """Return a sample of each restore that is under way, of the nodes that restore as far as the router knows."""
    restoring = {
        replica.instance_id for task in fleet.tasks for replica in task.replicas if replica.state == TaskState.RESTORING
    }
    answers = nodes.get_nodes(node.host for node in fleet.nodes if node.host.instance_id in restoring)
    return samples_of(fleet, answers)


def samples_of(fleet: Fleet, answers: Mapping[str, NodeReading]) -> list[RestoreSample]:
    """Return a sample of each restore: by what nodes have answered, and of the others by what the router knows."""
    samples = [sample for answer in answers.values() for sample in answer.restores()]
    heard = {node.host.instance_id for node in fleet.nodes if node.heartbeat_age_ms <= _GONE_MS}
    return samples + list(_of_router(fleet, heard - answers.keys()))


def _of_router(fleet: Fleet, names: set[str]) -> Iterator[RestoreSample]:
    for task in fleet.tasks:
        for replica in task.replicas:
            if replica.instance_id in names and replica.state == TaskState.RESTORING:
                position, lag = replica.position, replica.lag
                end = None if position is None or lag is None else position + lag
                yield RestoreSample(replica.instance_id, task.task, replica.role, position=position, end=end)
