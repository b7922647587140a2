"""Runs an application: opens the session, creates topics, starts the queries, and stops them in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

import structlog
from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from processor.application.topology import Topology
from processor.outputs.frames import partitioned_frame
from processor.reports.commits import Superseded
from processor.reports.metrics import ProcessorMetrics
from processor.reports.progress_listener import QueryProgressListener, Subscription
from processor.run.controller import start_controller
from processor.run.queries import QueryStarter, RunningQuery, Surroundings, TopologyQueries
from processor.run.supervision import QueryDied
from processor.settings import ProcessorSettings
from processor.sink.record_cache_pool import RecordCachePool
from processor.spark.session import open_session, tidy_session
from processor.states.lifecycle import ApplicationState
from processor.states.listeners import ProcessorListener, ProcessorListeners, StateLogListener
from processor.states.probes import not_alive, not_ready, not_started
from processor.states.processor_states import ProcessorStates
from processor.topics.comparisons import ChangelogComparisons
from processor.topics.creation import prepared_topics
from statehouse.kafka.access import check_login, refusal
from statehouse.observability.denials import say_if_open
from statehouse.observability.metrics import serve_metrics
from statehouse.observability.probes import LIVE, READY, STARTED, WhyNot
from statehouse.observability.tracing import tracing_for

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.2
_LISTENERS_END_S: Final = 1.0
_TIDIES_EVERY_S: Final = 600.0


class Processor:
    """Starts, watches and stops an application. Not reusable after `stop()`.

    Its parts: a starter makes the application and starts its queries; a controller assigns tasks; a server shows
    metrics and probes; the states say how all of them do.
    """

    def __init__(
        self,
        topology: Topology,
        settings: ProcessorSettings,
        listeners: Sequence[ProcessorListener] = (),
        *,
        starter: QueryStarter | None = None,
        open_spark: Callable[[str, ProcessorSettings], SparkSession] = open_session,
    ) -> None:
        """Prepare.

        Args:
            topology: the application's id, and the function that fills it.
            settings: of the processor.
            listeners: called in addition to the listeners of installed packages.
            starter: what starts the queries; default: Spark runs them as the topology declares them.
            open_spark: returns the session, given the application's id and the settings.

        """
        self._topology, self._settings, self._open_spark = topology, settings, open_spark
        self._starter = TopologyQueries(topology, settings) if starter is None else starter
        self._given_listeners = tuple(listeners)
        self._listeners = ProcessorListeners()
        self.states = ProcessorStates(self._listeners)
        self.metrics = ProcessorMetrics()
        self.metrics.states.watch(self.states, self._listeners)
        self._running: list[RunningQuery] = []
        self._closing = ExitStack()
        """What ends after the queries, the last started first."""
        self._failure: BaseException | None = None
        self._session: SparkSession | None = None
        self._tidied_at = time.monotonic()
        self._looked_at: float | None = None

    def start(self) -> None:
        """Open the session, create the topics, start the queries.

        Raises:
            ConfigurationError: the topology or the settings can't work.

        """
        self._add_listeners()
        self.states.application_to(ApplicationState.STARTING)
        try:
            self._start()
        except KafkaException as failure:
            self.states.fail()
            raise refusal(self._settings.brokers, failure) or failure from failure
        except BaseException:
            self.states.fail()
            raise
        self.states.application_to(ApplicationState.RUNNING)

    def _add_listeners(self) -> None:
        self._listeners.add("log", StateLogListener())
        self._listeners.add("metrics", self.metrics.states)
        for listener in self._given_listeners:
            self._listeners.add(type(listener).__name__, listener)
        self._listeners.add_installed()

    def _start(self) -> None:
        settings, application_id = self._settings, self._topology.application_id
        check_login(settings.brokers, f"{application_id}-processor")
        tracing = tracing_for("processor")
        if tracing is not None:
            self._closing.callback(tracing.close)
        began = time.monotonic()
        log.info("starting Spark")
        session = self._session = self._open_spark(application_id, settings)
        log.info("Spark has started", seconds=round(time.monotonic() - began, 1))
        app, on_progress = self._starter.application(session)
        app.encode_structs()
        self.states.declare([query.name for query in app.queries])
        topics = prepared_topics(app, settings)
        self._serve()
        controller = start_controller(settings, app, topics, self.metrics, self.states, self._fail)
        if controller is not None:
            self._closing.callback(controller.stop)
        comparisons = ChangelogComparisons(settings.brokers, f"{application_id}-changelogs", topics.changelogs)
        self._closing.callback(comparisons.stop)
        comparisons.start()
        progress = QueryProgressListener([query.name for query in app.queries], self.metrics, on_batch=on_progress)
        self._closing.callback(Subscription(session, progress).close)
        # Make all frames first: the batches of a running query change the environment that wraps Python functions.
        frames = [partitioned_frame(query, topics.outputs) for query in app.queries]
        caching = sum(any(output.record_cache for output in query.outputs) for query in app.queries)
        around = Surroundings(
            session=session,
            topics=topics,
            record_cache=RecordCachePool(settings.record_cache_max_bytes, caching),
            metrics=self.metrics,
            states=self.states,
            progress=progress,
            compared=comparisons.of,
            tracing=tracing,
            on_fatal=self._fail,
        )
        for query, frame in zip(app.queries, frames, strict=True):
            self._running.append(self._starter.start(query, frame, around))
        log.info("processor started", application_id=application_id, outputs=[*topics.outputs])

    def _serve(self) -> None:
        """Serve the metrics and the probes, if the settings name a port.

        Raises:
            ConfigurationError: the port can't be used.

        """
        settings, metrics, states = self._settings, self.metrics, self.states
        say_if_open(settings)
        probes: dict[str, WhyNot] = {
            STARTED: lambda: not_started(states.application),
            LIVE: lambda: not_alive(states.application, self._silent_s()),
            READY: lambda: not_ready(states.application, states.queries),
        }
        server = serve_metrics(metrics.registry, settings, metrics.security.denied, metrics.security.unusable, probes)
        if server is not None:
            self._closing.callback(server.close)
            log.info("metrics served", host=settings.bind_host, port=server.port)

    def _silent_s(self) -> float | None:
        at = self._looked_at
        return None if at is None else time.monotonic() - at

    def wait(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until `is_stopping` returns True, and restart queries that die; checks five times a second.

        A query that is given up leaves the others running.

        Raises:
            QueryDied: the last query died too often, another processor has taken over, or a helper failed for good.

        """
        while not is_stopping():
            time.sleep(_POLL_S)
            try:
                self._look()
            except BaseException:
                self.states.fail()
                raise

    def _look(self) -> None:
        if self._failure is not None:
            raise QueryDied(str(self._failure)) from self._failure
        now = self._looked_at = time.monotonic()
        for running in self._running:
            try:
                running.query.look(now)
            except QueryDied as died:
                is_last = all(each.query.is_given_up for each in self._running)
                if is_last or isinstance(died.__cause__, Superseded):
                    raise
                log.error("query given up; the others go on", query=running.query.name, reason=str(died))  # noqa: TRY400 - its stack is ours
        if now - self._tidied_at >= _TIDIES_EVERY_S:
            self._tidied_at = now
            if self._session is not None:
                tidy_session(self._session)

    def stop(self) -> None:
        """Finish the running batches, within `stop_timeout_ms`, and stop the queries.

        A batch that takes longer runs again at the next start; the sink then skips its committed part.
        """
        if self.states.application is ApplicationState.NOT_RUNNING:
            return
        self.states.application_to(ApplicationState.PENDING_SHUTDOWN)
        # All of them finish at the same time: the supervisor waits for stop_timeout_ms once, and not for each.
        until = time.monotonic() + self._settings.stop_timeout_ms / 1000
        for running in self._running:
            running.query.finish()
        for running in self._running:
            running.heartbeats.stop()
            running.query.stop(max(0.0, until - time.monotonic()))
            try:
                running.commits.finish(running.query.failure)
            except (Superseded, KafkaException) as error:
                log.info("last commit record not written", query=running.query.name, reason=str(error))
        self._running.clear()
        self._closing.close()
        self.states.application_to(ApplicationState.NOT_RUNNING)
        self._listeners.close(_LISTENERS_END_S)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
