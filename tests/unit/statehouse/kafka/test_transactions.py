"""Transactional producers: what failures mean, one transaction after the other, and how long tries go on.

The client is a stand-in that refuses every call that librdkafka would refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from statehouse.kafka import clients, codes
from statehouse.kafka.transactions import FailureMeaning, TransactionalProducer, Tries, meaning_of
from statehouse.runtime.backoff import Backoff, BackoffPolicy


def failure(code: int = KafkaError.UNKNOWN, *, retriable: bool = False, requires_abort: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, "scripted", False, retriable, requires_abort))


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (failure(), FailureMeaning.REFUSED),
        (failure(KafkaError.MSG_SIZE_TOO_LARGE), FailureMeaning.REFUSED),
        (failure(KafkaError.TOPIC_AUTHORIZATION_FAILED), FailureMeaning.REFUSED),
        (failure(retriable=True), FailureMeaning.AGAIN),
        (failure(codes.TIMED_OUT, retriable=True), FailureMeaning.AGAIN),
        (failure(requires_abort=True), FailureMeaning.LOST),
        (failure(retriable=True, requires_abort=True), FailureMeaning.LOST),
        (failure(codes.TIMED_OUT), FailureMeaning.ANEW),
        (failure(codes.TRANSPORT), FailureMeaning.ANEW),
        (failure(codes.ALL_BROKERS_DOWN), FailureMeaning.ANEW),
        (failure(codes.WAIT_COORDINATOR), FailureMeaning.ANEW),
        (failure(KafkaError.INVALID_PRODUCER_ID_MAPPING), FailureMeaning.ANEW),
        (failure(KafkaError.UNKNOWN_PRODUCER_ID), FailureMeaning.ANEW),
        (failure(KafkaError.INVALID_TXN_STATE), FailureMeaning.ANEW),
        (failure(KafkaError.CONCURRENT_TRANSACTIONS), FailureMeaning.ANEW),
        (failure(KafkaError.NOT_COORDINATOR), FailureMeaning.ANEW),
        (failure(KafkaError.COORDINATOR_LOAD_IN_PROGRESS), FailureMeaning.ANEW),
        (failure(KafkaError.COORDINATOR_NOT_AVAILABLE), FailureMeaning.ANEW),
        (failure(KafkaError.UNSTABLE_OFFSET_COMMIT), FailureMeaning.ANEW),
        (failure(codes.FATAL), FailureMeaning.OVER),
        (failure(codes.FATAL, retriable=True, requires_abort=True), FailureMeaning.OVER),
        *((failure(code), FailureMeaning.FENCED) for code in codes.FENCED),
        *((failure(code, retriable=True, requires_abort=True), FailureMeaning.FENCED) for code in codes.FENCED),
    ],
)
def test_of_what_a_failure_may_mean_the_worst_counts(error: KafkaException, meaning: FailureMeaning) -> None:
    assert meaning_of(error) is meaning


class _State(Enum):
    IDLE = auto()
    OPEN = auto()
    COMMITTING = auto()
    ABORTING = auto()
    MUST_ABORT = auto()


class Client:
    """A transactional client whose calls fail as scripted, and which takes no call that isn't its turn."""

    def __init__(self, script: list[str]) -> None:
        self.script = script
        self.state = _State.IDLE
        self.committed: list[str] = []
        self.open: list[str] = []
        self.calls: list[str] = []
        self.closed: list[float] = []

    def init_transactions(self, _timeout_s: float) -> None:
        self._call("init", {_State.IDLE})
        self.state = _State.IDLE

    def begin_transaction(self) -> None:
        self._call("begin", {_State.IDLE}, may_fail=False)
        self.state, self.open = _State.OPEN, []

    def produce(self, record: str) -> None:
        self._call("produce", {_State.OPEN})
        self.open.append(record)

    def commit_transaction(self, _timeout_s: float) -> None:
        self._call("commit", {_State.OPEN, _State.COMMITTING}, _State.COMMITTING)
        self.committed += self.open
        self.state = _State.IDLE

    def abort_transaction(self, _timeout_s: float) -> None:
        self._call("abort", {_State.OPEN, _State.MUST_ABORT, _State.ABORTING}, _State.ABORTING)
        self.state = _State.IDLE

    def close(self, timeout_s: float) -> None:
        self.closed.append(timeout_s)
        raise SystemError("the fatal error once more")

    def _call(self, name: str, turn: set[_State], goes_on: _State | None = None, *, may_fail: bool = True) -> None:
        assert self.state in turn, f"{name} while {self.state.name}"
        self.calls.append(name)
        outcome = self.script.pop(0) if may_fail and self.script else "ok"
        if outcome == "late":
            self.state = goes_on or self.state
            raise failure(codes.TIMED_OUT, retriable=True)
        if outcome == "fenced":
            raise failure(KafkaError._FENCED)
        if outcome == "lost" and name in {"produce", "commit"}:
            self.state = _State.MUST_ABORT
            raise failure(requires_abort=True)


