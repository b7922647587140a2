"""Runs an application: session, topics, queries, and an orderly end."""

from __future__ import annotations

import importlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Final

import structlog
from confluent_kafka import KafkaException
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from processor.application import Application, StoreDeclaration
from processor.checkpoint import CheckpointReader
from processor.commits import CommitsPublisher, IdleRepeater, StoreChangelog
from processor.metrics import ProcessorMetrics
from processor.ownership.controller import OwnershipController
from processor.ownership.settings import StoreDeclaration as OwnedStore
from processor.session import open_session
from processor.settings import ProcessorSettings
from processor.sink.batch import StoreSink
from processor.sink.protocol import SinkTarget
from processor.sources import KafkaSources
from processor.topics import ApplicationTopics, create_topics, wait_for_sources
from statehouse.errors import ConfigurationError, StatehouseError
from statehouse.kafka import clients
from statehouse.topology import changelog_topic, dead_letters_topic

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.2
_REASON_LINES_MAX: Final = 8


class QueryDied(StatehouseError):
    """A store's streaming query ended by itself; the cause is its own."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A topology module: its id and how it fills an application."""

    application_id: str
    build: Callable[[Application], None]

    @classmethod
    def load(cls, module_name: str) -> Topology:
        """Import a topology module.

        Raises:
            ConfigurationError: there is no such module, or it lacks `application_id` or `build`.

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
class _Running:
    """A store's query, with what belongs to it."""

    query: StreamingQuery
    sink: StoreSink
    repeater: IdleRepeater


class Processor:
    """An application that can be started, watched and stopped. Not reusable after `stop()`."""

    def __init__(self, topology: Topology, settings: ProcessorSettings) -> None:
        self._topology, self._settings = topology, settings
        self.metrics = ProcessorMetrics()
        self._running: list[_Running] = []
        self._controller: OwnershipController | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Open the session, create the topics, start the queries.

        Raises:
            ConfigurationError: a topology or settings that can't work.

        """
        settings, application_id = self._settings, self._topology.application_id
        session = open_session(application_id, settings)
        sources = KafkaSources(session, settings.bootstrap, settings.max_offsets_per_trigger)
        app = Application(application_id, sources)
        self._topology.build(app)
        if not app.stores:
            raise ConfigurationError(f"application {application_id} declares no store: call app.store(...) in build")
        topics = self._create_topics(app)
        if settings.metrics_port is not None:
            log.info("metrics served", port=self.metrics.serve(settings.metrics_port))
        self._controller = self._start_controller(app, topics)
        for store in app.stores:
            self._running.append(self._start_query(session, store, topics))
        log.info("processor started", application_id=application_id, stores=[store.name for store in app.stores])

    def wait(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until `is_stopping` says so; asks five times a second.

        Raises:
            QueryDied: a query ended by itself, or what belongs to it failed for good.

        """
        while not is_stopping():
            time.sleep(_POLL_S)
            if self._failure is not None:
                raise QueryDied(str(self._failure)) from self._failure
            for running in self._running:
                failure = running.sink.failure
                if failure is not None or not running.query.isActive:
                    reason = failure or running.query.exception() or "without an error"
                    raise QueryDied(f"query {running.query.name} ended: {_beginning(reason)}")

    def stop(self) -> None:
        """Finish the batches under way, within `stop_timeout_s`, and end the queries.

        A batch cut off by the bound is run again at the next start; the sink skips what it had committed.
        """
        for running in self._running:
            running.repeater.stop()
            if not running.sink.drain(self._settings.stop_timeout_s):
                log.warning("batch cut off; raise stop_timeout_s to wait longer", query=running.query.name)
            try:
                running.query.stop()
            except Py4JError as error:
                log.warning("query did not stop in time; its end is the process's", reason=_beginning(error))
        self._running.clear()
        if self._controller is not None:
            self._controller.stop()

    def _create_topics(self, app: Application) -> ApplicationTopics:
        settings = self._settings
        admin = clients.admin(settings.bootstrap, f"{app.application_id}-processor")
        counts = wait_for_sources(admin, app.sources, settings.source_wait_s)
        return create_topics(
            admin,
            app.application_id,
            app.stores,
            app.sources,
            counts,
            min_compaction_lag_ms=settings.min_compaction_lag_ms,
            replication_factor=settings.replication_factor,
        )

    def _start_controller(self, app: Application, topics: ApplicationTopics) -> OwnershipController:
        stores = [
            OwnedStore(
                name=store.name,
                query=store.name,
                partition_count=topics.stores[store.name],
                changelog_topic=changelog_topic(app.application_id, store.name),
                key_serde=store.key_serde,
                value_serde=store.value_serde,
            )
            for store in app.stores
        ]
        controller = OwnershipController(
            self._settings.bootstrap, app.application_id, stores, self._settings.ownership, on_fatal=self._fail
        )
        controller.start()
        return controller

    def _start_query(self, session: SparkSession, store: StoreDeclaration, topics: ApplicationTopics) -> _Running:
        settings, application_id = self._settings, self._topology.application_id
        directory = f"{settings.checkpoint_dir.rstrip('/')}/{application_id}/{store.name}"
        checkpoint = CheckpointReader(session, directory)
        changelog = StoreChangelog(
            application_id, store.name, changelog_topic(application_id, store.name), topics.stores[store.name]
        )
        commits = CommitsPublisher(settings.bootstrap, changelog)
        commits.start()
        target = SinkTarget(
            bootstrap=settings.bootstrap,
            application_id=application_id,
            store=store.name,
            changelog_topic=changelog.topic,
            partition_count=changelog.partition_count,
            dead_letters_topic=dead_letters_topic(application_id),
            dead_letters_partition_count=topics.dead_letters,
            transaction_timeout_s=settings.transaction_timeout_s,
            write_timeout_s=settings.write_timeout_s,
        )
        sink = StoreSink(
            target, checkpoint, commits, partial(self.metrics.batch, store.name), tasks=settings.sink_tasks
        )
        latest = checkpoint.latest_committed()
        if latest is not None:
            # Says at once that the processor lives, before the first batch has anything to do.
            commits.publish(checkpoint.query_id(), latest, checkpoint.source_ends(latest), idle=True)
        query = (
            store.frame.writeStream.queryName(store.name)
            .outputMode("update")
            .option("checkpointLocation", directory)
            .trigger(processingTime=f"{round(settings.commit_interval_s * 1000)} milliseconds")
            .foreachBatch(sink)
            .start()
        )
        repeater = IdleRepeater(commits, lambda: sink.is_idle, settings.ownership.heartbeat_interval_s, self._fail)
        repeater.start()
        return _Running(query, sink, repeater)

    def _fail(self, error: BaseException) -> None:
        self._failure = error


def _beginning(reason: object) -> str:
    """Return the first lines of a reason: Spark's go on with stacks of three programs, which its own log has."""
    return "\n".join(str(reason).splitlines()[:_REASON_LINES_MAX])


def run(topology_module: str, settings: ProcessorSettings) -> int:
    """Run an application until SIGINT or SIGTERM; return the exit code: 0, or 1 after saying why."""
    # A handler may run in the middle of anything, another handler included: no lock, no logging in it.
    asked: list[int] = []

    def ask(signum: int, _frame: FrameType | None) -> None:
        asked.append(signum)

    processor: Processor | None = None
    exit_code = 0
    try:
        processor = Processor(Topology.load(topology_module), settings)
        processor.start()
        # After the session: Spark puts its own handler for SIGINT in place, which would cancel the batch.
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
    finally:
        if processor is not None:
            processor.stop()
    return exit_code
