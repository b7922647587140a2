"""Whether a version of an application may serve: what a router's fleet of it says. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from statehouse.client.answers import Fleet
from statehouse.contract.membership import TaskState

_WELL: Final = frozenset({"RUNNING", "IDLE"})


def obstacles(fleet: Fleet, served: Collection[str], most_backlog: int) -> Iterator[str]:
    """Yield what keeps a version from serving, for people.

    Args:
        fleet: of that version.
        served: the stores that the version has which serves now.
        most_backlog: so many records of its sources it may have yet to process.

    """
    names = {store.name for store in fleet.stores}
    if not names:
        yield "it has no stores: its processor has not started"
        return
    for store in fleet.stores:
        if store.not_built:
            yield f"store {store.name} has not been built yet"
    for missing in sorted(set(served) - names):
        yield f"it has no store {missing}, which the version has that serves"
    yield from _of_tasks(fleet)
    for query in fleet.queries:
        if query.state and query.state not in _WELL:
            yield f"query {query.name} is {query.condition}"
        elif query.input_backlog is None or query.input_backlog > most_backlog:
            known = "unknown" if query.input_backlog is None else str(query.input_backlog)
            yield f"query {query.name} has {known} records yet to process, and {most_backlog} are the most"


def _of_tasks(fleet: Fleet) -> Iterator[str]:
    for task in fleet.tasks:
        running = {each.instance_id for each in task.replicas if each.state == TaskState.RUNNING}
        if task.active is None and not task.task.startswith("global/"):
            yield f"task {task.task} has no active"
        elif not running or (task.active is not None and task.active not in running):
            yield f"task {task.task} is not restored by its active"
