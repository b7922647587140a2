"""Makes a forecast for given nodes, and prints it for people or programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from processor.ownership.planning.forecast import AssignmentChange, Forecast, NodeLoad, forecast
from processor.ownership.planning.model import NodeView
from processor.ownership.topics.observed import ObservedFleet
from statehouse.cli import output
from statehouse.cli.output import OutputFormat
from statehouse.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Preview:
    """A forecast and its inputs."""

    fleet: ObservedFleet
    forecast: Forecast

    @property
    def summary(self) -> str:
        """The forecast in one line."""
        steps = self.forecast.steps
        if not steps:
            return "nothing to do"
        changes = [change for step in steps for change in step]
        moved = sum(change.is_active_moved for change in changes)
        built = sum(len(change.built) for change in changes)
        more = "" if self.forecast.is_complete else "; there is more to do, that is as far as was looked"
        return f"epochs: {len(steps)}; actives moved: {moved}; copies built: {built}{more}"


def preview(fleet: ObservedFleet, joining: Mapping[str, NodeView], removed: Sequence[str]) -> Preview:
    """Make a forecast with nodes added and removed.

    Raises:
        ConfigurationError: a node can't be added or removed.

    """
    known = ", ".join(sorted(fleet.nodes)) or "none"
    for name in joining:
        if name in fleet.nodes:
            raise ConfigurationError(f"--add {name}: there is a live node of that name; live are {known}")
    for name in removed:
        if name not in fleet.nodes:
            raise ConfigurationError(f"--remove {name}: no live node of that name; live are {known}")
    if not joining and not fleet.nodes.keys() - set(removed):
        raise ConfigurationError(f"no node would be left: live are {known}")
    settings, ephemeral = fleet.settings.planner, fleet.ephemeral
    made = forecast(fleet.nodes, fleet.tasks, settings, ephemeral=ephemeral, added=joining, removed=removed)
    return Preview(fleet, made)


def added_nodes(given: Sequence[str]) -> dict[str, NodeView]:
    """Parse nodes to add, each NAME[:capacity=N,rack=R].

    Raises:
        ConfigurationError: a text has another form, or a name appears twice.

    """
    nodes: dict[str, NodeView] = {}
    for text in given:
        name, _, described = text.partition(":")
        facts = dict(fact.partition("=")[::2] for fact in described.split(",") if fact)
        capacity = facts.pop("capacity", "1")
        rack = facts.pop("rack", "")
        if not name or facts or not capacity.isdecimal() or int(capacity) < 1:
            raise ConfigurationError(f"--add {text!r} is not NAME[:capacity=N,rack=R] with N at least 1")
        if name in nodes:
            raise ConfigurationError(f"--add names {name} twice")
        nodes[name] = NodeView(rack, capacity=int(capacity))
    return nodes


def show(previewed: Preview, fmt: OutputFormat) -> None:
    """Print the forecast; its names are the tasks that it changes."""
    tasks = dict.fromkeys(str(change.task) for step in previewed.forecast.steps for change in step)
    output.show(fmt, _document(previewed), tasks, lambda _is_wide: _print(previewed))


def _print(previewed: Preview) -> None:
    made, settings = previewed.forecast, asdict(previewed.fleet.settings.planner)
    output.print_facts(
        [
            ("application", previewed.fleet.application_id),
            ("epoch", previewed.fleet.assignment.epoch),
            ("settings", ", ".join(f"{name} {value}" for name, value in settings.items())),
        ]
    )
    if made.steps:
        output.print_table(
            ["STEP", "TASK", "ACTIVE", "STANDBYS", "WARM-UPS", "REASON"],
            [_row(number, change) for number, step in enumerate(made.steps, 1) for change in step],
        )
    before, after = ({load.node: load for load in loads} for loads in (made.before, made.after))
    output.print_table(
        ["NODE", "RACK", "CAPACITY", "ACTIVES", "STANDBYS"],
        [_load_row(node, before.get(node), after.get(node)) for node in sorted(before.keys() | after.keys())],
    )
    print(previewed.summary)  # noqa: T201 - a command's result


def _row(step: int, change: AssignmentChange) -> tuple[object, ...]:
    was, now = change.was, change.now
    return (
        step,
        str(change.task),
        _from_to(was.active or "none", now.active or "none"),
        _gained_and_lost(was.standbys, now.standbys),
        _gained_and_lost(was.warm_ups, now.warm_ups),
        now.reason,
    )


def _gained_and_lost(was: Sequence[str], now: Sequence[str]) -> tuple[str, ...]:
    """Mark new nodes with + and removed ones with -."""
    return (
        *(node if node in was else f"+{node}" for node in now),
        *(f"-{node}" for node in was if node not in now),
    )


def _load_row(node: str, before: NodeLoad | None, after: NodeLoad | None) -> tuple[object, ...]:
    load = after or before
    assert load is not None  # noqa: S101 - a node of either
    return (
        node,
        load.rack or "-",
        load.capacity,
        _from_to(*("-" if each is None else str(each.actives) for each in (before, after))),
        _from_to(*("-" if each is None else str(each.standbys) for each in (before, after))),
    )


def _from_to(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _document(previewed: Preview) -> dict[str, Any]:
    made = previewed.forecast
    return {
        "application": previewed.fleet.application_id,
        "epoch": previewed.fleet.assignment.epoch,
        "settings": asdict(previewed.fleet.settings.planner),
        "steps": [[_change(change) for change in step] for step in made.steps],
        "before": made.before,
        "after": made.after,
        "is_complete": made.is_complete,
        "summary": previewed.summary,
    }


def _change(change: AssignmentChange) -> dict[str, Any]:
    sides = (("before", change.was), ("after", change.now))
    return {
        "task": str(change.task),
        "reason": change.now.reason,
        "active": {side: holders.active for side, holders in sides},
        "standbys": {side: holders.standbys for side, holders in sides},
        "warm_ups": {side: holders.warm_ups for side, holders in sides},
    }
