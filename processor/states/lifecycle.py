"""The states of an application, its queries and its controller, and which may follow which. Pure.

They follow Kafka Streams' `KafkaStreams.State`, as a node's do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from statehouse.errors import StatehouseError


class RefusedTransition(StatehouseError):
    """An application, a query or a controller can't go from its present state to the wanted one."""


class ApplicationState(StrEnum):
    """What an application does in this process."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    """Its session, its topics and its queries are made."""
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    """A query has died and hasn't gone on since; the others run."""
    ERROR = "ERROR"
    """It could not be started, or a query or the controller is given up."""
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"


class QueryState(StrEnum):
    """What a query does."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    """It runs batches, or has nothing to do."""
    RESTARTING = "RESTARTING"
    """It has died, and hasn't gone on since: it waits to be started again, or has committed nothing after it was."""
    ERROR = "ERROR"
    """It has died, and is given up."""
    NOT_RUNNING = "NOT_RUNNING"


class ControllerState(StrEnum):
    """What the ownership controller does."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    """It reads the control topics and fences the controller before it."""
    RUNNING = "RUNNING"
    """It plans and publishes."""
    SUSPENDED = "SUSPENDED"
    """It is out of touch with Kafka, and plans nothing."""
    FENCED = "FENCED"
    """Another controller has taken over."""
    STANDBY = "STANDBY"
    """Another controller plans and publishes; this one takes over if that one falls silent."""
    ERROR = "ERROR"
    NOT_RUNNING = "NOT_RUNNING"


AnyState = TypeVar("AnyState", ApplicationState, QueryState, ControllerState)

_APPLICATION: Final = {
    ApplicationState.CREATED: {ApplicationState.STARTING, ApplicationState.PENDING_SHUTDOWN},
    ApplicationState.STARTING: {ApplicationState.RUNNING, ApplicationState.ERROR, ApplicationState.PENDING_SHUTDOWN},
    ApplicationState.RUNNING: {ApplicationState.RESTARTING, ApplicationState.ERROR, ApplicationState.PENDING_SHUTDOWN},
    ApplicationState.RESTARTING: {ApplicationState.RUNNING, ApplicationState.ERROR, ApplicationState.PENDING_SHUTDOWN},
    ApplicationState.ERROR: {ApplicationState.PENDING_SHUTDOWN},
    ApplicationState.PENDING_SHUTDOWN: {ApplicationState.NOT_RUNNING},
    ApplicationState.NOT_RUNNING: set[ApplicationState](),
}
_QUERY: Final = {
    QueryState.CREATED: {QueryState.RUNNING, QueryState.ERROR, QueryState.NOT_RUNNING},
    QueryState.RUNNING: {QueryState.RESTARTING, QueryState.ERROR, QueryState.NOT_RUNNING},
    QueryState.RESTARTING: {QueryState.RUNNING, QueryState.ERROR, QueryState.NOT_RUNNING},
    QueryState.ERROR: {QueryState.NOT_RUNNING},
    QueryState.NOT_RUNNING: set[QueryState](),
}
_ENDS: Final = {ControllerState.FENCED, ControllerState.ERROR, ControllerState.NOT_RUNNING}
_CONTROLLER: Final = {
    ControllerState.CREATED: {ControllerState.STARTING, ControllerState.NOT_RUNNING},
    ControllerState.STARTING: {ControllerState.RUNNING, ControllerState.STANDBY, *_ENDS},
    ControllerState.RUNNING: {ControllerState.SUSPENDED, *_ENDS},
    ControllerState.SUSPENDED: {ControllerState.RUNNING, *_ENDS},
    ControllerState.FENCED: {ControllerState.STANDBY, ControllerState.NOT_RUNNING},
    ControllerState.STANDBY: {ControllerState.STARTING, ControllerState.ERROR, ControllerState.NOT_RUNNING},
    ControllerState.ERROR: {ControllerState.NOT_RUNNING},
    ControllerState.NOT_RUNNING: set[ControllerState](),
}
# By type, as states of different machines with one name are equal as text.
_FOLLOWING: Final[Mapping[type, Mapping[Any, Collection[StrEnum]]]] = {
    ApplicationState: _APPLICATION,
    QueryState: _QUERY,
    ControllerState: _CONTROLLER,
}


def next_state(current: AnyState, wanted: AnyState) -> AnyState:
    """Return `wanted` if it may follow `current`.

    Raises:
        RefusedTransition: it may not.

    """
    if not can_follow(current, wanted):
        what = type(current).__name__.removesuffix("State").lower()
        raise RefusedTransition(f"the {what} can't go from {current} to {wanted}")
    return wanted


def can_follow(current: AnyState, wanted: AnyState) -> bool:
    """Whether `wanted` may follow `current`."""
    return wanted in _FOLLOWING[type(current)][current]


def settled_state(current: ApplicationState, queries: Iterable[QueryState]) -> ApplicationState:
    """Return the state that a running application should have by the states of its queries."""
    if current not in {ApplicationState.RUNNING, ApplicationState.RESTARTING}:
        return current
    restarts = any(state is QueryState.RESTARTING for state in queries)
    return ApplicationState.RESTARTING if restarts else ApplicationState.RUNNING
