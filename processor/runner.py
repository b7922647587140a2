"""Runs an application: session, topics, queries, and an orderly end."""

from __future__ import annotations

import importlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from processor.application import Application, OutputMode, Store
from processor.checkpoint import CheckpointReader
from processor.commits import CommitsPublisher, IdleRepeater, StoreChangelog
from processor.metrics import ProcessorMetrics
from processor.operators.lru import lru
from processor.ownership.controller import OwnershipController
from processor.reasons import beginning
from processor.session import open_session
from processor.settings import ProcessorSettings
from processor.sink.batch import StoreSink
from processor.sink.protocol import SinkTarget
from processor.sources import KafkaSources
from processor.supervision import QueryDied, Started, SupervisedQuery
from processor.topics import ApplicationTopics, create_topics, wait_for_sources
from statehouse.errors import ConfigurationError, StatehouseError
from statehouse.kafka import clients
from statehouse.kafka.offsets import earliest_offsets, last_stable_offsets
from statehouse.observability.metrics import MetricsServer
from statehouse.topology import dead_letters_topic

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.2


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

    query: SupervisedQuery
    repeater: IdleRepeater


class Processor:
    """An application that can be started, watched and stopped. Not reusable after `stop()`."""

    def __init__(self, topology: Topology, settings: ProcessorSettings) -> None:
        self._topology, self._settings = topology, settings
        self.metrics = ProcessorMetrics()
        self._running: list[_Running] = []
        self._controller: OwnershipController | None = None
        self._metrics_server: MetricsServer | None = None
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
        if not app.stores and not app.global_stores:
            raise ConfigurationError(f"application {application_id} declares no store: call app.store(...) in build")
        topics = self._create_topics(app)
        self._serve_metrics()
        self._controller = self._start_controller(app, topics)
        # All frames first: a running query's batches change the environment that Python functions are wrapped with.
        frames = [_bounded(store, topics) for store in app.stores]
        for store, frame in zip(app.stores, frames, strict=True):
            self._running.append(self._start_query(session, store, frame, topics))
        log.info("processor started", application_id=application_id, stores=[*topics.stores])

    def wait(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until `is_stopping` says so, starting queries again that die; looks five times a second.

        Raises:
            QueryDied: a query died too often, or what belongs to it failed for good.

        """
        while not is_stopping():
            time.sleep(_POLL_S)
            if self._failure is not None:
                raise QueryDied(str(self._failure)) from self._failure
            for running in self._running:
                running.query.look(time.monotonic())

    def stop(self) -> None:
        """Finish the batches under way, within `stop_timeout_s`, and end the queries.

        A batch cut off by the bound is run again at the next start; the sink skips what it had committed.
        """
        for running in self._running:
            running.repeater.stop()
            running.query.stop(self._settings.stop_timeout_s)
        self._running.clear()
        if self._controller is not None:
            self._controller.stop()
        if self._metrics_server is not None:
            self._metrics_server.close()
            self._metrics_server = None

    def _create_topics(self, app: Application) -> ApplicationTopics:
        admin = clients.admin(self._settings.bootstrap, f"{app.application_id}-processor")
        read = {source.topic for source in app.sources} | {store.changelog_topic for store in app.global_stores}
        counts = wait_for_sources(admin, sorted(read), self._settings.source_wait_s)
        return create_topics(admin, app, counts, self._settings)

    def _serve_metrics(self) -> None:
        host, port = self._settings.bind_host, self._settings.metrics_port
        if port is not None:
            self._metrics_server = MetricsServer(self.metrics.registry, host, port)
            log.info("metrics served", host=host, port=self._metrics_server.port)

    def _start_controller(self, app: Application, topics: ApplicationTopics) -> OwnershipController:
        declared = [*(store.declaration for store in app.stores), *app.global_stores]
        stores = [replace(store, partition_count=topics.stores[store.name]) for store in declared]
        controller = OwnershipController(
            self._settings.bootstrap, app.application_id, stores, self._settings.ownership, on_fatal=self._fail
        )
        controller.start()
        return controller

    def _start_query(
        self, session: SparkSession, store: Store, frame: DataFrame, topics: ApplicationTopics
    ) -> _Running:
        settings, application_id = self._settings, self._topology.application_id
        directory = f"{settings.checkpoint_dir.rstrip('/')}/{application_id}/{store.name}"
        checkpoint = CheckpointReader(session, directory)
        changelog = StoreChangelog(
            application_id, store.name, store.declaration.changelog_topic, topics.stores[store.name]
        )
        if store.max_entries is not None and changelog.topic not in topics.created and not checkpoint.exists():
            admin = clients.admin(settings.bootstrap, f"{application_id}-start")
            refuse_lost_recency(admin, changelog, directory)
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
        on_batch = partial(self.metrics.batch, store.name)
        latest = checkpoint.latest_committed()
        if latest is not None:
            # Says at once that the processor lives, before the first batch has anything to do.
            commits.publish(checkpoint.query_id(), latest, checkpoint.source_ends(latest), idle=True)

        def begin() -> Started:
            sink = StoreSink(target, checkpoint, commits, on_batch, layout=store.layout, tasks=settings.sink_tasks)
            with _set_for_a_while(session, _query_settings(store)):
                query = (
                    frame.writeStream.queryName(store.name)
                    .outputMode(store.output_mode)
                    .option("checkpointLocation", directory)
                    .trigger(processingTime=f"{round(settings.commit_interval_s * 1000)} milliseconds")
                    .foreachBatch(sink)
                    .start()
                )
            return Started(query, sink)

        on_restart = partial(self.metrics.restarted, store.name)
        query = SupervisedQuery(store.name, begin, settings.restarts, on_restart)
        repeater = IdleRepeater(commits, lambda: query.is_idle, settings.ownership.heartbeat_interval_s, self._fail)
        repeater.start()
        return _Running(query, repeater)

    def _fail(self, error: BaseException) -> None:
        self._failure = error


def refuse_lost_recency(admin: AdminClient, changelog: StoreChangelog, directory: str) -> None:
    """Refuse to bound a store anew whose changelog holds entries already: nothing would ever displace these.

    Which keys it has, and in which order they were updated, stands in the query's checkpoint alone.

    Raises:
        ConfigurationError: the changelog has records, or the brokers don't say whether it has.

    """
    partitions = [(changelog.topic, partition) for partition in range(changelog.partition_count)]
    starts, ends = earliest_offsets(admin, partitions), last_stable_offsets(admin, partitions)
    if len(starts) < len(partitions) or len(ends) < len(partitions):
        raise ConfigurationError(f"{changelog.topic} has partitions that no broker leads: start again when all are led")
    if starts != ends:
        raise ConfigurationError(
            f"{changelog.topic} has records, but there is no checkpoint in {directory}: a store with max_entries "
            "would never displace the entries it has. Restore the checkpoint, give the store another name, or delete "
            "the topic while the processor is stopped, so that it begins anew"
        )


def _bounded(store: Store, topics: ApplicationTopics) -> DataFrame:
    """Return a store's frame, bounded if it is to be; a bound is one of each partition of the changelog."""
    if store.max_entries is None:
        return store.frame
    return lru(store.frame, store.max_entries, topics.stores[store.name])


def _query_settings(store: Store) -> dict[str, str]:
    """Return the settings of Spark that a store's query needs and others must not have."""
    settings = {}
    if store.max_entries is not None:
        # Spark refuses state operators after an aggregate in update mode, since they could take its rows for late.
        # The LRU knows no event time, so that nothing is late for it.
        settings["spark.sql.streaming.statefulOperator.checkCorrectness.enabled"] = "false"
    if store.output_mode is OutputMode.APPEND:
        # What the last events close must not wait for the next ones.
        settings["spark.sql.streaming.noDataMicroBatches.enabled"] = "true"
    return settings


@contextmanager
def _set_for_a_while(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of Spark for the queries started meanwhile: each takes a copy when it starts."""
    before = {name: session.conf.get(name) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)


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
    except (PySparkException, Py4JError) as failure:
        log.error("processor stopped", error=type(failure).__name__, reason=beginning(failure))  # noqa: TRY400 - same
        exit_code = 1
    finally:
        if processor is not None:
            processor.stop()
    return exit_code
