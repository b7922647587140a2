"""Following a control topic: a thread that ends by a defect says so."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from statehouse.errors import ContractError
from statehouse.kafka import control_log
from statehouse.kafka.control_log import ControlLogReader
from statehouse.runtime.brokers import UNSIGNED, Brokers, RecordSecurity
from tests.support.certificates import Authority
from tests.support.panic import Panic
from tests.support.polling import poll_until

DEADLINE_S = 10.0


class Record:
    """One record of the topic."""

    def error(self) -> KafkaError | None:
        return None

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000

    def offset(self) -> int:
        return 0


class Log:
    """Stands for the client: has one record, or breaks."""

    def __init__(self, defect: Exception | None = None) -> None:
        self.defect = defect
        self.closed = threading.Event()

    def consume(self, _count: int, _timeout_s: float) -> list[Record]:
        if self.defect is not None:
            raise self.defect
        return [Record()]

    def assign(self, _partitions: object) -> None: ...
    def close(self) -> None:
        self.closed.set()


def reader(
    monkeypatch: pytest.MonkeyPatch, log: Log, *, records: RecordSecurity = UNSIGNED, **callbacks: Any
) -> ControlLogReader:
    monkeypatch.setattr(control_log.clients, "consumer", lambda *_args, **_more: log)
    monkeypatch.setattr(control_log.clients, "admin", lambda *_args: None)
    monkeypatch.setattr(control_log, "last_stable_offsets", lambda *_args, **_more: {("topic", 0): 1})
    monkeypatch.setattr(control_log, "topic_id", lambda *_args, **_more: "first")
    monkeypatch.setattr(control_log, "earliest_offsets", lambda *_args, **_more: {("topic", 0): 0})
    monkeypatch.setattr(ControlLogReader, "_wait_for_topic", lambda *_args: True)
    brokers = Brokers("unused", records=records)
    return ControlLogReader(brokers, "topic", **{"on_record": lambda *_: None, "client_id": "test"} | callbacks)


def breaks(*_: object) -> None:
    raise RuntimeError("a defect")


def panics(*_: object) -> None:
    raise Panic("a defect")


def test_a_panic_on_its_thread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: Future[Exception] = Future()
    broken = reader(monkeypatch, Log(), on_broken=told.set_result, on_record=panics)
    broken.start()
    assert str(told.result(DEADLINE_S)) == "Panic: a defect"
    broken.stop()


class _Strange(Record):
    """Its header's name is no UTF-8: what the client raises then was seen with a real broker's record."""

    def __init__(self, defect: Exception) -> None:
        self._defect = defect

    def headers(self) -> list[tuple[str, bytes]]:
        raise self._defect


class _Plain(Record):
    def headers(self) -> None:
        return None


class StrangeLog(Log):
    def __init__(self) -> None:
        super().__init__()
        first = SystemError("<method 'headers'> returned a result with an exception set")
        later = UnicodeDecodeError("utf-8", b"\xc3", 0, 1, "unexpected end of data")
        self._records: list[Record] = [_Strange(first), _Strange(later), _Plain()]

    def consume(self, _count: int, _timeout_s: float) -> list[Record]:
        found, self._records = self._records, []
        return found


def test_a_record_whose_headers_cannot_be_read_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ca = Authority(tmp_path, "house")
    issued = ca.issue(["localhost"])
    told: list[str] = []
    strange = reader(
        monkeypatch,
        StrangeLog(),
        records=RecordSecurity(str(issued.certificate_path), str(issued.key_path), str(ca.path)),
        on_broken=lambda error: told.append(f"broken: {error}"),
        on_record=lambda *_: told.append("record"),
        on_refused=lambda _key, error: told.append("skipped") if isinstance(error, ContractError) else None,
    )
    strange.start()
    poll_until(lambda: len(told) == 3 or "broken" in "".join(told), DEADLINE_S, "the last record")
    strange.stop()
    assert told == ["skipped", "skipped", "record"]


class QuietLog(Log):
    """Has nothing to read. A wait in it ends when a record arrives: its clock was set back."""

    def consume(self, _count: int, timeout_s: float) -> list[Record]:
        if timeout_s > 0:
            self.closed.wait(DEADLINE_S)
        return []


def test_a_clock_that_is_set_back_keeps_nobody_from_the_end_of_a_quiet_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    contacts: list[None] = []
    log = QuietLog()
    following = reader(
        monkeypatch,
        log,
        on_broken=lambda _error: None,
        on_contact=lambda: contacts.append(None),
        confirm_interval_s=0.01,
    )
    monkeypatch.setattr(control_log, "last_stable_offsets", lambda *_args, **_more: {("topic", 0): 0})
    following.start()
    try:
        poll_until(lambda: len(contacts) > 2, DEADLINE_S / 2, "the end to be confirmed again and again")
    finally:
        log.closed.set()
        following.stop()


class ShorterLog(Log):
    """Has five records, and then begins again with another first one."""

    def __init__(self) -> None:
        super().__init__()
        self._offsets = iter((0, 1, 2, 3, 4, 0, 1))

    def consume(self, _count: int, _timeout_s: float) -> list[Record]:
        return [_At(offset) for offset in self._offsets]


def test_a_log_that_became_shorter_is_told_before_its_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    shorter = reader(
        monkeypatch,
        ShorterLog(),
        on_broken=lambda error: told.append(str(error)),
        on_record=lambda *_: told.append("record"),
        on_anew=lambda: told.append("anew"),
    )
    monkeypatch.setattr(control_log, "last_stable_offsets", lambda *_args, **_more: {("topic", 0): 9})
    shorter.start()
    poll_until(lambda: len(told) == 8, DEADLINE_S, "all records")
    shorter.stop()
    assert told == ["record"] * 5 + ["anew"] + ["record"] * 2


@pytest.mark.parametrize("callback", ["on_record", "on_contact", "the client"])
def test_a_defect_on_its_thread_is_told_once(monkeypatch: pytest.MonkeyPatch, callback: str) -> None:
    told: Future[Exception] = Future()  # takes one result only
    log = Log(RuntimeError("a defect") if callback == "the client" else None)
    callbacks = {} if callback == "the client" else {callback: breaks}
    broken = reader(monkeypatch, log, on_broken=told.set_result, **callbacks)
    broken.start()
    assert str(told.result(DEADLINE_S)) == "a defect"
    assert log.closed.wait(DEADLINE_S)
    broken.stop()
    assert not broken._thread.is_alive()


def test_being_stopped_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Exception] = []
    quiet = reader(monkeypatch, Log(), on_broken=told.append)
    quiet.start()
    assert quiet.wait_caught_up(DEADLINE_S)
    quiet.stop()
    assert not quiet._thread.is_alive()
    assert not told


class GrowingLog(Log):
    """Has a record more each time it is read, and its end is always beyond what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def consume(self, _count: int, _timeout_s: float) -> list[Record]:
        self.read += 1
        return [_At(self.read - 1)]


