"""The plans of all sizes, which only a long run would play."""

from __future__ import annotations

import re

import pytest

from bench.failure import BenchFailure
from bench.shape import Side
from bench.sizes import SIZES, compared, named, of_sides, secured
from bench.workloads import WORKLOADS


@pytest.mark.parametrize("size", SIZES)
def test_plans_can_be_played(size: str) -> None:
    plans = SIZES[size]
    slugs = [plan.slug for plan in plans]
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch("[a-z0-9-]{1,100}", slug) for slug in slugs), "a topic's name has each of them"
    for plan in plans:
        names = [name for work in (*plan.work.values(), *plan.last_round.values()) for name in work]
        assert set(names) <= WORKLOADS.keys()
        assert plan.last_round.keys() <= plan.work.keys()


def test_with_tls_our_fleet_alone_is_measured_beside_itself() -> None:
    (plan,) = secured(SIZES["quick"])
    assert plan.name == "Serving"
    assert plan.work[Side.OURS] == plan.work[Side.OURS_TLS]
    assert len(plan.work) == 2


def test_a_family_of_plans_can_be_measured() -> None:
    assert [plan.name for plan in named(SIZES["full"], "Redis")] == ["Redis", "Redis, fed by Spark"]
    assert [plan.name for plan in named(SIZES["full"], "Growth, 8 nodes")] == ["Growth, 8 nodes"]
    assert len(named(SIZES["full"], "Growth")) == 7
    assert named(SIZES["full"], None) == list(SIZES["full"])


def test_single_sides_can_be_measured() -> None:
    processing, building = of_sides(compared(SIZES["full"]), [Side.OURS, Side.OURS_BEFORE])
    assert processing.work.keys() == {Side.OURS, Side.OURS_BEFORE}
    assert building.name == "Building"
    with pytest.raises(BenchFailure, match="no plan measures ours-before"):
        of_sides(SIZES["full"], [Side.OURS, Side.OURS_BEFORE])
