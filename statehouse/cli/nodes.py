"""`statehouse nodes`: the query nodes as the router sees them, telling one to leave, and looking into one."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import grpc
import typer

from statehouse.cli import output
from statehouse.cli.addresses import RouterAddress
from statehouse.cli.completion import complete_node
from statehouse.cli.options import SOME_ROUTER
from statehouse.cli.reads import Inquiry, takes_options
from statehouse.client import Client, ClientTls, Fleet, Node
from statehouse.contract.membership import SILENT, target
from statehouse.errors import LookupFailure, Reason, StatehouseError
from statehouse.rpc.channels import blocking_channel
from statehouse.rpc.failures import from_rpc_error, tls_hint
from statehouse.v1 import node_service_pb2, node_service_pb2_grpc

app = typer.Typer(no_args_is_help=True, help="See the query nodes, tell one to leave, and look into one.")
NodeArgument = Annotated[
    str,
    typer.Argument(metavar="NODE", help="Instance id of the node.", show_default=False, autocompletion=complete_node),
]

_CALL_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.2
# Far longer than a heartbeat interval, and longer than it takes to close the stores.
_SILENCE_MAX_S: Final = 30.0


class ProfileKind(StrEnum):
    """What a profile is of."""

    CPU = "cpu"
    HEAP = "heap"
    GOROUTINES = "goroutines"


class DrainNotSeenThrough(StatehouseError):
    """A node that had to drain fell silent, and did not leave."""


@app.command("list")
@takes_options
def list_nodes(
    inquiry: Inquiry = Inquiry(),
) -> None:
    """Show the nodes by their last heartbeats; exit code 4 if the router is not reachable."""
    with inquiry.client() as client:
        fleet = client.fleet()
    holdings = _holdings(fleet)
    output.show(
        inquiry.fmt,
        [dataclasses.asdict(node) | holdings(node) for node in fleet.nodes],
        [node.host.instance_id for node in fleet.nodes],
        lambda is_wide: print_nodes(fleet, is_wide=is_wide),
    )


@app.command()
@takes_options
def drain(
    node: NodeArgument,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="Longest hand-over; then the node stops with the tasks it has.  [default: its drain_timeout_ms]",
            show_default=False,
        ),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return as soon as the drain has begun.")] = False,
    router: RouterAddress = SOME_ROUTER,
) -> None:
    """Let a node hand its active tasks over and leave, as SIGTERM does, and wait until it has left.

    Exit code 4 if the router or the node can't be reached. Ctrl-C ends the waiting, not the drain.
    """
    with Client(router.target, tls=router.tls, timeout=_CALL_TIMEOUT_S) as client:
        told = find_node(node, client.fleet())
        actives = _tell_to_drain(told, timeout, router.tls)
        output.note(f"{node} drains: {actives} active tasks to hand over")
        if no_wait:
            return
        abandoned = _wait_until_left(told, client, actives)
    output.note(f"{node} has left" + (f"; {abandoned} tasks have no other active yet" if abandoned else ""))


@app.command()
@takes_options
def profile(
    node: NodeArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write; it must not be there.")],
    kind: Annotated[
        ProfileKind, typer.Option("--kind", help="Processor time, memory in use, or what all goroutines do.")
    ] = ProfileKind.CPU,
    seconds: Annotated[float, typer.Option(min=0.1, max=60.0, help="For how long processor time is watched.")] = 5.0,
    router: RouterAddress = SOME_ROUTER,
) -> None:
    """Write a profile of a node's data plane: what takes its processor time or memory. `go tool pprof FILE` shows it.

    Exit code 4 if the router or the node can't be reached.
    """
    if file.exists():
        raise typer.BadParameter(f"{file} is there already", param_hint="FILE")
    request = node_service_pb2.ProfileRequest(
        kind=node_service_pb2.ProfileKind.Value(f"PROFILE_KIND_{kind.name}"), duration_ms=int(seconds * 1000)
    )
    with Client(router.target, tls=router.tls, timeout=_CALL_TIMEOUT_S) as client:
        asked = find_node(node, client.fleet())
    with _calling(asked, router.tls) as stub:
        made = stub.Profile(request, timeout=seconds + 2 * _CALL_TIMEOUT_S).profile
    file.write_bytes(made)
    output.note(f"{file} has {len(made):,} bytes: go tool pprof {file}")


def print_nodes(fleet: Fleet, *, is_wide: bool = False) -> None:
    """Print a line for each node."""
    holdings = _holdings(fleet)
    columns = (
        output.Column[Node]("NODE", lambda node: node.host.instance_id),
        output.Column[Node]("KIND", lambda node: "dynamic" if node.dynamic else "static"),
        output.Column[Node]("STATE", _state),
        output.Column[Node]("ADDRESS", lambda node: f"{node.host.host}:{node.host.port}"),
        output.Column[Node]("RACK", lambda node: node.rack or "-"),
        output.Column[Node]("CAPACITY", lambda node: node.capacity),
        output.Column[Node]("ACTIVES", lambda node: holdings(node)["actives"]),
        output.Column[Node]("STANDBYS", lambda node: holdings(node)["standbys"]),
        output.Column[Node]("EPOCH", lambda node: node.epoch),
        output.Column[Node]("HEARTBEAT", lambda node: f"{node.heartbeat_age_ms} ms ago"),
        output.Column[Node]("REACHABLE", lambda node: node.reachable),
        output.Column[Node]("VERSION", lambda node: node.version or "-", is_wide=True),
        output.Column[Node]("INCARNATION", lambda node: node.incarnation or "-", is_wide=True),
    )
    output.print_columns(columns, fleet.nodes, is_wide=is_wide)


def _state(node: Node) -> str:
    return f"{SILENT} {node.heartbeat_age_ms // 1000} s" if node.state == SILENT else node.state


def _holdings(fleet: Fleet) -> Callable[[Node], dict[str, int]]:
    """Return a function that counts the tasks that the assignment gives a node."""
    actives = Counter(task.active for task in fleet.tasks)
    standbys = Counter(name for task in fleet.tasks for name in task.standbys)

    def of(node: Node) -> dict[str, int]:
        return {"actives": actives[node.host.instance_id], "standbys": standbys[node.host.instance_id]}

    return of


def find_node(name: str, fleet: Fleet) -> Node:
    """Return the node of that instance id.

    Raises:
        typer.BadParameter: there is none.

    """
    for node in fleet.nodes:
        if node.host.instance_id == name:
            return node
    known = ", ".join(node.host.instance_id for node in fleet.nodes) or "none"
    raise typer.BadParameter(f"no node {name!r} in application {fleet.application_id}; known: {known}")


def _tell_to_drain(node: Node, timeout_s: float | None, tls: ClientTls | None) -> int:
    """Tell a node to drain; return how many active tasks it has.

    Raises:
        LookupFailure: the node refused, or can't be reached.

    """
    request = node_service_pb2.DrainRequest(timeout_ms=None if timeout_s is None else int(timeout_s * 1000))
    with _calling(node, tls) as stub:
        return len(stub.Drain(request, timeout=_CALL_TIMEOUT_S).active_tasks)


@contextmanager
def _calling(node: Node, tls: ClientTls | None) -> Iterator[node_service_pb2_grpc.NodeServiceStub]:
    """Yield a node's own service.

    Raises:
        LookupFailure: the node refused, or can't be reached; the message then names its address.

    """
    address = target(node.host.host, node.host.port)
    with blocking_channel(address, tls) as channel:
        try:
            yield node_service_pb2_grpc.NodeServiceStub(channel)
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            if failure.reason not in {Reason.UNREACHABLE, Reason.ATTEMPT_TIMED_OUT}:
                raise failure from error
            hint = tls_hint(failure.message, tls)
            raise LookupFailure(
                failure.reason,
                f"node {node.host.instance_id} can't be reached at {address}, where its last heartbeat "
                f"({node.heartbeat_age_ms} ms ago) says it is: it is down, or that address can't be reached from here"
                + (f". {hint}" if hint else ""),
                {"target": address},
            ) from error


def _wait_until_left(node: Node, client: Client, actives: int) -> int:
    """Wait until the router no longer knows this run of the node; return how many tasks still have it as their active.

    If the node runs again by then, that is 0. The node itself bounds its drain; this bounds only its silence meanwhile.

    Raises:
        DrainNotSeenThrough: the node fell silent and did not leave.

    """
    name = node.host.instance_id
    while True:
        fleet = client.fleet()
        left = sum(task.active == name for task in fleet.tasks)
        runs = {each.incarnation: each for each in fleet.nodes if each.host.instance_id == name}
        if node.incarnation not in runs:
            return 0 if runs else left
        silent_s = runs[node.incarnation].heartbeat_age_ms / 1000
        if silent_s > _SILENCE_MAX_S:
            raise DrainNotSeenThrough(
                f"node {name} was not heard of for {silent_s:.0f} s and has not left: see its log; if it was killed, "
                "its tasks move when its session has timed out"
            )
        if left != actives:
            actives = left
            output.note(f"{name}: {actives} active tasks left")
        time.sleep(_POLL_S)
