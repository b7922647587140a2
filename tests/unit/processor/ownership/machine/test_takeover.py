"""When a standby controller takes over, on a clock that only the test moves."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.ownership.machine.takeover import ControllerRecord, Takeover
from processor.ownership.topics.controller_record import decode_controller, encode_controller
from statehouse.contract.assignment import CONTROLLER_KEY
from statehouse.control.v1 import assignment_pb2
from statehouse.errors import ContractError
from tests.support.settings import ownership

TIMEOUT_S: Final = 10.0
SETTINGS: Final = ownership(heartbeat_interval_ms=1_000, session_timeout_ms=10_000)
ACTING: Final = ControllerRecord("c1", "host, process 7", is_standby=False, heartbeat=1, settings=SETTINGS)
_STEP_S: Final = 0.25


def confirmed(takeover: Takeover, since: float, until: float, every_s: float = 0.5) -> float | None:
    """Confirm at a steady pace; return when a takeover was due first."""
    at = since
    while at <= until:
        takeover.confirm(at)
        if takeover.is_due(at):
            return at
        at += every_s
    return None


@pytest.mark.feature("standby-controller-without")
def test_it_is_due_one_session_timeout_after_the_last_record() -> None:
    takeover = Takeover()
    for second in range(5):
        takeover.hear(replace(ACTING, heartbeat=second), float(second))
        takeover.confirm(float(second))
    assert confirmed(takeover, 4.5, 60.0) == 14.0


def test_nothing_is_taken_from_nobody() -> None:
    """Without a record there are no settings."""
    assert confirmed(Takeover(), 0.0, 100.0) is None


def test_a_record_that_can_not_be_read_is_not_silence() -> None:
    takeover = Takeover()
    takeover.hear(ACTING, 0.0)
    takeover.hear(None, 1.0)
    assert confirmed(takeover, 1.0, 100.0) is None
    takeover.hear(replace(ACTING, heartbeat=2), 100.0)
    assert confirmed(takeover, 100.0, 200.0) == 110.0


def test_who_has_stopped_is_not_waited_for() -> None:
    takeover = Takeover()
    takeover.hear(ACTING, 0.0)
    takeover.confirm(0.0)
    takeover.hear(replace(ACTING, heartbeat=2, has_stopped=True), 1.0)
    assert takeover.is_due(1.0)


def test_whoever_has_fenced_us_has_time_to_say_so() -> None:
    """Two standby controllers saw the same controller stop; the one that was fenced leaves the other alone."""
    stopped = replace(ACTING, heartbeat=2, has_stopped=True)
    takeover = Takeover(stopped)
    takeover.hear(stopped, 0.0)
    assert confirmed(takeover, 0.0, 60.0) == TIMEOUT_S
    takeover.hear(replace(ACTING, controller="c2", has_stopped=True), 61.0)
    takeover.confirm(61.0)
    assert takeover.is_due(61.0), "another one has stopped since"


def test_a_record_that_is_read_twice_proves_nothing() -> None:
    takeover = Takeover()
    takeover.hear(replace(ACTING, heartbeat=5), 0.0)
    assert confirmed(takeover, 0.0, 5.0) is None
    takeover.hear(replace(ACTING, heartbeat=5), 5.0)
    assert confirmed(takeover, 5.5, 60.0) == 10.0


def test_a_huge_number_silences_nobody() -> None:
    takeover = Takeover()
    takeover.hear(replace(ACTING, heartbeat=2**53), 0.0)
    takeover.hear(replace(ACTING, heartbeat=6), 5.0)
    assert confirmed(takeover, 5.5, 60.0) == 15.5


def test_another_controller_is_heard_whatever_its_heartbeat() -> None:
    takeover = Takeover()
    takeover.hear(replace(ACTING, heartbeat=500), 0.0)
    assert confirmed(takeover, 0.0, 8.0) is None
    takeover.hear(replace(ACTING, controller="c2", heartbeat=1), 8.0)
    assert confirmed(takeover, 8.5, 60.0) == 18.0


@pytest.mark.feature("one-t-reach")
@given(st.floats(5.1, 600.0))
def test_time_out_of_touch_is_not_silence(gap_s: float) -> None:
    takeover = Takeover()
    takeover.hear(ACTING, 0.0)
    assert confirmed(takeover, 0.0, 9.0) is None
    back_at = 9.0 + gap_s
    due_at = confirmed(takeover, back_at, back_at + 60.0)
    assert due_at is not None
    assert TIMEOUT_S <= due_at - back_at + 1e-6 <= TIMEOUT_S + 0.51


@pytest.mark.feature("one-t-reach")
def test_who_was_frozen_first_asks_again() -> None:
    takeover = Takeover()
    takeover.hear(ACTING, 0.0)
    assert confirmed(takeover, 0.0, 60.0) == 10.0
    assert takeover.is_due(12.0)
    assert not takeover.is_due(60.0)


@pytest.mark.feature("two-standby-controllers")
@given(
    written=st.lists(st.tuples(st.integers(1, 80), st.integers(0, 20)), max_size=30),
    contacts=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 12)), min_size=1, max_size=60),
)
def test_whoever_is_heard_is_left_alone(written: list[tuple[int, int]], contacts: list[tuple[int, int]]) -> None:
    """With any delays: when it is due, the log has held no new record for a session timeout up to a confirmation.

    `written`: pauses between records, and how late each is read. `contacts`: pauses between confirmations, and how
    late each answer is. Both are in steps. Records are read in order, and before a confirmation that covers them.
    """
    events: list[tuple[float, int, float, int]] = []
    at = read_at = 0.0
    for heartbeat, (pause, late) in enumerate(written, 1):
        at += pause * _STEP_S
        read_at = max(read_at, at + late * _STEP_S)
        events.append((read_at, 0, at, heartbeat))
    times = [(written_at, read) for read, _, written_at, _ in events]
    asked = answered = 0.0
    for pause, late in contacts:
        asked = max(asked + pause * _STEP_S, answered)
        answered = max([asked + late * _STEP_S, *(read for written_at, read in times if written_at <= asked)])
        events.append((answered, 1, asked, 0))
    takeover, last_asked = Takeover(), 0.0
    for now, kind, when, heartbeat in sorted(events):
        if kind == 0:
            takeover.hear(replace(ACTING, heartbeat=heartbeat), now)
        else:
            last_asked = when
            takeover.confirm(when)
        if takeover.is_due(now):
            before = [written_at for written_at, _ in times if written_at <= last_asked]
            assert before
            assert last_asked - max(before) >= TIMEOUT_S


def test_a_record_is_read_as_it_was_written() -> None:
    for record in (ACTING, replace(ACTING, is_standby=True, has_stopped=True, heartbeat=2**40)):
        key, value = encode_controller(record)
        assert key == CONTROLLER_KEY
        assert decode_controller(value) == record


def test_settings_survive_to_the_millisecond() -> None:
    settings = ownership(
        heartbeat_interval_ms=333,
        session_timeout_ms=1_001,
        initial_rebalance_delay_ms=7,
        handover_linger_ms=123,
        flap_limit=9,
        flap_window_ms=99_999,
        num_standby_replicas=3,
        acceptable_recovery_lag=2**40,
        max_warmup_replicas=11,
        early_promotions_max=5,
    )
    assert decode_controller(encode_controller(replace(ACTING, settings=settings))[1]).settings == settings


def altered(**settings: int) -> bytes:
    record = assignment_pb2.AssignmentRecord.FromString(encode_controller(ACTING)[1])
    for name, value in settings.items():
        setattr(record.controller.settings, name, value)
    return record.SerializeToString()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\xff\xff", "no record of an assignment"),
        (b"", "not a controller's record"),
        (assignment_pb2.AssignmentRecord(controller=assignment_pb2.Controller()).SerializeToString(), "is empty"),
        (altered(session_timeout_ms=0), "session_timeout_ms"),
        (altered(max_warmup_replicas=0), "max_warmup_replicas"),
        (altered(session_timeout_ms=1_500), "session_timeout_ms must be at least"),
        (encode_controller(ACTING)[1] + b"\xfa\x3f\x01!", "another version"),
    ],
)
def test_what_can_not_be_a_record_is_refused(value: bytes, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        decode_controller(value)


@pytest.mark.feature("nothing-taken-over")
@given(st.binary(max_size=60))
def test_no_bytes_break_a_reader(value: bytes) -> None:
    with suppress(ContractError):
        decode_controller(value)
