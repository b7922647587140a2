"""A streaming query that is started again when it dies, until that has no use."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import structlog
from confluent_kafka import KafkaException
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from processor.commits import Superseded
from processor.reasons import beginning
from processor.restarts import RestartPolicy, Restarts
from statehouse.errors import ConfigurationError, StatehouseError

log = structlog.get_logger(__name__)

# As a Python worker's traceback ends, that of a driver's own error is an object.
_FINAL_IN_WORKERS = f"{ConfigurationError.__module__}.{ConfigurationError.__name__}:"


class QueryDied(StatehouseError):
    """A streaming query ended by itself and isn't started again; the cause is its own."""


class BatchSink(Protocol):
    """What is to be known of a query's sink."""

    failure: BaseException | None
    """What ended the query, in the driver's own words; None if it wasn't the sink."""
    committed: int | None
    """The newest batch that this sink has committed."""

    @property
    def is_idle(self) -> bool:
        """Whether no batch is being written."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Let no further batch begin, and wait for the one under way; False if it took longer."""
        ...


class Started(NamedTuple):
    """A query that was started, with the sink of its own: one that failed or was drained takes no more batches."""

    query: StreamingQuery
    sink: BatchSink


class SupervisedQuery:
    """A query of the application, through all its starts. Not thread-safe but for `is_idle`.

    Each start goes on from the checkpoint: a batch that was under way is run again, and the sink skips what it had
    committed of it.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], Started],
        policy: RestartPolicy,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        """Start it; what `begin` raises is raised. `on_restart` is told of every further start that is tried."""
        self.name = name
        self._begin, self._on_restart = begin, on_restart
        self._restarts = Restarts(policy)
        self._restart_at: float | None = None
        self._committed: int | None = None
        self._started = begin()

    @property
    def is_idle(self) -> bool:
        """Whether it lives and no batch is being written."""
        return self._restart_at is None and self._started.sink.is_idle

    def look(self, now: float) -> None:
        """See whether it died, and start it again once its pause is over. `now`: monotonic seconds.

        Raises:
            QueryDied: it is given up.

        """
        if self._restart_at is None:
            if not self._started.query.isActive:
                failure = self._started.sink.failure or self._started.query.exception()
                self._died(now, failure or "without an error")
        elif now >= self._restart_at:
            self._restart(now)

    def stop(self, timeout_s: float) -> None:
        """Finish the batch under way, within `timeout_s`, and end the query."""
        if not self._started.sink.drain(timeout_s):
            log.warning("batch cut off; raise stop_timeout_s to wait longer", query=self.name)
        self._end()

    def _died(self, now: float, failure: object) -> None:
        committed = self._started.sink.committed
        self._committed = self._committed if committed is None else committed
        reason = beginning(failure)
        pause_s = None if _is_final(failure, reason) else self._restarts.died(now, self._committed)
        if pause_s is None:
            tries = f" (restarts before: {self._restarts.remembered})" if self._restarts.remembered else ""
            raise QueryDied(f"query {self.name} ended{tries}: {reason}")
        log.warning(
            "query died; starting it again",
            query=self.name,
            reason=reason,
            restart=self._restarts.remembered,
            in_s=pause_s,
        )
        self._restart_at = now + pause_s

    def _restart(self, now: float) -> None:
        # Spark refuses a second query with the checkpoint of one that isn't quite over.
        self._end()
        self._on_restart()
        try:
            self._started = self._begin()
        except (PySparkException, Py4JError, KafkaException, ConfigurationError) as failure:
            self._died(now, failure)
        else:
            self._restart_at = None
            log.info("query started again", query=self.name)

    def _end(self) -> None:
        try:
            self._started.query.stop()
        except (Py4JError, PySparkException) as error:
            log.warning("query did not stop in time; its end is the process's", reason=beginning(error))


def _is_final(failure: object, reason: str) -> bool:
    """Whether another start can only end the same way."""
    return isinstance(failure, Superseded | ConfigurationError) or reason.startswith(_FINAL_IN_WORKERS)
