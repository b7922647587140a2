"""Transactional producers: one transaction at a time, what a failure means, and how long to keep trying."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from statehouse.kafka import clients, codes
from statehouse.kafka.access import needing
from statehouse.runtime.backoff import Backoff
from statehouse.runtime.brokers import Brokers

log = structlog.get_logger(__name__)


class FailureMeaning(Enum):
    """What a transactional producer's failure means for what to do next."""

    FENCED = auto()
    """A newer producer with the same transactional id has started."""
    OVER = auto()
    """The producer can't be used any more. If it is fenced while it produces, it reports only this."""
    LOST = auto()
    """The transaction has to be aborted; the producer may begin another."""
    AGAIN = auto()
    """The same call may succeed later."""
    ANEW = auto()
    """Another producer may succeed: this one was forgotten, or the brokers weren't ready."""
    REFUSED = auto()
    """Trying again changes nothing."""


_ANEW: Final = frozenset(
    {
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        codes.TIMED_OUT,
        codes.TRANSPORT,
        codes.ALL_BROKERS_DOWN,
        codes.WAIT_COORDINATOR,
    }
)


def meaning_of(failure: KafkaException) -> FailureMeaning:
    """Return what a failure means; the worst if it means several things."""
    error: KafkaError = failure.args[0]
    if error.code() in codes.FENCED:
        return FailureMeaning.FENCED
    if error.code() == codes.FATAL:
        return FailureMeaning.OVER
    if error.txn_requires_abort():
        return FailureMeaning.LOST
    if error.retriable():
        return FailureMeaning.AGAIN
    return FailureMeaning.ANEW if error.code() in _ANEW else FailureMeaning.REFUSED


class TransactionalProducer:
    """A producer and its open transaction, if any. Not thread-safe. No call takes much longer than `timeout_s`."""

    def __init__(
        self, brokers: Brokers | str, transactional_id: str, timeout_s: float, **overrides: str | float | bool
    ) -> None:
        config = {"transactional.id": transactional_id, **overrides}
        self._client: Producer = clients.producer(brokers, transactional_id, **config)
        self._id, self._timeout_s = transactional_id, timeout_s
        self._end: Callable[[float], None] | None = None
        """Ends the open transaction, by a commit or an abort; None if none is open."""

    def initialise(self) -> None:
        """Fence earlier producers with this id, and end the transaction that they left open.

        Raises:
            KafkaException: it can't be done now, or at all.

        """
        with needing("WRITE", f"transactional id {self._id}"):
            self._client.init_transactions(self._timeout_s)

    def write(self, produce: Callable[[Producer], None]) -> None:
        """Commit what `produce` produces, in one transaction.

        An earlier commit or abort that was not answered in time goes on, and the client accepts no other call until
        the same call has returned. So that call is repeated first.

        Raises:
            KafkaException: the records may not be committed. Write them again, with this producer or another.

        """
        try:
            self._settle()
            self._client.begin_transaction()
            self._end = self._client.abort_transaction
            produce(self._client)
            self._end = self._client.commit_transaction
            self._settle()
        except KafkaException as failure:
            if meaning_of(failure) is FailureMeaning.LOST:
                self._end = self._client.abort_transaction
            raise

    def abort(self) -> FailureMeaning | None:
        """Abort the open transaction; if that fails, the next producer with this id does it, or the broker in time.

        Returns what the failure means. A producer that is fenced while it commits may learn only that the
        transaction is lost; it learns only here that it is fenced.
        """
        if self._end is None:
            return None
        self._end = self._client.abort_transaction
        try:
            self._settle()
        except KafkaException as failure:
            log.info("transaction not aborted; the next producer will", error=failure.args[0].str())
            return meaning_of(failure)
        return None

    def close(self) -> None:
        """Close the client; what was not committed is never read."""
        # While it closes, the client repeats a fatal error (being fenced), as a SystemError. The error was reported
        # before.
        with contextlib.suppress(KafkaException, SystemError):
            self._client.close(0.0)

    def _settle(self) -> None:
        """End the open transaction, if there is one, in the way that was begun."""
        if self._end is not None:
            self._end(self._timeout_s)
            self._end = None


class Tries:
    """Bounds tries of one thing to `limit_s` seconds from now and to `most` tries. Pauses block the thread."""

    def __init__(
        self,
        backoff: Backoff,
        *,
        limit_s: float = math.inf,
        most: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._backoff, self._most = backoff, most
        self._clock, self._sleep = clock, sleep
        self._give_up_at = clock() + limit_s

    @property
    def may_go_on(self) -> bool:
        """Whether to try once more, after a try that failed."""
        return self._backoff.failures + 1 < self._most and self._clock() < self._give_up_at

    def pause(self, least_s: float = 0.0) -> None:
        """Wait before the next try, not beyond the limit."""
        pause_s = max(self._backoff.failed(), least_s)
        self._sleep(min(pause_s, max(0.0, self._give_up_at - self._clock())))
