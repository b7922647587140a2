"""Runs an application: opens the session, creates topics, starts the queries, and stops them in order."""

from __future__ import annotations

import importlib
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from processor.application import Application, SourceKind
from processor.batch_limit import RateMeter, batch_limit
from processor.changelog_comparisons import ChangelogComparisons
from processor.checkpoint import CheckpointReader
from processor.commits import CommitsPublisher, Figures, IdleRepeater, StoreChangelog, Superseded
from processor.kept_rate import KeptRate
from processor.lifecycle import ApplicationState
from processor.listeners import ProcessorListener, ProcessorListeners, StateLogListener
from processor.metrics import ProcessorMetrics
from processor.outputs import Query
from processor.ownership.controller import OwnershipController
from processor.ownership.observed import check_published
from processor.ownership.settings import StoreDeclaration
from processor.probes import not_alive, not_ready, not_started
from processor.query_batch_spans import QueryBatchSpans
from processor.query_progress_listener import OnBatchProgress, QueryProgressListener, Subscription
from processor.settings import ProcessorSettings, ownership_settings, restart_policy
from processor.sink.batch import StoreSink
from processor.sink.protocol import OutputTopic, SinkTarget
from processor.sink.record_cache_pool import RecordCachePool
from processor.sink.records import OutputRows
from processor.sources import KafkaSources
from processor.spark_failures import beginning
from processor.spark_plans import is_row_by_row
from processor.spark_queries import partitioned_frame, query_settings, set_for_a_while
from processor.spark_session import open_session, tidy_session
from processor.start_check import refuse_misfit
from processor.state_operators import settings_to_go_on
from processor.states import ProcessorStates
from processor.supervision import QueryDied, StartedQuery, SupervisedQuery
from processor.topics import (
    ApplicationTopics,
    create_missing_sources,
    create_topics,
    foreign_sources,
    wait_for_sources,
    written_topics,
)
from statehouse.errors import ConfigurationError, StatehouseError
from statehouse.kafka import clients
from statehouse.kafka.access import check_group, check_login, check_rights, refusal
from statehouse.observability.denials import say_if_open
from statehouse.observability.metrics import MetricsServer, serve_metrics
from statehouse.observability.probes import LIVE, READY, STARTED, WhyNot
from statehouse.observability.tracing import Tracing, tracing_for
from statehouse.topology import dead_letters_topic

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.2
_LISTENERS_END_S: Final = 1.0
_TIDIES_EVERY_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Topology:
    """A topology module: its application id, and the function that fills an application."""

    application_id: str
    build: Callable[[Application], None]

    @classmethod
    def load(cls, module_name: str) -> Topology:
        """Import a topology module.

        Raises:
            ConfigurationError: the module doesn't exist, or lacks `application_id` or `build`.

        """
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"module {error.name!r} not found: name a module that can be imported from here, as in "
                "examples.leaderboard.topology"
            ) from error
        found = [getattr(module, name, None) for name in ("application_id", "build")]
        if not isinstance(found[0], str) or not callable(found[1]):
            raise ConfigurationError(f"module {module_name} must define application_id (a string) and build(app)")
        return cls(found[0], found[1])


@dataclass(slots=True)
class RunningQuery:
    """A started query, with its helpers."""

    query: SupervisedQuery
    commits: CommitsPublisher
    repeater: IdleRepeater


