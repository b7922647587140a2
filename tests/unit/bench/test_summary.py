"""What many rounds come to."""

from __future__ import annotations

from bench.report import number
from bench.shape import Side
from bench.summary import Line, Measured, Spread, lines

OURS, PEER = Side.OURS, Side.PEER


def of(round_number: int, side: Side, value: float, work: str = "get", metric: str = "lookups_per_s") -> Measured:
    return Measured("plan", round_number, side, work, {metric: value})


def test_ratios_are_those_of_the_same_round_and_not_of_medians() -> None:
    # A machine that gets slower from round to round slows both sides.
    found = lines([of(1, OURS, 40), of(1, PEER, 20), of(2, PEER, 10), of(2, OURS, 30), of(3, OURS, 3), of(3, PEER, 1)])

    assert found == [
        Line(
            "plan",
            "get",
            "lookups_per_s",
            {OURS: Spread(30, 3, 40, 3), PEER: Spread(10, 1, 20, 3)},
            {PEER: Spread(3, 2, 3, 3)},
        )
    ]


def test_with_tls_the_ratio_is_what_is_left_of_the_plain_figure() -> None:
    (line,) = lines([of(1, OURS, 40), of(1, Side.OURS_TLS, 30), of(2, OURS, 0), of(2, Side.OURS_TLS, 10)])

    assert line.ratios == {Side.OURS_TLS: Spread(0.75, 0.75, 0.75, 1)}


def test_there_is_no_ratio_to_nothing() -> None:
    (line,) = lines([of(1, OURS, 0, metric="failed"), of(1, PEER, 0, metric="failed")])

    assert line.ratios == {}
    assert line.sides == {OURS: Spread(0, 0, 0, 1), PEER: Spread(0, 0, 0, 1)}


def test_what_only_one_side_did_has_no_ratio() -> None:
    first, second = lines([of(1, OURS, 1), of(1, PEER, 1, work="scan")])

    assert (set(first.sides), set(second.sides)) == ({OURS}, {PEER})
    assert not first.ratios
    assert not second.ratios


def test_plans_are_not_mixed() -> None:
    assert len(lines([of(1, OURS, 1), Measured("other", 1, OURS, "get", {"lookups_per_s": 2})])) == 2


def test_numbers_have_three_digits_that_count() -> None:
    assert [number(value) for value in (0, 0.012345, 1.2345, 12.345, 123.45, 1234567.8)] == [
        "0",
        "0.0123",
        "1.23",
        "12.3",
        "123",
        "1 234 568",
    ]
