"""Listeners: plug-ins that the processor calls when it, a query or the controller changes its state.

A listener has all methods of one or more of the protocols below. The program that makes a `Processor` passes listeners
to it. Installed packages add listeners by entry points of the group `statehouse.processor_listeners`; each names a
class or function that is called without arguments and returns a listener.

A listener never delays or fails a batch (`statehouse/observability/listeners.py`).
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

import structlog

from processor.states.lifecycle import ApplicationState, ControllerState, QueryState
from statehouse.observability.listeners import ListenerThreads

log = structlog.get_logger(__name__)

PROCESSOR_GROUP = "statehouse.processor_listeners"


@runtime_checkable
class ApplicationListener(Protocol):
    """Called at every change of the application's state."""

    def on_application_state(self, old: ApplicationState, new: ApplicationState) -> None:
        """Called when the application's state has changed.

        Args:
            old: the state before.
            new: the state now.

        """


@runtime_checkable
class QueryListener(Protocol):
    """Called at every change of a query's state."""

    def on_query_state(self, query: str, old: QueryState, new: QueryState) -> None:
        """Called when a query's state has changed.

        Args:
            query: name of the query.
            old: the state before.
            new: the state now.

        """


@runtime_checkable
class ControllerListener(Protocol):
    """Called at every change of the ownership controller's state."""

    def on_controller_state(self, old: ControllerState, new: ControllerState) -> None:
        """Called when the controller's state has changed.

        Args:
            old: the state before.
            new: the state now.

        """


ProcessorListener: TypeAlias = ApplicationListener | QueryListener | ControllerListener


class ProcessorListeners(ListenerThreads):
    """Passes events on to the processor's listeners, and has every listener method itself. Safe from any thread."""

    def __init__(self) -> None:
        super().__init__(PROCESSOR_GROUP, (ApplicationListener, QueryListener, ControllerListener))

    def on_application_state(self, old: ApplicationState, new: ApplicationState) -> None:
        """Pass the event on."""
        self.tell(ApplicationListener, "on_application_state", old, new)

    def on_query_state(self, query: str, old: QueryState, new: QueryState) -> None:
        """Pass the event on."""
        self.tell(QueryListener, "on_query_state", query, old, new)

    def on_controller_state(self, old: ControllerState, new: ControllerState) -> None:
        """Pass the event on."""
        self.tell(ControllerListener, "on_controller_state", old, new)


class StateLogListener:
    """The built-in listener that writes the processor's log."""

    def on_application_state(self, old: ApplicationState, new: ApplicationState) -> None:
        """Log a change of the application's state."""
        log.info("application state changed", old=old.value, new=new.value)

    def on_query_state(self, query: str, old: QueryState, new: QueryState) -> None:
        """Log a change of a query's state."""
        log.info("query state changed", query=query, old=old.value, new=new.value)

    def on_controller_state(self, old: ControllerState, new: ControllerState) -> None:
        """Log a change of the controller's state."""
        log.info("controller state changed", old=old.value, new=new.value)
