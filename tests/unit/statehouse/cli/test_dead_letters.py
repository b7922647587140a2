"""What `statehouse dead-letters` decides: since when, what goes back, and about what somebody is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from statehouse.cli.dead_letters import since_time_ms
from statehouse.cli.output import shown_bytes
from statehouse.cli.replay_plan import ASKED, ReplayPlan, Verdict, judge
from statehouse.contract.dead_letters import DeadLetter, SourcePlace, SourceRecord
from statehouse.kafka.topic_changes import FoundState

LETTER = DeadLetter(
    0,
    12,
    5,
    "totals",
    "not_json",
    "",
    SourcePlace("orders", 1, 8),
    SourceRecord(b"k", b"v", (), 7),
    is_original=True,
)
TOPICS = {
    "orders": FoundState("1", 2, frozenset({"delete"})),
    "users": FoundState("2", 2, frozenset({"compact", "delete"})),
    "shop-totals-changelog": FoundState("3", 2, frozenset({"compact"})),
    "other-totals-changelog": FoundState("4", 2, frozenset({"delete"})),
}


@pytest.mark.parametrize(
    ("given_as", "expected"),
    [
        (None, None),
        ("30s", 970_000),
        ("10m", 400_000),
        ("2h", 0),
        ("1970-01-01T00:01:00Z", 60_000),
        ("60000", 60_000),
    ],
)
def test_since_is_an_age_or_a_time(given_as: str | None, expected: int | None) -> None:
    assert since_time_ms(given_as, lambda: 1_000.0) == expected


@pytest.mark.parametrize("given_as", ["", "10 m", "10w", "yesterday", "-5m", "9999999999m"])
def test_what_is_neither_is_refused(given_as: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no time"):
        since_time_ms(given_as, lambda: 1_000.0)


def test_bytes_are_text_where_they_are_printable_text() -> None:
    assert [shown_bytes(content) for content in (None, b"ann", b"\xff", b"a\x00", b"")] == [
        None,
        "ann",
        b"\xff",
        b"a\x00",
        "",
    ]


def of_topic(topic: str, partition: int = 1) -> DeadLetter:
    return replace(LETTER, source=SourcePlace(topic, partition, 8))


@pytest.mark.feature("dead-letters-replayed")
@pytest.mark.parametrize(
    ("letter", "verdict"),
    [
        (LETTER, Verdict.REPLAY),
        (replace(LETTER, record=SourceRecord(None, None, (), 7)), Verdict.REPLAY),
        (of_topic("users"), Verdict.ROW),
        (of_topic("gone"), Verdict.NO_TOPIC),
        (of_topic("orders", 2), Verdict.NO_TOPIC),
        (of_topic("shop-totals-changelog"), Verdict.CHANGELOG),
        (of_topic("other-totals-changelog"), Verdict.REPLAY),
        (replace(LETTER, source=None), Verdict.NO_SOURCE),
        (replace(LETTER, is_original=False), Verdict.NO_ORIGINAL),
    ],
)
def test_what_is_done_with_a_dead_letter(letter: DeadLetter, verdict: Verdict) -> None:
    assert judge(letter, "shop", TOPICS) == verdict


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 50)), st.sampled_from([v for v in Verdict if v != Verdict.AGAIN])
    ),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 50))),
    st.booleans(),
)
def test_nothing_is_replayed_again_or_put_over_a_row_unless_somebody_says_so(
    verdicts: dict[tuple[int, int], Verdict], replayed: set[tuple[int, int]], answer: bool
) -> None:
    asked: list[str] = []

    def is_agreed(question: str) -> bool:
        asked.append(question)
        return answer

    plan = ReplayPlan.of(verdicts, replayed)
    chosen = set(plan.settled(is_agreed))
    new = {place for place, verdict in verdicts.items() if verdict == Verdict.REPLAY} - replayed
    can_be = {place for place, verdict in verdicts.items() if verdict in {Verdict.REPLAY, Verdict.ROW}}
    assert chosen == (can_be if answer else new)
    assert bool(asked) == (can_be != new), "nobody is asked needlessly"
    assert plan.left_out().total() == len(verdicts) - len(can_be)
    assert not set(plan.left_out()) & {Verdict.REPLAY, *ASKED}


def test_a_question_says_how_many_and_why() -> None:
    plan = ReplayPlan.of({(0, 1): Verdict.REPLAY, (0, 2): Verdict.ROW, (0, 3): Verdict.ROW}, {(0, 1)})
    assert plan.question(Verdict.AGAIN) == "1 dead letter of these was replayed before. Replay again?"
    assert plan.question(Verdict.ROW) == (
        "2 dead letters of these are of a topic that keeps the newest record of each key: a replay may put an old row "
        "in place of a newer one. Replay?"
    )
