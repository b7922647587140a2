"""Whether a lookup's candidates are worth asking again."""

from __future__ import annotations

import pytest

from router.choice.attempt_log import AttemptLog
from router.fleet.table import RoutedReplica
from statehouse.contract.topology import Role
from statehouse.errors import LookupFailure, Reason

MANY = 1_000


def after(**failures: Reason) -> AttemptLog:
    attempt_log = AttemptLog(epochs={1})
    for name, reason in failures.items():
        attempt_log.note(RoutedReplica(name, Role.ACTIVE, None), LookupFailure(reason, "said so"))
    return attempt_log


@pytest.mark.parametrize(
    ("failures", "rounds"),
    [
        ({"a": Reason.UNREACHABLE, "b": Reason.PARTITION_RESTORING}, 2),
        ({"a": Reason.ACTIVE_UNCONFIRMED}, 2),
        ({"a": Reason.STALENESS_EXCEEDS_BOUND}, 2),
        ({"a": Reason.PROCESSOR_AGE_EXCEEDS_BOUND, "b": Reason.INPUT_BACKLOG_EXCEEDS_BOUND}, 2),
        ({"a": Reason.LAG_EXCEEDS_BOUND, "b": Reason.PARTITION_NOT_OWNED}, 2),
        ({"a": Reason.STALENESS_EXCEEDS_BOUND, "b": Reason.POSITION_NOT_REACHED}, 2),
        ({"a": Reason.STALENESS_EXCEEDS_BOUND, "b": Reason.TASK_FAILED}, 1),
        ({"a": Reason.UNREACHABLE, "b": Reason.TASK_FAILED}, 1),
        ({"a": Reason.UNREACHABLE, "b": Reason.OVERLOADED}, 1),
        ({"a": Reason.POSITION_NOT_REACHED, "b": Reason.UNREACHABLE}, MANY),
        ({"a": Reason.POSITION_NOT_REACHED, "b": Reason.OVERLOADED}, 1),
        ({"a": Reason.ATTEMPT_TIMED_OUT, "b": Reason.LAG_EXCEEDS_BOUND}, MANY),
        ({"a": Reason.ATTEMPT_TIMED_OUT, "b": Reason.OVERLOADED}, MANY),
        ({"a": Reason.MOMENT_NOT_REACHED}, MANY),
        ({"a": Reason.MOMENT_NOT_REACHED, "b": Reason.MOMENT_GONE}, MANY),
        ({"a": Reason.MOMENT_NOT_REACHED, "b": Reason.MOMENTS_UNAVAILABLE}, MANY),
        ({"a": Reason.MOMENT_NOT_REACHED, "b": Reason.TASK_FAILED}, 1),
        ({"a": Reason.MOMENT_GONE, "b": Reason.UNREACHABLE}, 2),
        ({"a": Reason.MOMENT_GONE, "b": Reason.MOMENTS_UNAVAILABLE}, 1),
        ({}, 2),
    ],
)
def test_rounds_follow_from_what_was_said_last(failures: dict[str, Reason], rounds: int) -> None:
    attempt_log = after(**failures)
    assert next((n for n in range(1, MANY) if not attempt_log.goes_on_after(n)), MANY) == rounds


def test_an_epoch_that_is_on_its_way_is_waited_for() -> None:
    attempt_log = after(a=Reason.NOT_ACTIVE)
    attempt_log.epochs.add(2)
    assert attempt_log.goes_on_after(29)
    assert not attempt_log.goes_on_after(30), "a node that never reads it is given up"
    attempt_log.note(RoutedReplica("b", Role.STANDBY, None), LookupFailure(Reason.TASK_FAILED, "said so"))
    assert not attempt_log.goes_on_after(1)


def test_a_bound_that_is_broken_is_not_waited_for_as_an_epoch_is() -> None:
    progress = after(a=Reason.STALENESS_EXCEEDS_BOUND)
    progress.epochs.add(2)
    assert progress.goes_on_after(1)
    assert not progress.goes_on_after(2), "out of touch with Kafka it would say the same for seconds"


def test_who_is_overloaded_is_remembered() -> None:
    assert after(a=Reason.ATTEMPT_TIMED_OUT, b=Reason.OVERLOADED).overloaded == {"b"}


def test_each_late_attempt_is_counted() -> None:
    attempt_log = after(a=Reason.ATTEMPT_TIMED_OUT, b=Reason.UNREACHABLE)
    attempt_log.note(RoutedReplica("a", Role.ACTIVE, None), LookupFailure(Reason.ATTEMPT_TIMED_OUT, "again"))
    assert (attempt_log.times_late("a"), attempt_log.times_late("b")) == (2, 0)


def test_before_anything_is_known_no_epoch_is_waited_for() -> None:
    attempt_log = AttemptLog()
    attempt_log.note(RoutedReplica("a", Role.ACTIVE, None), LookupFailure(Reason.UNREACHABLE, "said so"))
    assert attempt_log.newest_epoch == 0
    assert [attempt_log.goes_on_after(rounds) for rounds in (1, 2)] == [True, False]
