"""Replication threads: what they refuse, and what is left when one ends by a defect."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from query_service.replicas import replication
from query_service.replicas.replica import StoreReplica
from query_service.replicas.replication import EndOffsetWatcher, ReplicationEnded, Replicator
from statehouse.errors import StatehouseError
from statehouse.kafka import renewed
from tests.support.panic import Panic
from tests.support.polling import poll_until
from tests.unit.query_service.replicas.test_replica import replica_at


class Complaint:
    """What a client says of brokers that it can't reach."""

    def topic(self) -> str:
        return "topic"

    def partition(self) -> int:
        return 0

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._ALL_BROKERS_DOWN)


class Log:
    """Stands for the consumer: finds nothing, until it breaks."""

    def __init__(self) -> None:
        self.heard: Complaint | None = None
        self.asked_for: list[str] = []
        self.assigned: list[tuple[str, int, int]] = []
        self.breaks = threading.Event()

    def poll(self, timeout_s: float) -> Complaint | None:
        if self.breaks.wait(timeout_s / 10):
            raise RuntimeError("a defect")
        return self.heard

    def consume(self, _count: int, _timeout_s: float) -> list[Complaint]:
        return []

    def list_topics(self, topic: str, timeout: float) -> None:
        self.asked_for.append(topic)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT), timeout)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned += [(each.topic, each.partition, each.offset) for each in partitions]

    def incremental_unassign(self, _partitions: list[TopicPartition]) -> None: ...

    def close(self) -> None: ...


class Told:
    """What a replicator told."""

    def __init__(self) -> None:
        self.failed: list[tuple[StoreReplica, str]] = []
        self.defect: Future[Exception] = Future()

    def failure(self, replica: StoreReplica, error: Exception) -> None:
        self.failed.append((replica, str(error)))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(replication.clients, "consumer", lambda *_args, **_more: log)
    return log


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def replicator(log: Log, told: Told) -> Iterator[Replicator]:
    def nothing(*_: Any) -> None: ...

    made = Replicator("test", "", "", nothing, nothing, told.failure, told.defect.set_result, batch_records=10)
    made.start()
    yield made
    made.stop()
    assert made.remove(replica_at(0)).result(5) is None, "nobody waits for a thread that has ended"


@pytest.mark.feature("lookups-runs-stay")
def test_a_partition_that_is_read_is_not_read_for_another_replica(replicator: Replicator, log: Log, told: Told) -> None:
    first, second = replica_at(3), replica_at(5)
    replicator.add(first).result(5)
    with pytest.raises(StatehouseError, match="is being read for another replica"):
        replicator.add(second).result(5)
    replicator.remove(second).result(5)
    assert log.assigned == [("topic", 0, 3)]
    log.breaks.set()
    told.defect.result(5)
    assert [replica for replica, _ in told.failed] == [first], "the first is still the one that is read"


def test_no_client_is_made_before_there_is_something_to_read(
    replicator: Replicator, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Log] = []

    def consumer(*_args: object, **_more: object) -> Log:
        made.append(log)
        return log

    monkeypatch.setattr(replication.clients, "consumer", consumer)
    replicator.remove(replica_at(3)).result(5)
    assert not made
    replicator.add(replica_at(3)).result(5)
    assert made == [log]


