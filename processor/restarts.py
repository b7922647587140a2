"""Whether a streaming query that died is started again, and after which pause.

Pure: a death is told with its time, and the answer is the pause. Kafka Streams leaves the choice to a handler of the
application (KIP-671), whose default is to shut down; here a query gets a bounded number of tries, as what kills it is
mostly a broker that is away.
"""

from __future__ import annotations

from dataclasses import dataclass

from statehouse.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a query is started again."""

    max_restarts: int = 5
    """Within the window, for each query; 0: its first death ends the process."""
    window_s: float = 600.0
    """How long a death is remembered."""
    backoff_s: float = 1.0
    """Pause before the first restart; doubles with each death that is remembered."""
    backoff_max_s: float = 30.0
    """Longest pause."""

    def __post_init__(self) -> None:
        """Refuse what can't work.

        Raises:
            ConfigurationError: names the setting and what it must be.

        """
        if self.max_restarts < 0:
            raise ConfigurationError("max_query_restarts can't be negative")
        if min(self.window_s, self.backoff_s, self.backoff_max_s) <= 0:
            raise ConfigurationError("the window and the pauses of query restarts must be more than 0")


@dataclass(frozen=True, slots=True)
class _Death:
    at: float
    batch_id: int | None


class Restarts:
    """The deaths of one query that are remembered.

    Those are the ones within the window, and, however long ago, those since the last batch that was committed: a batch
    that fails whenever it is run is given up even if it takes longer than the window to fail.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths: list[_Death] = []

    @property
    def remembered(self) -> int:
        """How many restarts count at present."""
        return len(self._deaths)

    def died(self, now: float, batch_id: int | None) -> float | None:
        """Take a death at `now` (seconds), the newest committed batch being `batch_id`.

        Returns the pause in seconds before the next start; None: give up.
        """
        policy = self._policy
        self._deaths = [
            death for death in self._deaths if now - death.at <= policy.window_s or death.batch_id == batch_id
        ]
        if len(self._deaths) >= policy.max_restarts:
            return None
        # Ever longer pauses are cut off long before a power of two could be too large for a float.
        pause_s = min(policy.backoff_s * 2.0 ** min(len(self._deaths), 64), policy.backoff_max_s)
        self._deaths.append(_Death(now, batch_id))
        return pause_s
