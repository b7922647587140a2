"""Starts the queries of an application, each with its sink and its commit records, and restarts those that die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog
from pyspark.sql import DataFrame, SparkSession

from processor.application import Application, SourceKind
from processor.application.sources import KafkaSources
from processor.application.topology import Topology
from processor.outputs import Query
from processor.outputs.frames import query_settings, set_for_a_while
from processor.reports.batch_spans import QueryBatchSpans
from processor.reports.commits import CommitsPublisher, Heartbeats, StoreChangelog
from processor.reports.metrics import ProcessorMetrics
from processor.reports.progress_listener import OnBatchProgress, QueryProgressListener
from processor.run.batch_limit import RateMeter, batch_limit
from processor.run.kept_rate import KeptRate
from processor.run.restarts import RestartPolicy
from processor.run.start_check import refuse_misfit
from processor.run.supervision import StartedQuery, SupervisedQuery
from processor.settings import ProcessorSettings
from processor.sink.batch import StoreSink
from processor.sink.protocol import OutputTopic, SinkTarget
from processor.sink.record_cache_pool import RecordCachePool
from processor.sink.records import OutputRows, sink_frame
from processor.spark.checkpoint import CheckpointReader
from processor.spark.plans import is_row_by_row
from processor.spark.state_operators import settings_to_go_on
from processor.states.processor_states import ProcessorStates
from processor.topics.creation import ApplicationTopics
from statehouse.contract.topology import dead_letters_topic
from statehouse.control.v1 import commits_pb2
from statehouse.observability.tracing import Tracing

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all queries of a processor share.

    Attributes:
        topics: the application's topics, as they are.
        compared: what a changelog's settings were found to be, by topic.
        on_fatal: called when a helper of a query has failed for good.

    """

    session: SparkSession
    topics: ApplicationTopics
    record_cache: RecordCachePool
    metrics: ProcessorMetrics
    states: ProcessorStates
    progress: QueryProgressListener
    compared: Callable[[str], commits_pb2.TopicComparison | None]
    tracing: Tracing | None
    on_fatal: Callable[[BaseException], None]


@dataclass(slots=True)
class RunningQuery:
    """A started query, with its helpers."""

    query: SupervisedQuery
    commits: CommitsPublisher
    heartbeats: Heartbeats


class QueryStarter(Protocol):
    """Makes an application in a session, and starts its queries."""

    def application(self, session: SparkSession) -> tuple[Application, OnBatchProgress | None]:
        """Return the application, built and checked, and what hears of its batches.

        Raises:
            ConfigurationError: it can't work.

        """
        ...

    def start(self, query: Query, frame: DataFrame, around: Surroundings) -> RunningQuery:
        """Start one of its queries.

        Raises:
            ConfigurationError: it can't go on from where its stores are.
            KafkaException: the brokers can't be reached.

        """
        ...