def test_a_client_that_cannot_be_made_ends_the_thread(
    replicator: Replicator, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def consumer(*_args: object, **_more: object) -> Log:
        raise RuntimeError("no client")

    monkeypatch.setattr(replication.clients, "consumer", consumer)
    with pytest.raises(ReplicationEnded):
        replicator.add(replica_at(3)).result(5)
    assert str(told.defect.result(5)) == "no client"


def test_a_refused_partition_is_not_read(replicator: Replicator, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_partitions: list[TopicPartition]) -> None:
        raise RuntimeError("a conflict")

    with monkeypatch.context() as patch:
        patch.setattr(log, "incremental_assign", refuse)
        with pytest.raises(RuntimeError, match="a conflict"):
            replicator.add(replica_at(3)).result(5)
    replicator.add(replica_at(4)).result(5)
    assert log.assigned == [("topic", 0, 4)]


def test_who_leads_a_topic_is_asked_when_it_is_new_and_does_not_have_to_be_known(
    replicator: Replicator, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = replica_at(3), replica_at(4)
    monkeypatch.setattr(second, "partition", 1)
    for replica in (first, second):
        replicator.add(replica).result(5)
    assert log.assigned == [("topic", 0, 3), ("topic", 1, 4)]
    assert log.asked_for == ["topic"]
    for replica in (first, second):
        replicator.remove(replica).result(5)
    replicator.add(first).result(5)
    assert log.asked_for == ["topic", "topic"], "it may have been deleted and created anew meanwhile"


@pytest.mark.parametrize("heard", [None, Complaint()], ids=["nothing", "complaints"])
def test_a_client_that_hears_nothing_of_a_log_that_goes_on_is_made_anew(
    replicator: Replicator, log: Log, monkeypatch: pytest.MonkeyPatch, heard: Complaint | None
) -> None:
    log.heard = heard
    quiet, behind = replica_at(3), replica_at(4)
    monkeypatch.setattr(behind, "partition", 1)
    quiet.note_end(3, *replication.monotonic_and_wall_ms())
    replicator.add(quiet).result(5)
    monkeypatch.setattr(renewed, "SILENCE_S", 0.05)
    replicator.add(behind).result(5)
    behind.note_end(9, *replication.monotonic_and_wall_ms())
    before = [("topic", 0, 3), ("topic", 1, 4)]
    poll_until(lambda: len(log.assigned) > len(before), 5, "another client")
    assert log.assigned[:4] == before * 2, "it goes on where each replica is"


def test_a_defect_fails_the_replicas_and_leaves_nobody_waiting(replicator: Replicator, log: Log, told: Told) -> None:
    replica = replica_at(3)
    replicator.add(replica).result(5)
    log.breaks.set()
    assert str(told.defect.result(5)) == "a defect"
    assert told.failed == [(replica, "a defect")]
    replicator.remove(replica).result(5)
    with pytest.raises(ReplicationEnded):
        replicator.add(replica).result(5)


def test_a_panic_of_the_client_fails_the_replicas_too(replicator: Replicator, log: Log, told: Told) -> None:
    replica = replica_at(3)
    replicator.add(replica).result(5)

    def panic(_timeout_s: float) -> None:
        raise Panic("a defect")

    log.poll = panic  # type: ignore[method-assign]
    assert str(told.defect.result(5)) == "Panic: a defect"
    assert told.failed == [(replica, "Panic: a defect")]


def test_commands_under_way_end_with_the_thread(replicator: Replicator, log: Log, told: Told) -> None:
    replica = replica_at(3)
    replicator.add(replica).result(5)
    reached = threading.Event()

    def wait_and_break(_timeout_s: float) -> None:
        reached.set()
        log.breaks.wait(5)
        raise RuntimeError("a defect")

    log.poll = wait_and_break  # type: ignore[method-assign]
    assert reached.wait(5)
    added, removed = replicator.add(replica_at(0)), replicator.remove(replica)
    log.breaks.set()
    told.defect.result(5)
    assert removed.result(5) is None
    assert isinstance(added.exception(5), ReplicationEnded)


def test_who_stops_waiting_for_a_command_does_not_end_the_thread(replicator: Replicator, log: Log) -> None:
    replica = replica_at(3)
    replicator.add(replica).result(5)
    reached, go_on = threading.Event(), threading.Event()

    def wait(_timeout_s: float) -> None:
        reached.set()
        go_on.wait(5)

    log.poll = wait  # type: ignore[method-assign]
    assert reached.wait(5)
    replicator.remove(replica).cancel()
    go_on.set()
    replicator.add(replica_at(4)).result(5)
    assert log.assigned == [("topic", 0, 3), ("topic", 0, 4)]


def test_a_defect_of_the_end_watcher_is_told() -> None:
    def replicas() -> list[StoreReplica]:
        raise RuntimeError("a defect")

    defect: Future[Exception] = Future()
    watcher = EndOffsetWatcher("127.0.0.1:1", "test", 0.01, replicas, defect.set_result)
    watcher.start()
    assert str(defect.result(5)) == "a defect"
    watcher.stop()


class Pauses:
    """Stands for the event that ends a thread: notes the pauses instead of waiting, and ends it after some."""

    def __init__(self, most: int) -> None:
        self.taken: list[float] = []
        self._most = most

    def wait(self, pause_s: float) -> bool:
        self.taken.append(pause_s)
        return len(self.taken) > self._most


@pytest.mark.parametrize(
    ("answers_took_s", "pauses_s"),
    [
        ([0.01, 0.01], [0.25, 0.25, 0.25]),
        ([0.01, 4.0, 0.01, 0.01], [0.25, 0.25, 0.0, 0.25, 0.25]),
        ([0.3, 0.3, 0.3, 0.3], [0.25, 0.0, 0.25, 0.0, 0.25]),
    ],
    ids=["in time", "late after a freeze or a cut", "always late"],
)
@pytest.mark.parametrize("is_answered", [True, False])
def test_after_a_late_answer_the_ends_are_asked_for_at_once(
    monkeypatch: pytest.MonkeyPatch, answers_took_s: list[float], pauses_s: list[float], *, is_answered: bool
) -> None:
    """The end that it tells is of long ago; but a broker that is always slow is not asked all the time."""
    now_s = 100.0
    times = iter(answers_took_s)

    class SlowAdmin:
        def __init__(self, *_arguments: object) -> None: ...

        def ask(self, _question: object) -> tuple[dict[Any, int], dict[str, str]]:
            nonlocal now_s
            now_s += next(times)
            if not is_answered:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return {}, {}

    monkeypatch.setattr(replication, "RenewedAdmin", SlowAdmin)
    monkeypatch.setattr(replication, "monotonic_and_wall_ms", lambda: (now_s, 0))
    defect: Future[Exception] = Future()
    watcher = EndOffsetWatcher("127.0.0.1:1", "test", 0.25, list, defect.set_result)
    pauses = Pauses(len(answers_took_s))
    monkeypatch.setattr(watcher, "_stop", pauses)
    watcher._run()
    assert pauses.taken == pauses_s
    assert not defect.done()