Make = Callable[..., tuple[TransactionalProducer, Client]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    def made(*script: str) -> tuple[TransactionalProducer, Client]:
        client = Client(list(script))
        monkeypatch.setattr(clients, "producer", lambda *_args, **_options: client)
        return TransactionalProducer("", "id", 1.0), client

    return made


def _produce(*records: str) -> Callable[[Client], None]:
    def produce(client: Client) -> None:
        for record in records:
            client.produce(record)

    return produce


def test_a_write_is_one_transaction(make: Make) -> None:
    producer, client = make()
    producer.initialise()
    producer.write(_produce("a", "b"))
    producer.write(_produce("c"))
    assert client.calls == ["init", "begin", "produce", "produce", "commit", "begin", "produce", "commit"]
    assert client.committed == ["a", "b", "c"]


def test_a_commit_that_was_late_is_asked_for_before_another_begins(make: Make) -> None:
    producer, client = make("ok", "late", "late")
    with pytest.raises(KafkaException):
        producer.write(_produce("a"))
    with pytest.raises(KafkaException):
        producer.write(_produce("b"))
    producer.write(_produce("b"))
    assert client.calls == ["begin", "produce", "commit", "commit", "commit", "begin", "produce", "commit"]
    assert client.committed == ["a", "b"]


def test_a_lost_transaction_is_aborted_before_another_begins(make: Make) -> None:
    producer, client = make("ok", "lost", "late")
    with pytest.raises(KafkaException):
        producer.write(_produce("a"))
    with pytest.raises(KafkaException):
        producer.write(_produce("b"))
    producer.write(_produce("b"))
    assert client.calls == ["begin", "produce", "commit", "abort", "abort", "begin", "produce", "commit"]
    assert client.committed == ["b"]


def test_what_was_half_produced_is_aborted(make: Make) -> None:
    producer, client = make()

    def fail(client: Client) -> None:
        client.produce("half")
        raise LookupError

    with pytest.raises(LookupError):
        producer.write(fail)
    producer.abort()
    producer.abort()
    producer.write(_produce("whole"))
    assert client.calls == ["begin", "produce", "abort", "begin", "produce", "commit"]
    assert client.committed == ["whole"]


def test_an_abort_that_fails_is_left_to_the_next_producer(make: Make) -> None:
    producer, client = make("lost", "late")
    with pytest.raises(KafkaException):
        producer.write(_produce("a"))
    producer.abort()
    assert client.calls == ["begin", "produce", "abort"]
    producer.close()
    assert client.closed == [0.0]


def test_what_is_fenced_while_it_commits_hears_it_from_the_abort(make: Make) -> None:
    producer, client = make("ok", "lost", "fenced")
    with pytest.raises(KafkaException) as lost:
        producer.write(_produce("a"))
    assert meaning_of(lost.value) is FailureMeaning.LOST
    assert producer.abort() is FailureMeaning.FENCED
    assert client.committed == []


@given(st.lists(st.sampled_from(["ok", "ok", "late", "lost"]), max_size=40), st.integers(1, 6))
def test_whatever_fails_no_call_is_out_of_turn_and_what_is_said_to_be_written_is(script: list[str], most: int) -> None:
    client = Client(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "producer", lambda *_args, **_options: client)
        producer = TransactionalProducer("", "id", 1.0)
    written = []
    for number in range(most):
        while True:
            try:
                producer.write(_produce(str(number)))
            except KafkaException:
                continue
            written.append(str(number))
            break
    assert written == [str(number) for number in range(most)]
    # A late transaction may have been committed too: a caller that writes it again writes it twice.
    assert list(dict.fromkeys(client.committed)) == written


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


POLICY = BackoffPolicy("test", first_s=1.0, longest_s=4.0)


def _all(tries: Tries, least_s: float = 0.0) -> int:
    """Fail until no further try is allowed; return how many there were."""
    count = 1
    while tries.may_go_on:
        tries.pause(least_s)
        count += 1
    return count


def test_tries_end_with_their_time() -> None:
    clock = Clock()
    assert _all(Tries(Backoff(POLICY), limit_s=9.0, clock=clock, sleep=clock.sleep)) == 5
    assert clock.slept == [1.0, 2.0, 4.0, 2.0]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_tries_end_with_their_number(most: int) -> None:
    clock = Clock()
    assert _all(Tries(Backoff(POLICY), most=most, clock=clock, sleep=clock.sleep)) == most
    assert clock.slept == [1.0, 2.0, 4.0, 4.0][: most - 1]


def test_a_pause_may_have_to_be_longer_but_not_beyond_the_limit() -> None:
    clock = Clock()
    assert _all(Tries(Backoff(POLICY), limit_s=8.0, clock=clock, sleep=clock.sleep), least_s=3.0) == 4
    assert clock.slept == [3.0, 3.0, 2.0]
