"""`statehouse top`: a live view of a fleet in a terminal."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from statehouse.cli import output
from statehouse.cli.addresses import RouterAddress
from statehouse.cli.exits import sigterm_raises
from statehouse.cli.fleet import QUERY_COLUMNS, controller_said
from statehouse.cli.keys import ESCAPE, pressed_keys
from statehouse.cli.node_calls import NodeCalls
from statehouse.cli.output import Column, OutputFormat
from statehouse.cli.reads import Inquiry, takes_options
from statehouse.cli.restore import COLUMNS as RESTORE_COLUMNS
from statehouse.cli.restore import samples_of
from statehouse.cli.top_view import NodeRow, TaskRow, TopView, top_view
from statehouse.client import Client
from statehouse.client.node_readings import ReplicaPlace
from statehouse.client.restore_rates import RestoreRates
from statehouse.errors import LookupFailure
from statehouse.observability.counter_rates import CounterRates

_QUITS: Final = frozenset({"q", "Q", ESCAPE, "\x04"})
_OTHER_LINES: Final = 14
"""Headers, empty lines and totals; the rest of a terminal's lines is for rows."""
_ROWS_MIN: Final = 3


def _mark(*, is_well: bool) -> str:
    return " " if is_well else "!"


_NODES: Final[Sequence[Column[NodeRow]]] = (
    Column("", lambda row: _mark(is_well=row.is_well)),
    Column("NODE", lambda row: row.node),
    Column("STATE", lambda row: row.state),
    Column("ACTIVES", lambda row: row.actives),
    Column("STANDBYS", lambda row: row.standbys),
    Column("RESTORING", lambda row: row.restoring or "-"),
    Column("LAG", lambda row: "-" if row.lag is None else row.lag),
    Column("LOOKUPS/S", lambda row: "-" if row.lookups_per_s is None else f"{row.lookups_per_s:,.0f}"),
    Column("HEARTBEAT", lambda row: f"{row.heartbeat_age_ms / 1_000:.1f} s ago"),
    Column("REACHABLE", lambda row: row.reachable),
    Column("ADDRESS", lambda row: row.address),
)
_TASKS: Final[Sequence[Column[TaskRow]]] = (
    Column("", lambda row: _mark(is_well=row.is_well)),
    Column("TASK", lambda row: row.task),
    Column("STATE", lambda row: row.state),
    Column("ACTIVE", lambda row: row.active or "-"),
    Column("LAG", lambda row: row.lag),
    Column("REPLICAS", lambda row: row.replicas),
    Column("REASON", lambda row: row.reason or "-"),
)


@takes_options
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one view and end, as without a terminal.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, max=60.0, metavar="SECONDS", help="How often to ask.")] = 2.0,
    inquiry: Inquiry = Inquiry(),
) -> None:
    """Show a fleet live: nodes, tasks with the largest lag, restores, the processor's queries. q quits.

    Problems come first, with a mark. If the router is away, the last view stays, and says so. Lookups are
    counted at nodes, which are asked themselves, 100 at most.

    Example: statehouse top --interval 1
    """
    with inquiry.client() as client, NodeCalls(inquiry.router.tls) as nodes:
        look = _Look(client, nodes)
        view = look.view()
        if once or inquiry.fmt is not OutputFormat.TABLE or not sys.stdout.isatty():
            names = [row.node for row in view.nodes]
            output.show(
                inquiry.fmt, view, names, lambda _is_wide: output.print_whole(_page(view, inquiry.router, "", None))
            )
            return
        _live(look, view, inquiry.router, interval)


