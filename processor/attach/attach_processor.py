"""Runs what serves other programs' states: a processor whose queries follow those programs' checkpoints."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

import structlog
from pyspark.sql import DataFrame, SparkSession

from processor.application import Application
from processor.attach.attached_query import AttachedQuery, AttachedStore
from processor.attach.checkpoint import AttachedCheckpoint, BatchRemoved
from processor.attach.mapping import ENCODING, EntryMapping
from processor.attach.operators import StateChoice, StateSource, source_of
from processor.attach.reader import StateReader, state_operators
from processor.attach.reads import AttachMisfit, Identity, ReadPlanner, StoreCommit, continued, misfit
from processor.attach.timed_keys import EntryKind, frame_of
from processor.checkpoint import Offsets
from processor.commits import CommitsPublisher, Figures, IdleRepeater, StoreChangelog
from processor.outputs import Query
from processor.runner import Processor, RunningQuery, Topology, sink_target
from processor.settings import ProcessorSettings, restart_policy
from processor.sink.batch import StoreSink
from processor.sink.protocol import SinkTarget, newest_written
from processor.sink.record_cache_pool import RecordCachePool
from processor.sink.records import OutputRows
from processor.start_check import CheckpointMisfit, last_commits
from processor.supervision import StartedQuery, SupervisedQuery
from processor.topics import ApplicationTopics
from statehouse.backoff import OnPause
from statehouse.errors import ConfigurationError
from statehouse.kafka import clients
from statehouse.kafka.topics import partition_counts
from statehouse.topology import changelog_topic

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
class AttachedState:
    """A state that is attached.

    Attributes:
        checkpoint: the directory of the other program's checkpoint, as it gives it as `checkpointLocation`.
        store: the name of the store.
        state: which state of the query.
        columns: how entries are made of it.
        partitions: the partition count of the changelog; default: its present one, else the state's, at most 8.

    """

    checkpoint: str
    store: str
    state: StateChoice = field(default_factory=StateChoice)
    columns: EntryMapping = field(default_factory=EntryMapping)
    partitions: int | None = None

    @property
    def form(self) -> str:
        """A digest of what is read and how: entries of another form must not stay in the store."""
        return hashlib.sha256(repr((ENCODING, self.state, self.columns)).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Attachment:
    """What is attached.

    Attributes:
        application_id: the application that the stores are served under. It has these stores only.
        states: the states, each with a store of its own.
        poll_interval_ms: how often to look for a new batch.

    Raises:
        ConfigurationError: two states have one store's name.

    """

    application_id: str
    states: Sequence[AttachedState]
    poll_interval_ms: int = 200

    def __post_init__(self) -> None:
        """Check the names."""
        names = [state.store for state in self.states]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigurationError(f"store {', '.join(twice)} is named for two states: give each a name of its own")
        sources = [repr((state.checkpoint, state.state, state.columns)) for state in self.states]
        same = [state.store for state, source in zip(self.states, sources, strict=True) if sources.count(source) > 1]
        if same:
            raise ConfigurationError(
                f"stores {', '.join(same)} would have the same state in the same form: name it once"
            )


@dataclass(frozen=True, slots=True)
class _Followed:
    """A state, found in its checkpoint."""

    attached: AttachedState
    checkpoint: AttachedCheckpoint
    reader: StateReader
    source: StateSource
    layout_options: Mapping[str, Any]


class AttachProcessor(Processor):
    """Starts, watches and stops it. Not reusable after `stop()`."""

    def __init__(self, attachment: Attachment, settings: ProcessorSettings) -> None:
        super().__init__(Topology(attachment.application_id, self._build), settings)
        self._attachment = attachment
        self._followed: dict[str, _Followed] = {}
        """By the name of the store; set by `_build`."""

    def _application(self, session: SparkSession) -> tuple[Application, None]:
        """Return the application; it has neither checkpoints of its own nor sources."""
        app = self._new_application(session, 1)
        self._build(app)
        return app, None

    def _build(self, app: Application) -> None:
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

    def _start_query(
        self,
        session: SparkSession,  # noqa: ARG002 - each state has its own
        query: Query,
        frame: DataFrame,  # noqa: ARG002 - it only has the columns
        topics: ApplicationTopics,
        figures: Figures,
        record_cache: RecordCachePool,
    ) -> RunningQuery:
        settings, (output,) = self._settings, query.outputs
        followed = self._followed[output.name]
        checkpoint = followed.checkpoint
        changelog = StoreChangelog(output.name, output.topic, topics.outputs[output.topic])
        target = sink_target(settings, self._attachment.application_id, query, topics)
        self._refuse_misfit(followed, target, changelog)
        commits = AttachedCommits(checkpoint, settings, target, changelog, figures, self.metrics.paused)
        commits.start()
        # Read again: only now no older follower can write a record any more.
        last = self._refuse_misfit(followed, target, changelog)
        store = self._begin(followed, last, commits)
        target = replace(target, query_id=str(store.identity))
        planner, rows = ReadPlanner(), [OutputRows(changelog.partition_count, output.layout)]

        def begin() -> StartedQuery:
            sink = StoreSink(
                target,
                AttachedBatches(store, checkpoint),
                commits,
                partial(self.metrics.batch, query.name),
                rows,
                tasks=settings.sink_tasks,
                record_cache=record_cache,
            )
            follower = AttachedQuery(
                checkpoint,
                followed.reader,
                planner,
                store,
                target,
                sink,
                choice=followed.attached.state,
                shape=followed.attached.columns.shape,
                poll_interval_s=self._attachment.poll_interval_ms / 1000,
            )
            return StartedQuery(follower.start(), sink)

        running = SupervisedQuery(
            query.name,
            begin,
            restart_policy(settings),
            partial(self.metrics.restarted, query.name),
            partial(self.states.query_to, query.name),
        )
        repeater = IdleRepeater(commits, lambda: running.is_idle, settings.heartbeat_interval_ms / 1000, self._fail)
        repeater.start()
        return RunningQuery(running, commits, repeater)

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


class AttachedBatches:
    """What the sink asks about the query: the ids of batches belong to the store's identity."""

    def __init__(self, store: AttachedStore, checkpoint: AttachedCheckpoint) -> None:
        self._store, self._checkpoint = store, checkpoint

    def query_id(self) -> str:
        """Return the identity."""
        return str(self._store.identity)

    def source_ends(self, batch_id: int) -> Offsets:
        """Return the source offsets where a batch ends."""
        return self._checkpoint.source_ends(batch_id)


