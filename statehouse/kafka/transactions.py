"""Transactional producers: one transaction at a time, what a failure of theirs means, and how long to go on trying."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from statehouse.backoff import Backoff
from statehouse.kafka import clients, codes

log = structlog.get_logger(__name__)


class FailureMeaning(Enum):
    """What a failure of a transactional producer says of what to do."""

    FENCED = auto()
    """A newer producer of the same transactional id has started."""
    OVER = auto()
    """The producer is of no use any more. One that is fenced while it produces says only that."""
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
    """Return what a failure means; of several the worst."""
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
    """A producer and the transaction that it has open, if any. Not thread-safe. No call takes much over `timeout_s`."""

    def __init__(
        self, bootstrap: str, transactional_id: str, timeout_s: float, **overrides: str | float | bool
    ) -> None:
        config = {"transactional.id": transactional_id, **overrides}
        self._client: Producer = clients.producer(bootstrap, transactional_id, **config)
        self._timeout_s = timeout_s
        self._end: Callable[[float], None] | None = None
        """How the transaction that is open is to end."""

    def initialise(self) -> None:
        """Fence earlier producers of the id, and end what they left open.

        Raises:
            KafkaException: it can't be done now, or at all.

        """
        self._client.init_transactions(self._timeout_s)

    def write(self, produce: Callable[[Producer], None]) -> None:
        """Commit what `produce` produces, in one transaction.

        An earlier commit or abort that was not answered in time goes on, and the client takes no other call until the
        same one has told how it went: so that is asked for first.

        Raises:
            KafkaException: it is not known to be committed. To be written again, by this producer or another.

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

    def abort(self) -> None:
        """Abort what is open; if that fails the next producer of the id does it, or the broker in time."""
        if self._end is None:
            return
        self._end = self._client.abort_transaction
        try:
            self._settle()
        except KafkaException as failure:
            log.info("transaction not aborted; the next producer will", error=failure.args[0].str())

    def close(self) -> None:
        """Let go of the client; what was not committed is never seen."""
        # The client reports a fatal error (being fenced) once more while it closes, and does so as a SystemError; what
        # was to be said about it has been said.
        with contextlib.suppress(KafkaException, SystemError):
            self._client.close(0.0)

    def _settle(self) -> None:
        """End the transaction that is open, if there is one, in the way that was begun."""
        if self._end is not None:
            self._end(self._timeout_s)
            self._end = None


class Tries:
    """Tries of one thing, for `limit_s` seconds from now on or `most` times, with pauses. Blocks its thread."""

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