class TopologyQueries:
    """The queries that a topology module declares: Spark runs them, from checkpoints of their own."""

    def __init__(self, topology: Topology, settings: ProcessorSettings) -> None:
        self._topology, self._settings = topology, settings
        self._checkpoints = f"{settings.checkpoint_dir.rstrip('/')}/{topology.application_id}"

    def application(self, session: SparkSession) -> tuple[Application, OnBatchProgress | None]:
        """Return the application, built; its batches tell the next start how long batches may be."""
        settings = self._settings
        kept = KeptRate(session, self._checkpoints)
        rate = None if settings.max_offsets is not None else kept.read()
        max_offsets = batch_limit(settings.max_offsets, rate, settings.max_batch_ms)
        log.info("batches are limited", events_of_each_stream=max_offsets, last_rate=rate)
        sources = KafkaSources(session, settings.brokers, max_offsets)
        app = Application(self._topology.application_id, sources, settings.serde_options)
        with set_for_a_while(session, settings_to_go_on(session, self._checkpoints)):
            self._topology.declare(app)
        streams = [source.topic for source in app.sources if source.kind is SourceKind.STREAM]
        return app, partial(kept.keep, RateMeter(max_offsets, streams))

    def start(self, query: Query, frame: DataFrame, around: Surroundings) -> RunningQuery:
        """Start a query from its checkpoint."""
        settings, application_id = self._settings, self._topology.application_id
        directory = f"{self._checkpoints}/{query.name}"
        checkpoint = CheckpointReader(around.session, directory)
        counts = around.topics.outputs
        changelogs = [StoreChangelog(each.name, each.topic, counts[each.topic]) for each in query.stores]
        target = sink_target(settings, application_id, query, around.topics)
        accept_lost, is_bounded = settings.accept_lost_checkpoint, query.max_entries is not None
        added = refuse_misfit(target, changelogs, checkpoint, accept_lost=accept_lost, is_bounded=is_bounded)
        spans = QueryBatchSpans(around.tracing, application_id, query.name)
        commits = CommitsPublisher(
            settings.brokers,
            application_id,
            query.name,
            changelogs,
            partial(around.progress.figures, query.name),
            around.metrics.paused,
            around.compared,
            spans.traceparent,
            added,
            settings.heartbeat_interval_ms,
        )
        commits.start()
        outputs = [OutputRows(counts[each.topic], each.layout, each.where, each.columns) for each in query.outputs]

        def begin() -> StartedQuery:
            latest = checkpoint.latest_committed()
            if latest is not None:
                # Show immediately that the processor is alive, even before the first batch has input. A driver that was
                # killed may not have reported its last batch.
                commits.publish(checkpoint.query_id(), latest, checkpoint.source_ends(latest), idle=True)
            sink = StoreSink(
                target,
                checkpoint,
                commits,
                partial(around.metrics.batch, query.name),
                tasks=settings.sink_tasks,
                record_cache=around.record_cache,
                is_row_by_row=is_row_by_row(frame),
            )
            with set_for_a_while(around.session, query_settings(query, settings.spark_conf)):
                started = (
                    sink_frame(frame, outputs)
                    .writeStream.queryName(query.name)
                    .outputMode(query.output_mode.value)
                    .option("checkpointLocation", directory)
                    .trigger(processingTime=f"{settings.commit_interval_ms} milliseconds")
                    .foreachBatch(spans.around(sink))
                    .start()
                )
            return StartedQuery(started, sink)

        def waiting() -> str | None:
            query_id = checkpoint.query_id() if checkpoint.exists() else None
            return query_id if query_id is not None and around.progress.has_found_nothing(query_id) else None

        return supervised(query.name, begin, commits, settings, around, waiting)


def supervised(
    name: str,
    begin: Callable[[], StartedQuery],
    commits: CommitsPublisher,
    settings: ProcessorSettings,
    around: Surroundings,
    waiting: Callable[[], str | None] = lambda: None,
) -> RunningQuery:
    """Start a query, to be started again when it dies, and the heartbeats that show how it does.

    `waiting`: the id of a query without a batch that has found nothing to read; else None.
    """
    on_restart = partial(around.metrics.states.restarted, name)
    running = SupervisedQuery(name, begin, restart_policy(settings), on_restart, partial(around.states.query_to, name))
    interval_s = settings.heartbeat_interval_ms / 1000
    heartbeats = Heartbeats(commits, running, interval_s, around.on_fatal, waiting)
    heartbeats.start()
    return RunningQuery(running, commits, heartbeats)


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


def restart_policy(settings: ProcessorSettings) -> RestartPolicy:
    """Return how often a query that died is restarted."""
    return RestartPolicy(
        max_restarts=settings.max_query_restarts,
        window_s=settings.query_restart_window_ms / 1000,
        backoff_s=settings.query_restart_backoff_ms / 1000,
        backoff_max_s=settings.query_restart_backoff_max_ms / 1000,
    )
