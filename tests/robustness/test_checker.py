"""The checks themselves: each accepts a sound history and catches its own kind of violation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.robustness.checker import check
from tests.robustness.figures import figures, gaps, limits_kept, percentile
from tests.robustness.history import (
    ACTIVE_ONLY,
    AT_LEAST,
    MAX_LAG,
    MAX_STALENESS,
    CallRecord,
    EpochRecord,
    FaultRecord,
    FinalRecord,
    History,
    LookupRecord,
    Record,
    Recorder,
    RouterRecord,
    RunRecord,
    WriteRecord,
)

ANSWER = LookupRecord(
    "c1", "r1", "k", 0, 10.0, 0.01, found=True, version=2, host="a", role="ACTIVE", epoch=5, position=20, lag=0,
    staleness_ms=100,
)  # fmt: skip
SOUND: tuple[Record | LookupRecord, ...] = (
    EpochRecord(5, 0.0, ("a",), (("a", "b"),)),
    EpochRecord(6, 20.0, ("b",), (("b", "a"),)),
    RouterRecord("r1", 5, 1.0),
    RouterRecord("r1", 6, 21.0),
    WriteRecord("k", 1, 0, 10, 1.0),
    WriteRecord("k", 2, 0, 15, 5.0),
    WriteRecord("k", 3, 0, 20, 9.95),
    ANSWER,
    replace(ANSWER, key="absent", found=False, version=None),
    replace(ANSWER, due_at=25.0, version=3, position=25, epoch=6, host="b"),
    replace(ANSWER, due_at=26.0, version=3, position=25, epoch=6, host="a", role="STANDBY"),
    FaultRecord("SIGKILL", "a", 12.0, 15.0, (ACTIVE_ONLY,)),
    FinalRecord("k", 0, "a", "STANDBY", 3),
    FinalRecord("k", 0, "b", "ACTIVE", 3),
    RunRecord("test", 30.0, "", 2, 1),
)
FAILED = replace(ANSWER, found=None, version=None, role="", reason="NO_REPLICA_AVAILABLE", due_at=13.0)


def found(*more: Record | LookupRecord, without: tuple[type[Any], ...] = ()) -> list[str]:
    """Return what the checks say of the sound history with more records, and without those of some types."""
    kept = [record for record in SOUND if not isinstance(record, without)]
    return [violation.check for violation in check(History.of([*kept, *more]))]


def test_a_sound_history_passes() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("lookup", "is_excused"),
    [
        (replace(FAILED, bound=ACTIVE_ONLY), True),
        (replace(FAILED, bound=ACTIVE_ONLY, due_at=15.9), True),
        (replace(FAILED, bound=ACTIVE_ONLY, due_at=11.0, took_s=2.0), True),
        (replace(FAILED, bound=ACTIVE_ONLY, due_at=11.0), False),
        (replace(FAILED, bound=ACTIVE_ONLY, due_at=16.1), False),
        (replace(FAILED, bound=MAX_LAG), False),
        (FAILED, False),
    ],
)
def test_a_failed_lookup_is_excused_only_by_a_fault_that_leaves_none_to_answer(
    lookup: LookupRecord, is_excused: bool
) -> None:
    assert found(lookup) == ([] if is_excused else ["failed lookup"])


@pytest.mark.feature("histories-real-processes")
def test_with_a_token_nothing_older_than_what_was_seen_is_read() -> None:
    seen = replace(ANSWER, bound=AT_LEAST, due_at=10.0, version=3, position=21, at_least=15)
    assert found(seen, replace(seen, due_at=11.0, took_s=1.0, at_least=21)) == []
    # Asked before the other's answer was there.
    assert found(seen, replace(seen, due_at=10.005, took_s=1.0, version=2, position=20)) == []
    older = replace(seen, due_at=11.0, version=2, position=20, staleness_ms=2_000)
    assert found(seen, older) == ["monotonic reads"] * 2, "position and version"
    assert found(seen, replace(older, client="c2")) == [], "another client"
    assert found(seen, replace(older, bound="any")) == [], "no token"
    assert found(replace(seen, at_least=22)) == ["monotonic reads"]


@pytest.mark.parametrize(
    ("lookup", "expected"),
    [
        (replace(ANSWER, bound=MAX_LAG, max_lag=3, lag=3), []),
        (replace(ANSWER, bound=MAX_LAG, max_lag=3, lag=4), ["bound"]),
        (replace(ANSWER, bound=MAX_LAG, max_lag=3, lag=None), ["bound"]),
        (replace(ANSWER, bound=MAX_STALENESS, max_staleness_ms=100), []),
        (replace(ANSWER, bound=MAX_STALENESS, max_staleness_ms=99), ["bound"]),
        (replace(ANSWER, bound=MAX_STALENESS, max_staleness_ms=99, staleness_ms=None), ["bound"]),
        (replace(ANSWER, bound=ACTIVE_ONLY), []),
        (replace(ANSWER, bound=ACTIVE_ONLY, role="STANDBY"), ["bound"]),
    ],
)
def test_bounds_are_kept(lookup: LookupRecord, expected: list[str]) -> None:
    assert found(lookup) == expected


def test_an_answer_is_no_older_than_it_admits() -> None:
    assert found(replace(ANSWER, staleness_ms=40)) == ["staleness"], "version 3 was there 50 ms before"
    assert found(replace(ANSWER, staleness_ms=40, version=3)) == []
    assert found(replace(ANSWER, staleness_ms=None)) == [], "an unknown staleness says nothing"


def test_an_answer_has_what_is_below_its_position() -> None:
    assert found(replace(ANSWER, position=21)) == ["position"], "version 3 is at 20"
    assert found(replace(ANSWER, position=21, version=3)) == []


@pytest.mark.parametrize(
    "lookup",
    [
        replace(ANSWER, found=False, version=None),
        replace(ANSWER, key="absent", found=True, version=1),
        replace(ANSWER, host="c", role="STANDBY"),
        replace(ANSWER, key="absent", found=False, version=None, host="c", role="STANDBY"),
        replace(ANSWER, host="b", role="ACTIVE"),
        replace(ANSWER, epoch=7),
    ],
)
def test_who_answers_holds_the_partition_and_is_what_it_says(lookup: LookupRecord) -> None:
    assert found(lookup) == ["wrong host"]


def test_nobody_claims_to_be_active_at_an_older_epoch_than_the_routers() -> None:
    late = replace(ANSWER, due_at=22.0, version=3, position=25)
    assert found(late) == ["old active"]
    assert found(replace(late, role="STANDBY")) == []
    assert found(replace(late, due_at=20.5)) == [], "the router need not know of the newer epoch yet"
    assert found(replace(late, router="r2")) == [], "another router may not"


def test_the_end_state_is_the_last_version_on_every_copy() -> None:
    active = FinalRecord("k", 0, "b", "ACTIVE", 3)
    standby = replace(active, host="a", role="STANDBY")

    def ends(*finals: FinalRecord, count: int = 1) -> list[str]:
        return found(*finals, RunRecord("test", 30.0, "", 2, count), without=(FinalRecord, RunRecord))

    assert ends(active, standby) == []
    assert ends(active, replace(standby, version=2)) == ["end state"], "lost"
    assert ends(active, replace(standby, version=4)) == ["end state"], "from nowhere"
    assert ends(active, replace(standby, version=None)) == ["end state"]
    assert ends(active) == ["end state"], "a copy is missing"
    assert ends(active, replace(standby, role="ACTIVE")) == ["end state"]
    assert ends() == ["end state"]
    assert ends(active, standby, count=2) == ["end state"], "doubled"
    assert found(without=(RunRecord,)) == ["end state"], "it never ended"


def test_gaps_are_between_answers_from_the_first_lookup_to_the_last() -> None:
    history = History.of(
        [
            replace(ANSWER, due_at=1.0, took_s=0.5),
            replace(ANSWER, due_at=2.0, took_s=0.5),
            replace(FAILED, due_at=3.0),
            replace(ANSWER, due_at=5.0, took_s=1.0),
            replace(ANSWER, key="other", due_at=1.0, took_s=1.0),
        ]
    )
    assert gaps(history) == {"k": 3.5, "other": 4.0}
    assert [violation.check for violation in limits_kept(history, 50, 1)] == ["p99", "gap"]
    assert limits_kept(history, 1_001, 4) == []


def test_figures_count_what_was_there() -> None:
    history = History.of([*SOUND, FAILED, replace(FAILED, bound=ACTIVE_ONLY)])
    numbers = figures(history)
    assert (numbers.lookups, numbers.failed, numbers.excused) == (6, 1, {ACTIVE_ONLY: 1})
    assert (numbers.max_staleness_ms, numbers.faults) == (100, 1)
    assert (numbers.epochs, numbers.moves) == (1, 1), "epoch 5 was there before the first lookup"
    assert [percentile([1, 2, 3, 4], share) for share in (0.0, 0.5, 0.51, 1.0)] == [1, 2, 3, 4]
    assert percentile([], 0.5) == 0


def test_a_history_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    failed = {
        "key": "k",
        "partition": 0,
        "reason": "NO_REPLICA_AVAILABLE",
        "candidates": ("a: UNREACHABLE", "b: NOT_ACTIVE"),
    }
    found = {"key": "l", "partition": 1, "at_least": 7, "found": True, "version": 3, "host": "a", "position": 8}
    call = CallRecord("c", "r", 1.0, 0.5, AT_LEAST, None, None, (failed, found))
    records = (*(record for record in SOUND if not isinstance(record, LookupRecord)), call)
    with Recorder(tmp_path / "history.jsonl") as recorder:
        for record in records:
            recorder.add(record)
    recorder.add(call)  # too late
    history = History.load(tmp_path / "history.jsonl")
    assert history == History.of(records)
    assert history.lookups == (
        LookupRecord(
            "c", "r", "k", 0, 1.0, 0.5, AT_LEAST,
            reason="NO_REPLICA_AVAILABLE", candidates=("a: UNREACHABLE", "b: NOT_ACTIVE"),
        ),
        LookupRecord(
            "c", "r", "l", 1, 1.0, 0.5, AT_LEAST, at_least=7, found=True, version=3, host="a", position=8
        ),
    )  # fmt: skip
