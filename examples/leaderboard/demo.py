"""The demonstration: `python -m examples.leaderboard.demo` (what `make demo` runs).

It starts a whole cluster, looks a key up, and kills the key's active host: a standby answers the same lookup
immediately, and the promoted active answers it a session timeout later. Then the killed node comes back with its state.
The demonstration leaves nothing behind, however it ends.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import grpc
import typer

from examples.leaderboard.local import APPLICATION
from examples.leaderboard.sample import PRODUCTS
from examples.leaderboard.topology import STORE
from statehouse.cli.exits import run_reporting, sigterm_raises
from statehouse.cli.output import note, print_table
from statehouse.cli.start_display import shown_progress
from statehouse.client import Answer, Client
from statehouse.client.conversion import role_name
from statehouse.contract.membership import TaskState
from statehouse.errors import LookupFailure
from statehouse.local.cluster import LocalCluster
from statehouse.local.cluster_parts import SESSION_TIMEOUT_MS, ClusterPart
from statehouse.local.errors import LocalError
from statehouse.local.ports import ClusterPorts
from statehouse.v1 import node_service_pb2, node_service_pb2_grpc

T = TypeVar("T")

_KEY: Final = "1"
_DEADLINE_S: Final = 60.0
_POLL_S: Final = 0.05
_HEADERS: Final = ["KEY", "VALUE", "PARTITION", "HOST", "ROLE", "POSITION", "LAG", "STALENESS", "EPOCH"]


def show(cluster: LocalCluster) -> None:
    """Run the demonstration on a running cluster."""
    with Client(cluster.router.address) as client:
        _title("The leaderboard, as routed")
        _await("every partition to have a caught-up standby", lambda: _is_settled(client))
        keys = [str(product) for product in PRODUCTS]
        answers = {key: client.get(STORE, key) for key in keys}
        print_table(_HEADERS, [_row(key, answer) for key, answer in answers.items()])

        before = answers[_KEY]
        victim = cluster.node(before.host.instance_id)
        _title(f"SIGKILL to {victim.name} (pid {victim.pid}), the active host of key {_KEY}")
        victim.kill()
        killed_at = time.monotonic()
        _show_failover(client, before, killed_at)

        _title(f"{victim.name} comes back")
        seconds = victim.start()
        print(f"running again after {seconds:.1f} s. A task whose state was on its disk goes on from the offset stored")
        print("with it and reads only what is new:")
        replicas = _await(f"{victim.name} to hold a task that it had before", lambda: _continued(victim))
        print_table(["TASK", "ROLE", "STATE", "RESTORED FROM OFFSET", "RECORDS READ", "POSITION", "LAG"], replicas)
        last = _await("a lookup", lambda: client.get(STORE, _KEY))
        print_table(_HEADERS, [_row(_KEY, last)])
    _show_http(cluster)


def _show_failover(client: Client, before: Answer, killed_at: float) -> None:
    """Look the key up until the promoted active answers; show each answer that differs from the previous one."""
    rows: list[tuple[object, ...]] = []
    shown: tuple[object, ...] = ()
    asked = failed = 0
    while True:
        elapsed_s = time.monotonic() - killed_at
        asked += 1
        try:
            answer = client.get(STORE, _KEY)
        except LookupFailure as failure:
            failed += 1
            note(f"  +{elapsed_s:.2f} s  {failure}")
        else:
            if answer.value != before.value:
                raise LocalError(f"the value has changed: {_scores(answer.value)}")
            seen = (answer.host.instance_id, answer.role, answer.epoch)
            if seen != shown:
                shown = seen
                rows.append((f"+{elapsed_s:.2f} s", *_row(_KEY, answer)))
                note(f"  +{elapsed_s:.2f} s  answered by {seen[0]} as {seen[1]}, epoch {seen[2]}")
            if answer.role == "ACTIVE" and answer.epoch > before.epoch:
                break
        if elapsed_s > _DEADLINE_S:
            raise LocalError(f"no active was promoted within {_DEADLINE_S:g} s")
        time.sleep(_POLL_S)
    print_table(["AFTER", *_HEADERS], rows)
    session_s = SESSION_TIMEOUT_MS / 1000
    print(f"{asked} lookups in between, {failed} failed; epoch {before.epoch} -> {answer.epoch}")
    print(f"(the fleet waits {session_s:g} s, its session timeout, before it gives a silent node's tasks to others)")
    if not any(row[5] == "STANDBY" for row in rows):
        raise LocalError("no standby answered in between")


def _show_http(cluster: LocalCluster) -> None:
    _title("The HTTP API")
    for path in ("/leaderboard", "/leaderboard/1", "/leaderboard/count", "/leaderboard/1/6"):
        url = f"http://{cluster.http.address}{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            print(f"GET {path}\n  {answer.read().decode()}")


def _is_settled(client: Client) -> bool:
    """Whether no task is moving, and each has a caught-up active and a caught-up standby."""
    return all(
        task.active is not None
        and task.standbys
        and not task.warm_ups
        and {
            replica.instance_id for replica in task.replicas if replica.state == TaskState.RUNNING and replica.lag == 0
        }
        >= {task.active, *task.standbys}
        for task in client.fleet().tasks
    )


def _replicas(part: ClusterPart) -> list[tuple[object, ...]]:
    """Return table rows of a node's task replicas; empty while one of them isn't running."""
    with grpc.insecure_channel(part.address) as channel:
        stub = node_service_pb2_grpc.NodeServiceStub(channel)
        node = stub.GetNode(node_service_pb2.GetNodeRequest(), timeout=5)
    if any(task.state != TaskState.RUNNING for task in node.tasks):
        return []
    return [
        (
            task.task,
            role_name(task.role),
            task.state,
            store.restored_from if store.HasField("restored_from") else None,
            store.restored_records,
            store.position,
            store.lag,
        )
        for task in node.tasks
        for store in task.stores
    ]


def _continued(part: ClusterPart) -> list[tuple[object, ...]]:
    """Return the node's replicas if one of them continued from a stored offset, else none."""
    rows = _replicas(part)
    return rows if any(row[3] for row in rows) else []


