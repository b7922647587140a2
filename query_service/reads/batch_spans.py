"""Which batch of the processor an answer includes, as far as the processor makes spans of its batches. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from statehouse.control.v1 import commits_pb2
from statehouse.runtime.trace_context import TraceContext, sampled_context

# Batches that are remembered of each store. A replica that is further behind has no link.
_TAIL: Final = 64


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """The span of a batch, and where the changelog's partitions ended after it."""

    context: TraceContext
    query: str
    batch_id: int
    ends: Mapping[int, int]


class BatchSpans:
    """The spans of the latest batches, by store."""

    def __init__(self) -> None:
        """Know of none."""
        self._of_stores: dict[str, deque[BatchSpan]] = {}

    def take(self, commit: commits_pb2.Commit) -> None:
        """Take a record of the commits topic. One that repeats the last batch's changes nothing."""
        if commit.idle or (context := sampled_context(commit.traceparent)) is None:
            return
        ends = {each.partition: each.offset for each in commit.changelog_ends}
        span = BatchSpan(context, commit.query, commit.batch_id, ends)
        self._of_stores.setdefault(commit.store, deque(maxlen=_TAIL)).append(span)

    def forget(self, store: str) -> None:
        """Forget a store: its application begins anew."""
        self._of_stores.pop(store, None)

    def newest_in(self, store: str, partition: int, position: int) -> BatchSpan | None:
        """Return the newest batch that a replica at this position has whole; None if none is known."""
        for span in reversed(self._of_stores.get(store, ())):
            if span.ends.get(partition, position + 1) <= position:
                return span
        return None