class _At(Record):
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


def test_a_log_that_never_rests_is_caught_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    log = GrowingLog()
    busy = reader(monkeypatch, log, on_broken=lambda _: None, confirm_interval_s=0.0)
    monkeypatch.setattr(control_log, "last_stable_offsets", lambda *_args, **_more: {("topic", 0): log.read + 3})
    busy.start()
    assert busy.wait_caught_up(DEADLINE_S)
    assert busy.seconds_since_contact() is not None
    busy.stop()


class Complaint(Record):
    """What a client says of brokers that it can't reach."""

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._ALL_BROKERS_DOWN)


class LostLog(Log):
    """Stands for a client that has no brokers any more, and says so or nothing at all."""

    def __init__(self, heard: list[Record]) -> None:
        super().__init__()
        self._heard = heard

    def consume(self, _count: int, _timeout_s: float) -> list[Record]:
        self.closed.wait(0.01)
        return self._heard


@pytest.mark.feature("broker-down-reads")
@pytest.mark.parametrize("heard", [[], [Complaint()]], ids=["nothing", "complaints"])
def test_a_client_that_hears_nothing_of_a_log_that_goes_on_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, heard: list[Record]
) -> None:
    lost = LostLog(heard)
    found: list[Log] = [Log(), lost]
    monkeypatch.setattr(control_log.renewed, "SILENCE_S", 0.05)
    healed = reader(monkeypatch, lost, on_broken=lambda _: None)
    monkeypatch.setattr(control_log.clients, "consumer", lambda *_args, **_more: found.pop())
    healed.start()
    assert healed.wait_caught_up(DEADLINE_S)
    assert lost.closed.is_set()
    healed.stop()


