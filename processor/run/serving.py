"""What a processor answers over HTTP: metrics, and health probes."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from processor.reports.metrics import ProcessorMetrics
from processor.settings import ProcessorSettings
from processor.states.probes import not_alive, not_ready, not_started
from processor.states.processor_states import ProcessorStates
from statehouse.observability.denials import say_if_open
from statehouse.observability.metrics import MetricsServer, serve_metrics
from statehouse.observability.probes import LIVE, READY, STARTED, WhyNot

log = structlog.get_logger(__name__)


def serve(
    settings: ProcessorSettings,
    metrics: ProcessorMetrics,
    states: ProcessorStates,
    silent_s: Callable[[], float | None],
) -> MetricsServer | None:
    """Serve the metrics and the probes; None if the settings name no port.

    `silent_s`: seconds since the last turn of the main loop; None before the first.

    Raises:
        ConfigurationError: the port can't be used.

    """
    say_if_open(settings)
    probes: dict[str, WhyNot] = {
        STARTED: lambda: not_started(states.application),
        LIVE: lambda: not_alive(states.application, silent_s()),
        READY: lambda: not_ready(states.application, states.queries),
    }
    server = serve_metrics(metrics.registry, settings, metrics.security.denied, metrics.security.unusable, probes)
    if server is not None:
        log.info("metrics served", host=settings.bind_host, port=server.port)
    return server