class _Look:
    """Asks the router for the fleet, and nodes for their restores and lookups."""

    def __init__(self, client: Client, nodes: NodeCalls) -> None:
        self._client, self._nodes = client, nodes
        self._restores = RestoreRates()
        self._lookups = CounterRates[tuple[str, ReplicaPlace]]()

    def view(self) -> TopView:
        """Return the fleet as it is now.

        Raises:
            LookupFailure: the router doesn't answer.

        """
        fleet = self._client.fleet()
        answers = self._nodes.get_nodes(node.host for node in fleet.nodes)
        now_s = time.monotonic()
        counts = {(name, place): count for name, answer in answers.items() for place, count in answer.lookups().items()}
        per_node: dict[str, float] = defaultdict(float)
        for (name, _), per_s in self._lookups.take(counts, now_s).items():
            per_node[name] += per_s
        return top_view(fleet, self._restores.take(samples_of(fleet, answers), now_s), per_node)


def _live(look: _Look, view: TopView, router: RouterAddress, interval_s: float) -> None:
    """Draw the view again and again until somebody quits."""
    screen = Console(highlight=False)
    seen_s = time.monotonic()
    failure: LookupFailure | None = None
    try:
        with sigterm_raises(), pressed_keys() as key, Live(console=screen, screen=True, auto_refresh=False) as live:
            while True:
                said = "" if failure is None else f"{failure.message} (seen {time.monotonic() - seen_s:.0f} s ago)"
                live.update(_page(view, router, said, screen.height), refresh=True)
                if key(interval_s) in _QUITS:
                    return
                try:
                    view, failure, seen_s = look.view(), None, time.monotonic()
                except LookupFailure as error:
                    failure = error
    except KeyboardInterrupt:
        return  # how people end it


def _page(view: TopView, router: RouterAddress, failure: str, height: int | None) -> RenderableType:
    """Return the whole view; `height`: lines of the terminal, None for as many as it takes."""
    fleet = view.fleet
    rows = _shares(view, height)
    parts: list[RenderableType] = [
        _headline(view, router),
        Text(f"controller: {controller_said(fleet.controller)}   epoch {fleet.epoch}: {fleet.reason}"),
    ]
    if failure:
        parts.append(Text(failure, style="bold red"))
    parts += [Text(""), output.columns_table(_NODES, view.nodes[: rows[0]]), *_more(view.nodes, rows[0])]
    parts += [Text(""), output.columns_table(_TASKS, view.tasks[: rows[1]]), *_more(view.tasks, rows[1])]
    if view.restores:
        shown = output.columns_table(RESTORE_COLUMNS[:-1], view.restores[: rows[2]])
        parts += [Text(""), shown, *_more(view.restores, rows[2])]
    if fleet.queries:
        shown = output.columns_table(QUERY_COLUMNS, fleet.queries[: rows[3]])
        parts += [Text(""), shown, *_more(fleet.queries, rows[3])]
    return Group(*parts)


def _headline(view: TopView, router: RouterAddress) -> Text:
    well = sum(row.is_well for row in view.nodes)
    states = ", ".join(f"{count} {state}" for state, count in Counter(view.tasks_by_state).most_common())
    said = [
        f"{view.fleet.application_id} at {router.target}",
        f"{well} of {len(view.nodes)} nodes well",
        f"tasks: {states or 'none'}",
        f"largest lag: {output.cell(view.lag)}",
        f"restores: {len(view.restores)}",
    ]
    if view.lookups_per_s is not None:
        said.append(f"lookups: {view.lookups_per_s:,.0f}/s")
    return Text("   ".join(said), style="bold")


def _shares(view: TopView, height: int | None) -> tuple[int, int, int, int]:
    """Share a terminal's lines among nodes, tasks, restores and queries: what needs less leaves more to the others."""
    needed = [len(view.nodes), len(view.tasks), len(view.restores), len(view.fleet.queries)]
    if height is None:
        return needed[0], needed[1], needed[2], needed[3]
    given = [0, 0, 0, 0]
    left = max(height - _OTHER_LINES, _ROWS_MIN * len(needed))
    while left and (hungry := [index for index in range(4) if given[index] < needed[index]]):
        for index in hungry[:left]:
            given[index] += 1
        left -= min(left, len(hungry))
    return given[0], given[1], given[2], given[3]


def _more(items: Sequence[object], shown: int) -> list[RenderableType]:
    return [Text(f"... and {len(items) - shown} more", style="dim")] if len(items) > shown else []