class RecreatedLog(Log):
    """Has five records. Then it is recreated with others, which come one by one as they are let through."""

    def __init__(self, following: int) -> None:
        super().__init__()
        self.recreated, self.let_through = threading.Event(), threading.Semaphore(0)
        self.following, self.next = following, 0

    @property
    def end(self) -> int:
        return self.following if self.recreated.is_set() else 5

    def assign(self, _partitions: object) -> None:
        self.next = 0

    def consume(self, _count: int, _timeout_s: float) -> list[Record]:
        self.closed.wait(0.001)
        if self.next == self.end or (self.recreated.is_set() and not self.let_through.acquire(blocking=False)):
            return []
        self.next = 0 if self.next > self.end else self.next  # as the client does when its offset is out of range
        self.next += 1
        return [_At(self.next - 1)]


@pytest.mark.parametrize("first", ["its end", "its records", "its id"])
def test_a_recreated_log_is_confirmed_only_when_it_has_been_read(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    log = RecreatedLog(8 if first == "its id" else 2)
    delivered: list[bytes | None] = []
    contacts: list[int] = []
    asked: list[int] = []
    following = reader(
        monkeypatch,
        log,
        on_broken=lambda _: None,
        confirm_interval_s=0.0,
        on_record=lambda key, _value, _time: delivered.append(key),
        on_contact=lambda: contacts.append(len(delivered)),
    )

    def ends(*_: object, **__: object) -> dict[tuple[str, int], int]:
        if first == "its records" and log.recreated.is_set() and len(delivered) == 5:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        asked.append(log.end)
        return {("topic", 0): log.end}

    monkeypatch.setattr(control_log, "last_stable_offsets", ends)
    monkeypatch.setattr(
        control_log, "topic_id", lambda *_, **__: "next" if first == "its id" and log.recreated.is_set() else ""
    )
    monkeypatch.setattr(control_log, "_ASK_ID_S", 0.0)
    following.start()
    poll_until(lambda: contacts and contacts[-1] == 5, DEADLINE_S, "the first log is read")
    log.recreated.set()
    if first == "its records":
        log.let_through.release()
    poll_until(lambda: log.following in asked, DEADLINE_S, "the end of the new log is known")
    confirmed = len(contacts)
    log.let_through.release(log.following)
    poll_until(lambda: len(contacts) > confirmed + 1, DEADLINE_S, "the new log is confirmed")
    following.stop()
    assert set(contacts) == {5, 5 + log.following}, "delivered at each confirmation: of the first log, then of both"


def test_ends_count_while_nobody_tells_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that have lost their controller still tell where logs end."""

    def refuse(*_: object, **__: object) -> str:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    contacts: list[float] = []
    quiet = reader(
        monkeypatch,
        Log(),
        on_broken=lambda _: None,
        confirm_interval_s=0.0,
        on_contact=lambda: contacts.append(0.0),
    )
    monkeypatch.setattr(control_log, "topic_id", refuse)
    monkeypatch.setattr(control_log, "_ASK_ID_S", 0.0)
    quiet.start()
    poll_until(lambda: len(contacts) > 3, DEADLINE_S, "contact")
    quiet.stop()
