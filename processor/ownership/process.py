"""A process that runs an ownership controller and nothing else: without Spark, without Java."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import structlog
from confluent_kafka import KafkaException

from processor.ownership.acting import ControllerCallbacks
from processor.ownership.controller import OwnershipController
from processor.ownership.metrics import ControllerMetrics
from processor.states.lifecycle import ApplicationState
from processor.states.listeners import ProcessorListeners, StateLogListener
from processor.states.metrics import StateMetrics
from processor.states.probes import not_alive, not_ready_to_assign, not_started
from processor.states.processor_states import ProcessorStates
from statehouse.errors import StatehouseError
from statehouse.observability.denials import SecurityMetrics, say_if_open
from statehouse.observability.metrics import MetricsServer, count_pauses, new_registry, serve_metrics
from statehouse.observability.probes import LIVE, READY, STARTED, WhyNot
from statehouse.settings import ControllerSettings, ProcessSettings

log = structlog.get_logger(__name__)

_WAIT_S: Final = 0.2
_LISTENERS_END_S: Final = 1.0


def run_controller(make: Callable[[ControllerCallbacks], OwnershipController], settings: ProcessSettings) -> int:
    """Run the controller that `make` returns until SIGINT or SIGTERM; return the exit code (1: error)."""
    # A signal handler can interrupt any code: it must not lock.
    asked: list[int] = []
    failures: list[Exception] = []

    def ask(signum: int, _frame: FrameType | None) -> None:
        asked.append(signum)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    registry = new_registry()
    security, state_metrics, metrics = (
        SecurityMetrics(registry, "statehouse_processor"),
        StateMetrics(registry),
        ControllerMetrics(registry),
    )
    listeners = ProcessorListeners()
    listeners.add("log", StateLogListener())
    listeners.add("metrics", state_metrics)
    listeners.add_installed()
    states = ProcessorStates(listeners)
    state_metrics.watch(states, listeners)
    states.application_to(ApplicationState.STARTING)
    server: MetricsServer | None = None
    turned_at = time.monotonic()
    probes: dict[str, WhyNot] = {
        STARTED: lambda: not_started(states.application),
        LIVE: lambda: not_alive(states.application, time.monotonic() - turned_at),
        READY: lambda: not_ready_to_assign(states.controller),
    }
    try:
        say_if_open(settings)
        server = serve_metrics(registry, settings, security.denied, security.unusable, probes)
        if server is not None:
            log.info("metrics served", host=settings.bind_host, port=server.port)
        controller = make(metrics.callbacks(states, count_pauses("processor", registry), failures.append))
    except (StatehouseError, KafkaException) as error:
        log.error("the controller can't start", reason=str(error))  # noqa: TRY400 - the text is the message
        states.fail()
        _end(states, listeners, server)
        return 1
    controller.start()
    states.application_to(ApplicationState.RUNNING)
    while not asked and not failures:
        time.sleep(_WAIT_S)
        turned_at = time.monotonic()
    if failures:
        states.fail()
    controller.stop()
    _end(states, listeners, server)
    for failure in failures:
        log.error("the controller ended", reason=str(failure))
    return 1 if failures else 0


def run_standby(settings: ControllerSettings) -> int:
    """Run a standby controller until SIGINT or SIGTERM; return the exit code (1: error)."""
    return run_controller(
        lambda callbacks: OwnershipController(settings.brokers, settings.application_id, None, None, callbacks),
        settings,
    )


def _end(states: ProcessorStates, listeners: ProcessorListeners, server: MetricsServer | None) -> None:
    """Tell the listeners of the end, and wait a moment for them."""
    states.application_to(ApplicationState.PENDING_SHUTDOWN)
    states.application_to(ApplicationState.NOT_RUNNING)
    listeners.close(_LISTENERS_END_S)
    if server is not None:
        server.close()
