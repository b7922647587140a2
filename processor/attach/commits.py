"""What an attached store's commit records say: what the other program has done."""

from __future__ import annotations

from contextlib import suppress

from processor.attach.attached_query import AttachedStore
from processor.attach.checkpoint import AttachedCheckpoint, BatchRemoved
from processor.reports.commits import CommitsPublisher, Figures, QueryFailure, StoreChangelog
from processor.settings import ProcessorSettings
from processor.sink.protocol import SinkTarget
from processor.spark.checkpoint import Offsets
from statehouse.runtime.backoff import OnPause


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
        super().__init__(
            settings.brokers,
            target.application_id,
            target.query,
            [changelog],
            figures,
            on_pause,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
        )
        self._checkpoint = checkpoint

    def publish(
        self,
        query_id: str,
        batch_id: int,
        source_ends: Offsets,
        *,
        idle: bool = False,
        committed_at_ms: int | None = None,
        changelog_ends: Offsets | None = None,
        traceparent: str = "",
    ) -> None:
        """Write the record of a batch, with the time at which the other program committed it."""
        at_ms = committed_at_ms or self._checkpoint.batch(batch_id).committed_at_ms
        super().publish(
            query_id,
            batch_id,
            source_ends,
            idle=idle,
            committed_at_ms=at_ms,
            changelog_ends=changelog_ends,
            traceparent=traceparent,
        )

    def publish_again(self, query_id: str, batch_id: int) -> None:
        """Write the record of the batch that the store has, unless Spark has removed what it needs."""
        with suppress(BatchRemoved):
            self.publish(query_id, batch_id, self._checkpoint.source_ends(batch_id))

    def repeat(self, idle_for_s: float, *, only_without_backlog: bool = True) -> bool:
        """Write the last record again, if the sources have nothing beyond it."""
        return super().repeat(idle_for_s, only_without_backlog=only_without_backlog)

    def finish(self, failure: QueryFailure | None = None) -> None:
        """Write the last record again, marked as the last one; it says nothing new of the sources."""
        self.finish_silently(failure)
