"""Metrics of the states, and of the listeners that hear of their changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from processor.states.lifecycle import ApplicationState, ControllerState, QueryState
from processor.states.listeners import ProcessorListeners
from processor.states.processor_states import ProcessorStates


class StateMetrics:
    """Counts changes of states, as a listener, and shows the present ones."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"statehouse_processor_{name}", meaning, labels, registry=registry)

        self._restarts = counter("query_restarts", "Attempts to restart a query that died.", "query")
        self._state_changes = counter("state_changes", "Changes of the application's state.", "from", "to")
        self._query_state_changes = counter("query_state_changes", "Changes of queries' states.", "query", "from", "to")
        self._controller_state_changes = counter(
            "controller_state_changes", "Changes of the ownership controller's state.", "from", "to"
        )

    def watch(self, states: ProcessorStates, listeners: ProcessorListeners) -> None:
        """Show these states, and what becomes of the listeners' events, at each scrape."""
        self._registry.register(_StateCollector(states, listeners))

    def on_application_state(self, old: ApplicationState, new: ApplicationState) -> None:
        """Count a change of the application's state."""
        self._state_changes.labels(old.value, new.value).inc()

    def on_query_state(self, query: str, old: QueryState, new: QueryState) -> None:
        """Count a change of a query's state."""
        # The series is there before the first restart: a rate doesn't see the value that a series begins with.
        self._restarts.labels(query)
        self._query_state_changes.labels(query, old.value, new.value).inc()

    def on_controller_state(self, old: ControllerState, new: ControllerState) -> None:
        """Count a change of the controller's state."""
        self._controller_state_changes.labels(old.value, new.value).inc()

    def restarted(self, query: str) -> None:
        """Count a restart of a query that died."""
        self._restarts.labels(query).inc()


class _StateCollector(Collector):
    """Reads the states at each scrape."""

    def __init__(self, states: ProcessorStates, listeners: ProcessorListeners) -> None:
        self._states, self._listeners = states, listeners

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        application = _gauge("state", "1 for the state that the application is in", "state")
        for state in ApplicationState:
            application.add_metric((state.value,), state is self._states.application)
        yield application
        queries = _gauge("query_state", "1 for the state that the query is in", "query", "state")
        for query, present in self._states.queries.items():
            for query_state in QueryState:
                queries.add_metric((query, query_state.value), query_state is present)
        yield queries
        controller = _gauge("controller_state", "1 for the state that the ownership controller is in", "state")
        for controller_state in ControllerState:
            controller.add_metric((controller_state.value,), controller_state is self._states.controller)
        yield controller
        yield from self._listeners.metrics("processor")


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"statehouse_processor_{name}", meaning, labels=labels)
