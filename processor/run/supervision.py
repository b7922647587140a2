"""Restarts a streaming query when it dies, until further restarts are useless."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

import structlog
from confluent_kafka import KafkaException
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from processor.reports.commits import QueryFailure, Superseded
from processor.run.restarts import RestartPolicy, Restarts
from processor.spark.failures import beginning, where_raised
from processor.states.lifecycle import QueryState
from statehouse.errors import ConfigurationError, StatehouseError

log = structlog.get_logger(__name__)

# The start of the last line of a Python worker's traceback; an error in the driver is an exception object.
_FINAL_IN_WORKERS = f"{ConfigurationError.__module__}.{ConfigurationError.__name__}:"


class QueryDied(StatehouseError):
    """A streaming query died and isn't restarted; the exception's cause is the query's failure."""


class BatchSink(Protocol):
    """The part of a query's sink that supervision needs."""

    failure: BaseException | None
    """The driver's exception that ended the query; None if the sink didn't end it."""
    committed: int | None
    """The newest batch that this sink has committed."""

    @property
    def is_idle(self) -> bool:
        """Whether no batch is being written."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Start no further batch, and wait for the running one; False if it took longer."""
        ...


class BatchSource(Protocol):
    """The part of a query that supervision needs: one of Spark's queries has it."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether it runs."""
        ...

    def exception(self) -> object:
        """Return what it has ended with."""
        ...

    def stop(self) -> None:
        """Stop it."""
        ...


class StartedQuery(NamedTuple):
    """A started query with its own sink; a sink that failed or was drained takes no more batches."""

    query: BatchSource
    sink: BatchSink


class SupervisedQuery:
    """A query of the application, through all its restarts. Its properties may be read on any thread.

    Each start continues from the checkpoint: an unfinished batch runs again, and the sink skips its committed part.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], StartedQuery],
        policy: RestartPolicy,
        on_restart: Callable[[], None] = lambda: None,
        on_state: Callable[[QueryState], None] = lambda _state: None,
    ) -> None:
        """Start the query; exceptions of `begin` pass through.

        `on_restart` is called at every attempt to restart, `on_state` with each state that the query enters, and again
        with RESTARTING if it dies before it has gone on.
        """
        self.name = name
        self._begin, self._on_restart, self._on_state = begin, on_restart, on_state
        self._restarts = Restarts(policy)
        self._restart_at: float | None = None
        self._goes_on = True
        """Whether it is RUNNING: a query that was started again isn't before it has shown that it can go on."""
        self._committed: int | None = None
        self._lock = threading.Lock()
        """Held to set a failure, so that no recovery from an earlier one erases it."""
        self.failure: QueryFailure | None = None
        """Why it fails: from its first death until it commits a batch or has nothing left to process."""
        try:
            self._started = begin()
        except BaseException:
            on_state(QueryState.ERROR)
            raise
        on_state(QueryState.RUNNING)

    @property
    def is_idle(self) -> bool:
        """Whether the query is alive and writes no batch."""
        return not self.is_given_up and self._restart_at is None and self._started.sink.is_idle

    @property
    def is_given_up(self) -> bool:
        """Whether it died, and isn't started again."""
        failure = self.failure
        return failure is not None and failure.given_up

    def recovered(self, failure: QueryFailure) -> None:
        """Forget this failure, unless another one came after it: the query has nothing left to process."""
        with self._lock:
            if self.failure is failure:
                self.failure = None

    def look(self, now: float) -> None:
        """Check whether the query died, and restart it after its pause. `now`: monotonic seconds.

        Raises:
            QueryDied: the query isn't restarted any more; said once.

        """
        if self.is_given_up:
            return
        if self._restart_at is None:
            if self.failure is not None and self._started.sink.committed is not None:
                self.failure = None
            if self.failure is None and not self._goes_on:
                self._goes_on = True
                self._on_state(QueryState.RUNNING)
            if not self._started.query.isActive or self._started.sink.failure is not None:
                failure = self._started.sink.failure or self._started.query.exception()
                self._died(now, failure or "without an error")
        elif now >= self._restart_at:
            self._restart(now)

    def finish(self) -> None:
        """Begin no further batch."""
        self._started.sink.drain(0.0)

    def stop(self, timeout_s: float) -> None:
        """Finish the running batch, within `timeout_s`, and stop the query."""
        if not self._started.sink.drain(timeout_s):
            log.warning("batch cut off; raise stop_timeout_ms to wait longer", query=self.name)
        self._end()
        self._on_state(QueryState.NOT_RUNNING)

    def _died(self, now: float, failure: object) -> None:
        committed = self._started.sink.committed
        self._committed = self._committed if committed is None else committed
        reason = beginning(failure)
        pause_s = None if _is_final(failure, reason) else self._restarts.died(now, self._committed)
        restarts = self._restarts.remembered
        with self._lock:
            self.failure = QueryFailure(restarts, where_raised(failure), given_up=pause_s is None)
        if pause_s is None:
            tries = f" (restarts before: {restarts})" if restarts else ""
            self._on_state(QueryState.ERROR)
            died = QueryDied(f"query {self.name} ended{tries}: {reason}")
            raise died from failure if isinstance(failure, BaseException) else None
        log.warning(
            "query died; starting it again",
            query=self.name,
            reason=reason,
            restart=restarts,
            in_s=pause_s,
        )
        self._restart_at = now + pause_s
        self._goes_on = False
        self._on_state(QueryState.RESTARTING)

    def _restart(self, now: float) -> None:
        # Spark refuses a second query on the checkpoint of a query that hasn't fully ended.
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
            log.warning("query did not stop in time; it ends with the process", reason=beginning(error))


def _is_final(failure: object, reason: str) -> bool:
    """Whether a restart would fail in the same way."""
    return isinstance(failure, Superseded | ConfigurationError) or reason.startswith(_FINAL_IN_WORKERS)
