"""Holds the states of an application, its queries and its controller, and tells listeners of each change."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from processor.states.lifecycle import (
    ApplicationState,
    ControllerState,
    QueryState,
    can_follow,
    next_state,
    settled_state,
)
from processor.states.listeners import ProcessorListeners


class ProcessorStates:
    """The states. Thread-safe: listeners hear of changes in their order.

    A state that is wanted again changes nothing.
    """

    def __init__(self, listeners: ProcessorListeners) -> None:
        """All are CREATED."""
        self._listeners = listeners
        self._lock = threading.Lock()
        self._application = ApplicationState.CREATED
        self._controller = ControllerState.CREATED
        self._queries: dict[str, QueryState] = {}

    @property
    def application(self) -> ApplicationState:
        """The application's state."""
        return self._application

    @property
    def controller(self) -> ControllerState:
        """The ownership controller's state."""
        return self._controller

    @property
    def queries(self) -> Mapping[str, QueryState]:
        """The states of the queries that were declared, by name."""
        return dict(self._queries)

    def declare(self, queries: Collection[str]) -> None:
        """Add queries."""
        with self._lock:
            self._queries |= dict.fromkeys(queries, QueryState.CREATED)

    def application_to(self, wanted: ApplicationState) -> None:
        """Change the application's state. With it end the queries that were never started, or were given up.

        Raises:
            RefusedTransition: it can't follow the present one.

        """
        with self._lock:
            self._to(wanted)
            if wanted is ApplicationState.NOT_RUNNING:
                for query in self._queries:
                    self._query_to(query, QueryState.NOT_RUNNING)
            self._to(settled_state(self._application, self._queries.values()))

    def query_to(self, query: str, wanted: QueryState) -> None:
        """Change a query's state, and the application's if it follows from it.

        Raises:
            RefusedTransition: it can't follow the present one.

        """
        with self._lock:
            self._query_to(query, wanted)
            self._to(settled_state(self._application, self._queries.values()))

    def controller_to(self, wanted: ControllerState) -> None:
        """Change the controller's state.

        Raises:
            RefusedTransition: it can't follow the present one.

        """
        with self._lock:
            old = self._controller
            if wanted is old:
                return
            self._controller = next_state(old, wanted)
            self._listeners.on_controller_state(old, wanted)

    def fail(self) -> None:
        """Change the application's state to ERROR, unless it is ending."""
        with self._lock:
            if can_follow(self._application, ApplicationState.ERROR):
                self._to(ApplicationState.ERROR)

    def _query_to(self, query: str, wanted: QueryState) -> None:
        old = self._queries[query]
        if wanted is not old:
            self._queries[query] = next_state(old, wanted)
            self._listeners.on_query_state(query, old, wanted)

    def _to(self, wanted: ApplicationState) -> None:
        old = self._application
        if wanted is not old:
            self._application = next_state(old, wanted)
            self._listeners.on_application_state(old, wanted)
