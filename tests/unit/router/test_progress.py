"""Whether a lookup's candidates are worth asking again."""

from __future__ import annotations

import pytest

from router.progress import Progress
from router.table import Replica
from statehouse.errors import LookupFailure, Reason
from statehouse.topology import Role

MANY = 1_000


def after(**failures: Reason) -> Progress:
    progress = Progress(epochs={1})
    for name, reason in failures.items():
        progress.note(Replica(name, Role.ACTIVE, None), LookupFailure(reason, "said so"))
    return progress


@pytest.mark.parametrize(
    ("failures", "rounds"),
    [
        ({"a": Reason.UNREACHABLE, "b": Reason.PARTITION_RESTORING}, 2),
        ({"a": Reason.ACTIVE_UNCONFIRMED}, 2),
        ({"a": Reason.UNREACHABLE, "b": Reason.TASK_FAILED}, 1),
        ({"a": Reason.UNREACHABLE, "b": Reason.OVERLOADED}, 1),
        ({"a": Reason.POSITION_NOT_REACHED, "b": Reason.UNREACHABLE}, MANY),
        ({"a": Reason.POSITION_NOT_REACHED, "b": Reason.OVERLOADED}, 1),
        ({"a": Reason.ATTEMPT_TIMED_OUT, "b": Reason.LAG_EXCEEDS_BOUND}, MANY),
        ({"a": Reason.ATTEMPT_TIMED_OUT, "b": Reason.OVERLOADED}, MANY),
        ({}, 2),
    ],
)
def test_rounds_follow_from_what_was_said_last(failures: dict[str, Reason], rounds: int) -> None:
    progress = after(**failures)
    assert next((n for n in range(1, MANY) if not progress.goes_on_after(n)), MANY) == rounds


def test_an_epoch_that_is_on_its_way_is_waited_for() -> None:
    progress = after(a=Reason.NOT_ACTIVE)
    progress.epochs.add(2)
    assert progress.goes_on_after(29)
    assert not progress.goes_on_after(30), "a node that never reads it is given up"
    progress.note(Replica("b", Role.STANDBY, None), LookupFailure(Reason.TASK_FAILED, "said so"))
    assert not progress.goes_on_after(1)


def test_who_is_overloaded_is_remembered() -> None:
    assert after(a=Reason.ATTEMPT_TIMED_OUT, b=Reason.OVERLOADED).overloaded == {"b"}


def test_each_late_attempt_is_counted() -> None:
    progress = after(a=Reason.ATTEMPT_TIMED_OUT, b=Reason.UNREACHABLE)
    progress.note(Replica("a", Role.ACTIVE, None), LookupFailure(Reason.ATTEMPT_TIMED_OUT, "again"))
    assert (progress.times_late("a"), progress.times_late("b")) == (2, 0)
