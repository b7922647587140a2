"""Decides whether a streaming query that died is restarted, and after which pause.

Pure: the caller gives the time of a death and gets the pause. Kafka Streams leaves the decision to a handler in the
application (KIP-671), which shuts down by default. Here a query gets a bounded number of restarts, because the usual
cause is an unreachable broker.
"""

from __future__ import annotations

from dataclasses import dataclass

from statehouse.runtime.backoff import BackoffPolicy


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a query is restarted; taken from `ProcessorSettings`."""

    max_restarts: int
    """Restarts of each query within the window; 0: the first death ends the process."""
    window_s: float
    """How long a death counts."""
    backoff_s: float
    """Pause before the first restart; doubles with each death that counts."""
    backoff_max_s: float
    """Longest pause."""

    @property
    def backoff(self) -> BackoffPolicy:
        """The pauses; `statehouse_processor_query_restarts_total` counts them."""
        return BackoffPolicy("query", self.backoff_s, self.backoff_max_s)


class Restarts:
    """The deaths of one query that count.

    These are the deaths within the window, and all deaths since the last committed batch, however long ago: so a batch
    that always fails is given up even if it takes longer than the window to fail.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths: list[tuple[float, int | None]] = []
        """When each was, and the newest committed batch then."""

    @property
    def remembered(self) -> int:
        """Number of restarts that count now."""
        return len(self._deaths)

    def died(self, now: float, batch_id: int | None) -> float | None:
        """Record a death at `now` (seconds); `batch_id` is the newest committed batch.

        Return the pause in seconds before the next start; None: give up.
        """
        policy = self._policy
        self._deaths = [
            (at, committed) for at, committed in self._deaths if now - at <= policy.window_s or committed == batch_id
        ]
        if len(self._deaths) >= policy.max_restarts:
            return None
        self._deaths.append((now, batch_id))
        return policy.backoff.pause_s(len(self._deaths))