class Processor:
    """Starts, watches and stops an application. Not reusable after `stop()`."""

    def __init__(
        self, topology: Topology, settings: ProcessorSettings, listeners: Sequence[ProcessorListener] = ()
    ) -> None:
        """Prepare. `listeners` are called beside the listeners of installed packages."""
        self._topology, self._settings = topology, settings
        self._given_listeners = tuple(listeners)
        self._listeners = ProcessorListeners()
        self.states = ProcessorStates(self._listeners)
        self.metrics = ProcessorMetrics()
        self.metrics.watch(self.states, self._listeners)
        self._running: list[RunningQuery] = []
        self._progress: Subscription | None = None
        self._found_nothing: Callable[[str], bool] = lambda _query_id: False
        self._controller: OwnershipController | None = None
        self._comparisons: ChangelogComparisons | None = None
        self._metrics_server: MetricsServer | None = None
        self._tracing: Tracing | None = None
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
        self._listeners.add("metrics", self.metrics)
        for listener in self._given_listeners:
            self._listeners.add(type(listener).__name__, listener)
        self._listeners.add_installed()

    def _start(self) -> None:
        settings, application_id = self._settings, self._topology.application_id
        check_login(settings.brokers, f"{application_id}-processor")
        self._tracing = tracing_for(settings.tracing_endpoint, "processor")
        began = time.monotonic()
        log.info("starting Spark")
        session = self._session = self._open_session()
        log.info("Spark has started", seconds=round(time.monotonic() - began, 1))
        app, on_progress = self._application(session)
        app.check()
        app.encode_structs()
        self.states.declare([query.name for query in app.queries])
        topics = self._create_topics(app)
        self._serve_metrics()
        declared = self._declared(app, topics)
        if settings.controller == "own":
            self._controller = self._start_controller(application_id, declared, foreign_sources(app))
        else:
            check_published(settings.brokers, application_id, declared, settings.source_wait_ms / 1000)
        self._comparisons = ChangelogComparisons(settings.brokers, f"{application_id}-changelogs", topics.changelogs)
        self._comparisons.start()
        progress = QueryProgressListener([query.name for query in app.queries], self.metrics, on_batch=on_progress)
        self._progress = Subscription(session, progress)
        self._found_nothing = progress.has_found_nothing
        # Make all frames first: the batches of a running query change the environment that wraps Python functions.
        frames = [partitioned_frame(query, topics.outputs) for query in app.queries]
        caching = sum(any(output.record_cache for output in query.outputs) for query in app.queries)
        record_cache = RecordCachePool(settings.record_cache_max_bytes, caching)
        for query, frame in zip(app.queries, frames, strict=True):
            figures = partial(progress.figures, query.name)
            self._running.append(self._start_query(session, query, frame, topics, figures, record_cache))
        log.info("processor started", application_id=application_id, outputs=[*topics.outputs])

    def _application(self, session: SparkSession) -> tuple[Application, OnBatchProgress | None]:
        """Return the application, built, and what hears of its batches."""
        settings = self._settings
        kept = KeptRate(session, self._checkpoints)
        rate = None if settings.max_offsets is not None else kept.read()
        max_offsets = batch_limit(settings.max_offsets, rate, settings.max_batch_ms)
        log.info("batches are limited", events_of_each_stream=max_offsets, last_rate=rate)
        app = self._new_application(session, max_offsets)
        with set_for_a_while(session, settings_to_go_on(session, self._checkpoints)):
            self._topology.build(app)
        streams = [source.topic for source in app.sources if source.kind is SourceKind.STREAM]
        return app, partial(kept.keep, RateMeter(max_offsets, streams))

    def _new_application(self, session: SparkSession, max_offsets: int) -> Application:
        sources = KafkaSources(session, self._settings.brokers, max_offsets)
        return Application(self._topology.application_id, sources, self._settings.serde_options)

    @property
    def _checkpoints(self) -> str:
        return f"{self._settings.checkpoint_dir.rstrip('/')}/{self._topology.application_id}"

    def _open_session(self) -> SparkSession:
        return open_session(self._topology.application_id, self._settings)

    def wait(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until `is_stopping` returns True, and restart queries that die; checks five times a second.

        Raises:
            QueryDied: a query died too often, or one of its helpers failed for good.

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
            running.query.look(now)
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
        # All of them finish at the same time: whoever stops us waits for stop_timeout_ms, and not for that of each.
        until = time.monotonic() + self._settings.stop_timeout_ms / 1000
        for running in self._running:
            running.query.finish()
        for running in self._running:
            running.repeater.stop()
            running.query.stop(max(0.0, until - time.monotonic()))
            try:
                running.commits.finish()
            except (Superseded, KafkaException) as error:
                log.info("last commit record not written", query=running.query.name, reason=str(error))
        self._running.clear()
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        if self._controller is not None:
            self._controller.stop()
        if self._comparisons is not None:
            self._comparisons.stop()
        if self._metrics_server is not None:
            self._metrics_server.close()
            self._metrics_server = None
        if self._tracing is not None:
            self._tracing.close()
            self._tracing = None
        self.states.application_to(ApplicationState.NOT_RUNNING)
        self._listeners.close(_LISTENERS_END_S)

    def _create_topics(self, app: Application) -> ApplicationTopics:
        admin = clients.admin(self._settings.brokers, f"{app.application_id}-processor")
        sources = foreign_sources(app)
        if self._settings.create_sources:
            create_missing_sources(admin, app, self._settings.create_sources)
        counts = wait_for_sources(admin, sources, self._settings.source_wait_ms / 1000)
        check_rights(admin, sources, (AclOperation.READ,))
        topics = create_topics(admin, app, counts, self._settings)
        check_rights(admin, written_topics(app), (AclOperation.WRITE,))
        check_group(admin, f"{app.application_id}-sink")  # as the groups of the queries' markers begin
        return topics

    def _serve_metrics(self) -> None:
        say_if_open(self._settings)
        self._metrics_server = serve_metrics(
            self.metrics.registry,
            self._settings,
            self.metrics.security.denied,
            self.metrics.security.unusable,
            self._probes(),
        )
        if self._metrics_server is not None:
            log.info("metrics served", host=self._settings.bind_host, port=self._metrics_server.port)

    def _probes(self) -> dict[str, WhyNot]:
        def silent_s() -> float | None:
            at = self._looked_at
            return None if at is None else time.monotonic() - at

        states = self.states
        return {
            STARTED: lambda: not_started(states.application),
            LIVE: lambda: not_alive(states.application, silent_s()),
            READY: lambda: not_ready(states.application, states.queries),
        }

    def _declared(self, app: Application, topics: ApplicationTopics) -> list[StoreDeclaration]:
        declared = [*(each.declaration for each in app.stores if each.declaration), *app.global_stores]
        return [replace(store, partition_count=topics.outputs[store.changelog_topic]) for store in declared]

    def _start_controller(
        self, application_id: str, stores: Sequence[StoreDeclaration], sources: Collection[str]
    ) -> OwnershipController:
        controller = OwnershipController(
            self._settings.brokers,
            application_id,
            stores,
            ownership_settings(self._settings),
            on_fatal=self._fail,
            on_rebalance=self.metrics.rebalanced,
            on_pause=self.metrics.paused,
            on_state=self.states.controller_to,
            on_plan=self.metrics.planned,
            on_figures=self.metrics.ownership.take,
            on_unreadable=self.metrics.unreadable.note,
            sources=sources,
            on_unsigned=self.metrics.unreadable.unsigned,
        )
        controller.start()
        return controller

    def _start_query(
        self,
        session: SparkSession,
        query: Query,
        frame: DataFrame,
        topics: ApplicationTopics,
        figures: Figures,
        record_cache: RecordCachePool,
    ) -> RunningQuery:
        settings, application_id = self._settings, self._topology.application_id
        directory = f"{self._checkpoints}/{query.name}"
        checkpoint = CheckpointReader(session, directory)
        changelogs = [StoreChangelog(each.name, each.topic, topics.outputs[each.topic]) for each in query.stores]
        target = sink_target(settings, application_id, query, topics)
        accept_lost, is_bounded = settings.accept_lost_checkpoint, query.max_entries is not None
        added = refuse_misfit(target, changelogs, checkpoint, accept_lost=accept_lost, is_bounded=is_bounded)
        compared = (lambda _topic: None) if self._comparisons is None else self._comparisons.of
        spans = QueryBatchSpans(self._tracing, application_id, query.name)
        commits = CommitsPublisher(
            settings.brokers,
            application_id,
            query.name,
            changelogs,
            figures,
            self.metrics.paused,
            compared,
            spans.traceparent,
            added,
        )
        commits.start()
        outputs = [
            OutputRows(topics.outputs[each.topic], each.layout, each.where, each.columns) for each in query.outputs
        ]
        on_batch = partial(self.metrics.batch, query.name)
        latest = checkpoint.latest_committed()
        if latest is not None:
            # Show at once that the processor is alive, even before the first batch has input.
            commits.publish(checkpoint.query_id(), latest, checkpoint.source_ends(latest), idle=True)

        def begin() -> StartedQuery:
            sink = StoreSink(
                target,
                checkpoint,
                commits,
                on_batch,
                outputs,
                tasks=settings.sink_tasks,
                record_cache=record_cache,
                is_row_by_row=is_row_by_row(frame),
            )
            with set_for_a_while(session, query_settings(query, settings.spark_conf)):
                started = (
                    frame.writeStream.queryName(query.name)
                    .outputMode(query.output_mode.value)
                    .option("checkpointLocation", directory)
                    .trigger(processingTime=f"{settings.commit_interval_ms} milliseconds")
                    .foreachBatch(spans.around(sink))
                    .start()
                )
            return StartedQuery(started, sink)

        on_restart = partial(self.metrics.restarted, query.name)
        on_state = partial(self.states.query_to, query.name)
        running = SupervisedQuery(query.name, begin, restart_policy(settings), on_restart, on_state)
        interval_s = settings.heartbeat_interval_ms / 1000

        def waiting() -> str | None:
            query_id = checkpoint.query_id() if checkpoint.exists() else None
            return query_id if query_id is not None and self._found_nothing(query_id) else None

        repeater = IdleRepeater(commits, lambda: running.is_idle, interval_s, self._fail, waiting)
        repeater.start()
        return RunningQuery(running, commits, repeater)

    def _fail(self, error: BaseException) -> None:
        self._failure = error


def sink_target(
    settings: ProcessorSettings, application_id: str, query: Query, topics: ApplicationTopics
) -> SinkTarget:
    """Return where a query's sink writes."""
    return SinkTarget(
        brokers=settings.brokers,
        application_id=application_id,
        query=query.name,
        outputs=tuple(
            OutputTopic(each.name, each.topic, topics.outputs[each.topic], each.record_cache, each.values)
            for each in query.outputs
        ),
        dead_letters_topic=dead_letters_topic(application_id),
        dead_letters_partition_count=topics.dead_letters,
        transaction_timeout_s=settings.transaction_timeout_ms / 1000,
        write_timeout_s=settings.write_timeout_ms / 1000,
    )


def run(topology_module: str, settings: ProcessorSettings) -> int:
    """Run an application until SIGINT or SIGTERM; return the exit code: 0, or 1 after saying why."""
    return run_until_asked(lambda: Processor(Topology.load(topology_module), settings))


def run_until_asked(make: Callable[[], Processor]) -> int:
    """Run the processor that `make` makes until SIGINT or SIGTERM; return the exit code: 0, or 1 after saying why."""
    # A signal handler can interrupt any code, even another handler: it must not lock or log.
    asked: list[int] = []

    def ask(signum: int, _frame: FrameType | None) -> None:
        asked.append(signum)

    processor: Processor | None = None
    exit_code = 0
    try:
        processor = make()
        processor.start()
        # After the session: Spark installs its own handler for SIGINT, which would cancel the batch.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, ask)
        processor.wait(lambda: bool(asked))
        log.info("stopping after the batch under way", signal=signal.Signals(asked[0]).name)
    except StatehouseError as error:
        log.error("processor stopped", error=type(error).__name__, reason=str(error))  # noqa: TRY400 - the text is the message
        exit_code = 1
    except KafkaException as failure:
        log.error("processor stopped", error="KafkaException", reason=failure.args[0].str())  # noqa: TRY400 - same
        exit_code = 1
    except (PySparkException, Py4JError) as failure:
        log.error("processor stopped", error=type(failure).__name__, reason=beginning(failure))  # noqa: TRY400 - same
        exit_code = 1
    finally:
        if processor is not None:
            processor.stop()
    return exit_code
