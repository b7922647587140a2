"""Fleets as the page hears of them, without a router or a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from statehouse.client import Fleet, Host, Node, Replica, Store, Task
from statehouse.client.node_readings import NodeReading, ReplicaReading
from statehouse.web.pages.recorder import Moment, Recorder

PORTS = {"n1": 7_101, "n2": 7_102, "n3": 7_103}


def at(seconds: float) -> Moment:
    return Moment(seconds, int(1_700_000_000_000 + seconds * 1_000))


def store(name: str = "counts", partitions: int = 2, **more: Any) -> Store:
    return Store(name, "key-value", "string", "json", f"app-{name}-changelog", partitions, 0, **more)


def node(name: str, **more: Any) -> Node:
    given = {"rack": "", "state": "RUNNING", "version": "1", "epoch": 1, "heartbeat_age_ms": 100, "reachable": True}
    return Node(Host(name, "127.0.0.1", PORTS.get(name, 7_000)), "run", **(given | more))


def task(partition: int, active: str | None = "n1", standbys: tuple[str, ...] = ("n2",), **more: Any) -> Task:
    given: dict[str, Any] = {"warm_ups": (), "reason": "balance"} | more
    holders = [name for name in (active, *standbys, *given["warm_ups"]) if name is not None]
    given.setdefault(
        "replicas",
        tuple(Replica(name, "ACTIVE" if name == active else "STANDBY", "running", 10, 0) for name in holders),
    )
    return Task(f"0_{partition}", active, standbys, **given)


def fleet(epoch: int = 1, **more: Any) -> Fleet:
    given: dict[str, Any] = {
        "reason": f"reason {epoch}",
        "stores": (store(),),
        "nodes": (node("n1"), node("n2")),
        "tasks": (task(0), task(1, "n2", ("n1",))),
    }
    return Fleet("app", epoch, **(given | more))


def replica(partition: int = 0, **more: Any) -> ReplicaReading:
    given: dict[str, Any] = {
        "task": f"0_{partition}",
        "role": "ACTIVE",
        "state": "running",
        "error": "",
        "store": "counts",
        "partition": partition,
        "position": 10,
        "end": 10,
        "lag": 0,
        "staleness_ms": 5,
        "restored_from": 0,
        "restored_records": 0,
        "lookups": 0,
        "oldest_batch": None,
    }
    return ReplicaReading(**(given | more))


def reading(name: str, at_s: float, *replicas: ReplicaReading, incarnation: str = "run") -> NodeReading:
    return NodeReading(name, incarnation, "RUNNING", 1, replicas, None, at_s)


def recorder(*fleets: Fleet) -> Recorder:
    """Return what is known after hearing of fleets, one a second."""
    found = Recorder()
    for second, heard in enumerate(fleets):
        found.take_fleet(heard, at(float(second)))
    return found


def with_reports(given: Task, *states: str, lag: int = 0) -> Task:
    """Return a task whose replicas are in these states."""
    reports = tuple(replace(each, state=state, lag=lag) for each, state in zip(given.replicas, states, strict=True))
    return replace(given, replicas=reports)
