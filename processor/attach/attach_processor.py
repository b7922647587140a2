"""Serves other programs' states: a processor whose queries follow those programs' checkpoints."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

import structlog
from pyspark.sql import DataFrame, SparkSession

from processor.application import Application
from processor.application.sources import KafkaSources
from processor.application.topology import Topology
from processor.attach.attached_query import AttachedQuery, AttachedStore
from processor.attach.attachment import AttachedState, Attachment
from processor.attach.checkpoint import AttachedCheckpoint
from processor.attach.columns.timed_keys import EntryKind, frame_of
from processor.attach.commits import AttachedBatches, AttachedCommits
from processor.attach.operators import StateSource, source_of
from processor.attach.reader import StateReader, state_operators
from processor.attach.reads import AttachMisfit, Identity, ReadPlanner, StoreCommit, continued, misfit
from processor.outputs import Query
from processor.reports.commits import StoreChangelog
from processor.run.processor import Processor
from processor.run.queries import RunningQuery, Surroundings, sink_target, supervised
from processor.run.start_check import CheckpointMisfit, last_commits
from processor.run.supervision import StartedQuery
from processor.settings import ProcessorSettings
from processor.sink.batch import StoreSink
from processor.sink.protocol import SinkTarget, newest_written
from processor.sink.records import OutputRows, sink_frame
from statehouse.contract.topology import changelog_topic
from statehouse.errors import ConfigurationError
from statehouse.kafka import clients
from statehouse.kafka.topics import partition_counts

log = structlog.get_logger(__name__)

_PARTITIONS_MAX: Final = 8
"""What a new changelog has at most: Spark's default of 200 state partitions is more than most stores need."""
_RETENTION: Final = timedelta(days=36_500)
"""Of windows and sessions: they go when the state lets them go, not by their age."""
_LOOK_S: Final = 5.0
_ACCEPT: Final = (
    "with --accept-lost-checkpoint the store is brought to what the checkpoint has, and keys that it lacks are deleted"
)
_REMEDIES: Final[Mapping[AttachMisfit, str]] = {
    AttachMisfit.OTHER_PROGRAM: f"give it another name or application id; {_ACCEPT}",
    AttachMisfit.QUERY_REPLACED: f"name the checkpoint of that query, or another store; {_ACCEPT}",
    AttachMisfit.ROLLED_BACK: f"restore the newest checkpoint; {_ACCEPT}",
}


@dataclass(frozen=True, slots=True)
class _Followed:
    """A state, found in its checkpoint."""

    attached: AttachedState
    checkpoint: AttachedCheckpoint
    reader: StateReader
    source: StateSource
    layout_options: Mapping[str, Any]