def _row(key: str, answer: Answer) -> tuple[object, ...]:
    staleness = None if answer.staleness_ms is None else f"{answer.staleness_ms} ms"
    return (
        key,
        _scores(answer.value),
        answer.partition,
        answer.host.instance_id,
        answer.role,
        answer.position,
        answer.lag,
        staleness,
        answer.epoch,
    )


def _scores(value: object) -> str:
    """Show a leaderboard in a cell."""
    if not isinstance(value, list):
        return json.dumps(value)
    return ", ".join(f"{entry['playerName']} {entry['score']}" for entry in value)


def _await(what: str, predicate: Callable[[], T]) -> T:
    """Poll until the predicate returns something truthy; return that."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise LocalError(f"waited {_DEADLINE_S:g} s for {what}")
        time.sleep(_POLL_S)


def _title(text: str) -> None:
    print(f"\n== {text}", flush=True)


def demonstrate(ports: ClusterPorts) -> None:
    """Start a cluster in a temporary directory, show it, and remove every trace."""
    begin = time.monotonic()
    run_dir = Path(tempfile.mkdtemp(prefix="statehouse-demo-"))
    try:
        cluster = LocalCluster(run_dir, APPLICATION, ports)
        with sigterm_raises():
            try:
                with shown_progress() as cluster.progress:
                    cluster.start()
                note(f"up in {time.monotonic() - begin:.1f} s")
                show(cluster)
                _title("Done; stopping everything")
            finally:
                with shown_progress() as cluster.progress:
                    cluster.stop()
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    print(f"demo finished in {time.monotonic() - begin:.1f} s")


def main(
    free_ports: Annotated[bool, typer.Option("--free-ports", help="Take free ports, not the usual ones.")] = False,
) -> None:
    """Start the leaderboard's cluster, kill the active host of a key, and show who answers."""
    ports = ClusterPorts.free() if free_ports else ClusterPorts()
    sys.exit(run_reporting(lambda: demonstrate(ports)))


if __name__ == "__main__":
    typer.run(main)