class AttachedCommits(CommitsPublisher):
    """Reports what the other program has done, as of when it did it.

    Whether that program lives can't be seen. So a report that there was nothing to do needs the sources' word: they
    have nothing beyond the last batch. Else the age of data counts from when that batch was committed.
    """

    def __init__(
        self,
        checkpoint: AttachedCheckpoint,
        settings: ProcessorSettings,
        target: SinkTarget,
        changelog: StoreChangelog,
        figures: Figures,
        on_pause: OnPause,
    ) -> None:
        super().__init__(settings.brokers, target.application_id, target.query, [changelog], figures, on_pause)
        self._checkpoint = checkpoint

    def publish(
        self,
        query_id: str,
        batch_id: int,
        source_ends: Offsets,
        *,
        idle: bool = False,
        committed_at_ms: int | None = None,
    ) -> None:
        """Write the record of a batch, with the time at which the other program committed it."""
        at_ms = committed_at_ms or self._checkpoint.batch(batch_id).committed_at_ms
        super().publish(query_id, batch_id, source_ends, idle=idle, committed_at_ms=at_ms)

    def publish_again(self, query_id: str, batch_id: int) -> None:
        """Write the record of the batch that the store has, unless Spark has removed what it needs."""
        with suppress(BatchRemoved):
            self.publish(query_id, batch_id, self._checkpoint.source_ends(batch_id))

    def repeat(self, idle_for_s: float, *, only_without_backlog: bool = True) -> bool:
        """Write the last record again, if the sources have nothing beyond it."""
        return super().repeat(idle_for_s, only_without_backlog=only_without_backlog)

    def finish(self) -> None:
        """Write the last record again, marked as the last one; it says nothing new of the sources."""
        self.finish_silently()