class AttachedQueries:
    """Follows the checkpoints of other programs: an application of stores only, without sources or checkpoints."""

    def __init__(self, attachment: Attachment, settings: ProcessorSettings) -> None:
        self._attachment, self._settings = attachment, settings
        self._followed: dict[str, _Followed] = {}
        """By the name of the store; set by `build`."""

    def application(self, session: SparkSession) -> tuple[Application, None]:
        """Return the application; nothing hears of its batches."""
        sources = KafkaSources(session, self._settings.brokers, 1)
        app = Application(self._attachment.application_id, sources, self._settings.serde_options)
        self.build(app)
        app.check()
        return app, None

    def build(self, app: Application) -> None:
        """Declare the stores, with the columns that the states have."""
        deadline = time.monotonic() + self._settings.source_wait_ms / 1000
        for attached in self._attachment.states:
            # Spark's reader takes the version of a checkpoint's files from its session: each state has one.
            session = SparkSession.active().newSession()
            session.conf.set("spark.sql.session.timeZone", "UTC")
            try:
                self._followed[attached.store] = followed = self._follow(session, attached, deadline)
            except ConfigurationError as error:
                raise ConfigurationError(f"store {attached.store}: {error}") from error
            columns = followed.reader.finished
            log.info(
                "following a query",
                store=attached.store,
                checkpoint=followed.checkpoint.directory,
                query_id=followed.checkpoint.query_id(),
                operator=followed.source.operator.name,
                state=followed.reader.schema.simpleString(),
                value=[*(attached.columns.values or columns.default)],
                key_serde=followed.reader.key_serde,
            )
            for doubt in columns.doubts if not attached.columns.values else ():
                log.warning("the state doesn't tell what a value is", store=attached.store, columns=doubt)
            self._declare(app, followed)

    def _follow(self, session: SparkSession, attached: AttachedState, deadline: float) -> _Followed:
        checkpoint = AttachedCheckpoint(session, attached.checkpoint)
        checkpoint.wait_for_a_batch(max(0.0, deadline - time.monotonic()))

        def followed(batch_id: int) -> _Followed:
            version = checkpoint.batch(batch_id).version
            source = source_of(state_operators(session, checkpoint.directory), attached.state)
            reader = StateReader(session, checkpoint.directory, source, attached.columns, version)
            return _Followed(attached, checkpoint, reader, source, {})

        found = checkpoint.of_newest(followed)
        if attached.columns.shape is not EntryKind.WINDOW:
            return found
        while (length := checkpoint.of_newest(found.reader.window_ms)) is None:
            log.info("waiting for the state's first window", store=attached.store)
            if time.monotonic() >= deadline:
                raise ConfigurationError(
                    "the state has no window yet, so how long they are isn't known: start "
                    "again when it has one, or raise source_wait_ms"
                )
            time.sleep(_LOOK_S)
        return replace(found, layout_options={"window_size": timedelta(milliseconds=length)})

    def _declare(self, app: Application, followed: _Followed) -> None:
        attached, shape = followed.attached, followed.attached.columns.shape
        session = followed.checkpoint.session
        frame = frame_of(session, shape)
        options: dict[str, Any] = {
            "key_serde": followed.reader.key_serde,
            "key_columns": followed.reader.key_columns,
            "value_serde": attached.columns.value_serde,
            "partitions": self._partitions(followed),
            **followed.layout_options,
        }
        if shape is EntryKind.WINDOW:
            app.window_store(attached.store, frame, retention=_RETENTION, **options)
        elif shape is EntryKind.SESSION:
            app.session_store(attached.store, frame, retention=_RETENTION, **options)
        else:
            app.store(attached.store, frame, **options)

    def _partitions(self, followed: _Followed) -> int:
        attached = followed.attached
        if attached.partitions is not None:
            return attached.partitions
        application_id = self._attachment.application_id
        topic = changelog_topic(application_id, attached.store)
        admin = clients.admin(self._settings.brokers, f"{application_id}-attach")
        return partition_counts(admin, [topic])[topic] or min(followed.source.operator.partitions, _PARTITIONS_MAX)

    def start(
        self,
        query: Query,
        frame: DataFrame,  # noqa: ARG002 - it only has the columns
        around: Surroundings,
    ) -> RunningQuery:
        """Start to follow the state of a store."""
        settings, (output,) = self._settings, query.outputs
        followed = self._followed[output.name]
        checkpoint = followed.checkpoint
        changelog = StoreChangelog(output.name, output.topic, around.topics.outputs[output.topic])
        target = sink_target(settings, self._attachment.application_id, query, around.topics)
        self._refuse_misfit(followed, target, changelog)
        figures = partial(around.progress.figures, query.name)
        commits = AttachedCommits(checkpoint, settings, target, changelog, figures, around.metrics.paused)
        commits.start()
        # Read again: only now no older follower can write a record any more.
        last = self._refuse_misfit(followed, target, changelog)
        store = self._begin(followed, last, commits)
        target = replace(target, query_id=str(store.identity))
        planner, outputs = ReadPlanner(), [OutputRows(changelog.partition_count, output.layout)]

        def begin() -> StartedQuery:
            sink = StoreSink(
                target,
                AttachedBatches(store, checkpoint),
                commits,
                partial(around.metrics.batch, query.name),
                tasks=settings.sink_tasks,
                record_cache=around.record_cache,
            )
            follower = AttachedQuery(
                checkpoint,
                followed.reader,
                planner,
                store,
                target,
                partial(_write, sink, outputs),
                choice=followed.attached.state,
                shape=followed.attached.columns.shape,
                poll_interval_s=self._attachment.poll_interval_ms / 1000,
            )
            return StartedQuery(follower.start(), sink)

        return supervised(query.name, begin, commits, settings, around)

    def _refuse_misfit(self, followed: _Followed, target: SinkTarget, changelog: StoreChangelog) -> StoreCommit | None:
        """Return the store's last commit record; None if the store is to be made anew.

        Raises:
            CheckpointMisfit: the store must not go on from this checkpoint; the text has the reason and the remedy.

        """
        checkpoint, form = followed.checkpoint, followed.attached.form
        record = last_commits(target.brokers, target.application_id, [changelog.store]).get(changelog.store)
        if record is None:
            return None
        last = StoreCommit(record.query_id, record.batch_id)
        written = newest_written(replace(target, query_id=record.query_id))
        found = misfit(last, checkpoint.query_id(), form, checkpoint.latest_committed(), written)
        if found is None:
            return last
        if self._settings.accept_lost_checkpoint:
            log.warning("the store is made anew", store=changelog.store, reason=found.value)
            return None
        raise CheckpointMisfit(
            f"store {changelog.store}: {found.value} (checkpoint {checkpoint.directory}, changelog {changelog.topic}). "
            f"Remedy: {_REMEDIES[found]}"
        )

    def _begin(self, followed: _Followed, last: StoreCommit | None, commits: AttachedCommits) -> AttachedStore:
        query_id, form = followed.checkpoint.query_id(), followed.attached.form
        identity = continued(last, query_id, form)
        if identity is None or last is None:
            # If this run dies before its first batch is whole, the next one must not go on from an older record.
            commits.forget()
            return AttachedStore(Identity(query_id, form, uuid.uuid4().hex[:8]), None)
        commits.publish_again(str(identity), last.batch_id)
        return AttachedStore(identity, last.batch_id)


def _write(sink: StoreSink, outputs: Sequence[OutputRows], rows: DataFrame, batch_id: int) -> None:
    sink(sink_frame(rows, outputs), batch_id)
    sink.settle()


def attach_processor(attachment: Attachment, settings: ProcessorSettings) -> Processor:
    """Return a processor that serves what is attached."""
    queries = AttachedQueries(attachment, settings)
    return Processor(Topology(attachment.application_id, queries.build), settings, starter=queries)
