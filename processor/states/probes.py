"""What a processor and a standby controller answer to probes: why not, or nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from processor.states.lifecycle import ApplicationState, ControllerState, QueryState

SILENCE_MAX_S: Final = 60.0
"""How long the main loop may take for a turn: it makes five in a second."""

_NOT_STARTED: Final = {ApplicationState.CREATED, ApplicationState.STARTING}
_ASSIGNS: Final = {ControllerState.RUNNING, ControllerState.STANDBY}


def not_started(application: ApplicationState) -> str:
    """Return why an application hasn't started; empty if it has."""
    return f"the application is {application}" if application in _NOT_STARTED else ""


def not_alive(application: ApplicationState, silent_s: float | None) -> str:
    """Return why only a restart helps; empty if none is needed.

    `silent_s`: seconds since the main loop's last turn; None before the first. An application that starts or stops has
    bounds of its own for that, and one that waits for Kafka is alive.
    """
    if application is ApplicationState.ERROR:
        return "the application is given up"
    if application in {ApplicationState.RUNNING, ApplicationState.RESTARTING} and (silent_s or 0.0) > SILENCE_MAX_S:
        return f"the main loop has been silent for {silent_s:.0f} s"
    return ""


def not_ready(application: ApplicationState, queries: Mapping[str, QueryState]) -> str:
    """Return why an application doesn't do all that it should; empty if it does."""
    lacking = {name: state for name, state in queries.items() if state is not QueryState.RUNNING}
    if application is not ApplicationState.RUNNING:
        return f"the application is {application}"
    return "; ".join(f"query {name} is {state}" for name, state in lacking.items())


def not_ready_to_assign(controller: ControllerState) -> str:
    """Return why a standby controller would neither assign nor take over; empty if it would."""
    return "" if controller in _ASSIGNS else f"the controller is {controller}"
