"""How an event changes the sessions of its key, as Kafka Streams' session windows do; pure.

A session goes from its first event to its last one. An event joins the sessions that are at most the gap away from it,
and so may make one of two. Stream time is the largest time seen so far. A session is closed when stream time is later
than its end by more than the gap and the grace. It stays as it is, and an event that would make a closed one is late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from processor.operators.aggregators import Aggregator, Json
from processor.operators.order import RecordPosition

Merge = Callable[[Json, Json], Json]
"""Makes one state of two sessions' states, the earlier session's first."""


class SessionState(NamedTuple):
    """A session: the times of its first and last event, and its aggregate."""

    start_ms: int
    end_ms: int
    state: Json


@dataclass(frozen=True, slots=True)
class SessionFold:
    """Applies events, in order, to the sessions of a key."""

    aggregator: Aggregator
    merge: Merge
    gap_ms: int
    grace_ms: int

    def closed_before_ms(self, stream_time_ms: int) -> int:
        """Return the time such that sessions that end before it are closed."""
        return stream_time_ms - self.gap_ms - self.grace_ms

    def apply(
        self, sessions: Sequence[SessionState], row: Mapping[str, Any], position: RecordPosition, stream_time_ms: int
    ) -> list[SessionState] | None:
        """Return the sessions after an event, by start; None if it is late. `stream_time_ms`: before this event."""
        at_ms = position.timestamp_ms
        closed_ms = self.closed_before_ms(max(at_ms, stream_time_ms))
        near = [
            each
            for each in sessions
            if each.end_ms >= closed_ms and each.start_ms - self.gap_ms <= at_ms <= each.end_ms + self.gap_ms
        ]
        start_ms = min([at_ms, *(each.start_ms for each in near)])
        end_ms = max([at_ms, *(each.end_ms for each in near)])
        if end_ms < closed_ms:
            return None
        state: Json | None = None
        for each in near:
            state = each.state if state is None else self.merge(state, each.state)
        state = self.aggregator.add(state, row, position)
        others = [each for each in sessions if each not in near]
        if state is None:
            return others
        return sorted([*others, SessionState(start_ms, end_ms, state)], key=lambda each: each.start_ms)
