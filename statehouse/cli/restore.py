"""`statehouse restore`: the restores that are under way, once or until they have ended."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from statehouse.cli import output
from statehouse.cli.node_calls import NodeCalls
from statehouse.cli.output import Column, OutputFormat
from statehouse.cli.reads import Inquiry, takes_options
from statehouse.client import Client, Fleet
from statehouse.client.node_readings import UNDER_WAY, NodeReading
from statehouse.client.restore_rates import RestoreRates, RestoreSample, RunningRestore
from statehouse.contract.membership import TaskState
from statehouse.errors import LookupFailure

_BARS_EVERY_S: Final = 1.0
_LINES_EVERY_S: Final = 10.0
_ROUTER_AWAY_MAX_S: Final = 30.0
"""A router that restarts is back sooner; restores go on without it."""
_GONE_MS: Final = 30_000
"""A node that has neither written a heartbeat for so long nor answers restores nothing."""


def percent(restore: RunningRestore) -> str:
    """Say how much of a restore is done."""
    return "unknown" if restore.share is None else f"{restore.share:.0%}"


def eta(seconds: float | None) -> str:
    """Say how long something still takes."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min" if whole < 7_200 else f"{whole // 3_600} h"


def source(restore: RunningRestore) -> str:
    """Say what is read: then figures are offsets of the log, or bytes of a node's files."""
    return f"files of {restore.peer}" if restore.peer else "log"


COLUMNS: Final[Sequence[Column[RunningRestore]]] = (
    Column("NODE", lambda each: each.node),
    Column("RESTORES", lambda each: each.name),
    Column("ROLE", lambda each: each.role),
    Column("DONE", percent),
    Column("READ", lambda each: each.done),
    Column("LEFT", lambda each: each.left),
    Column("PER S", lambda each: "-" if each.per_s is None else f"{each.per_s:,.0f}"),
    Column("ETA", lambda each: eta(each.eta_s)),
    Column("FROM", source),
    Column("TASK", lambda each: each.task, is_wide=True),
)


@takes_options
def restore(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow them until all have ended; Ctrl-C ends that sooner.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help=r"How often --watch asks.  \[default: 1 on a terminal, else 10]",
            show_default=False,
        ),
    ] = None,
    inquiry: Inquiry = Inquiry(),
) -> None:
    """Show the restores that are under way, with --watch their rates and the time that they still take.

    Nodes are asked themselves; where they can't be reached from here, the router tells what their heartbeats said.
    With --watch there is a bar for each on a terminal, otherwise a line for each at intervals; -o json prints a line of
    JSON for each interval.

    Example: statehouse restore --watch
    """
    if watch and inquiry.fmt in {OutputFormat.YAML, OutputFormat.NAME}:
        raise typer.BadParameter("--watch prints tables or JSON", param_hint="--output")
    with inquiry.client() as client, NodeCalls(inquiry.router.tls) as nodes:
        restores = _Restores(client, nodes)
        if watch:
            _follow(restores, inquiry.fmt, interval)
        else:
            output.show_items(inquiry.fmt, COLUMNS, restores.look(), lambda each: f"{each.node} {each.name}")


class _Restores:
    """Looks at all restores, again and again; bears a router that is away for a while."""

    def __init__(self, client: Client, nodes: NodeCalls) -> None:
        self._client, self._nodes = client, nodes
        self._rates = RestoreRates()
        self._seen_at_s: float | None = None
        self._latest: list[RunningRestore] = []

    @property
    def ended(self) -> int:
        """How many have ended since the first look."""
        return self._rates.ended

    def look(self) -> list[RunningRestore]:
        """Return the restores that are under way; those seen last while the router is away.

        Raises:
            LookupFailure: the router has not answered for half a minute, or never.

        """
        try:
            fleet = self._client.fleet()
        except LookupFailure:
            if self._seen_at_s is None or time.monotonic() - self._seen_at_s > _ROUTER_AWAY_MAX_S:
                raise
            return self._latest
        self._seen_at_s = time.monotonic()
        restoring = {each.instance_id for task in fleet.tasks for each in task.replicas if each.state in UNDER_WAY}
        answers = self._nodes.get_nodes(node.host for node in fleet.nodes if node.host.instance_id in restoring)
        self._latest = self._rates.take(samples_of(fleet, answers), self._seen_at_s)
        return self._latest


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


def _follow(restores: _Restores, fmt: OutputFormat, interval_s: float | None) -> None:
    begin = time.monotonic()
    screen = output.console()
    is_json = fmt is OutputFormat.JSON
    has_bars = screen.is_terminal and not is_json
    with _Bars(screen) if has_bars else nullcontext() as bars:
        while found := restores.look():
            if bars is not None:
                bars.show(found)
            elif is_json:
                output.print_json_line(found, is_live=True)
            else:
                print(*map(_line, found), sep="\n", flush=True)
            time.sleep(interval_s or (_BARS_EVERY_S if has_bars else _LINES_EVERY_S))
    if is_json:
        output.print_json_line(found, is_live=True)
    if restores.ended:
        output.note(f"all restores have ended: {restores.ended} in {time.monotonic() - begin:.0f} s")
    else:
        output.note("no restores are under way")


class _Bars:
    """A bar for each restore, as many as the terminal has room for; a context manager."""

    def __init__(self, screen: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[done]:>5}"),
            TextColumn("{task.fields[rest]}"),
            console=screen,
            expand=True,
            transient=True,
            auto_refresh=False,
        )
        self._room = max(1, screen.height - 2)
        self._bars: dict[tuple[str, str], TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, restores: Sequence[RunningRestore]) -> None:
        """Draw the bars: those that have the most left, if there isn't room for all."""
        most_left = sorted(restores, key=lambda each: -(each.left or 0))[: self._room]
        shown = {(each.node, each.name): each for each in most_left}
        for key in self._bars.keys() - shown.keys():
            self._progress.remove_task(self._bars.pop(key))
        for key, each in shown.items():
            if key not in self._bars:
                name = Text(f"{each.node}  {each.name}").plain.replace("[", r"\[")
                self._bars[key] = self._progress.add_task(name, total=None, done="", rest="")
            known = each.done is not None and each.left is not None
            self._progress.update(
                self._bars[key],
                total=(each.done or 0) + (each.left or 0) if known else None,
                completed=each.done or 0,
                done=percent(each),
                rest=_rest(each),
            )
        self._progress.refresh()


def _rest(restore: RunningRestore) -> str:
    unit = f" bytes of files of {restore.peer}" if restore.peer else ""
    left = "end unknown" if restore.left is None else f"{restore.left:,}{unit} left"
    rate = "" if restore.per_s is None else f", {restore.per_s:,.0f}/s"
    return left + rate + ("" if restore.eta_s is None else f", {eta(restore.eta_s)} to go")


def _line(restore: RunningRestore) -> str:
    return f"{restore.node}  {restore.name}  {restore.role}  {percent(restore)}  {_rest(restore)}"
