"""The benchmarks work: both sides are measured at smoke size, and reported. What the figures are means nothing here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.machine import Watch
from bench.results import write
from bench.run import Run
from bench.shape import Side
from bench.sizes import SIZES, named, secured
from statehouse.local.kafka import EmbeddedKafka


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_that_there_is_is_measured(kafka: EmbeddedKafka, tmp_path: Path, unique_name: Callable[[str], str]) -> None:
    plans, run = SIZES["rehearsal"], Run(kafka.bootstrap, tmp_path, unique_name("bench"), print)

    run.play([plan for plan in plans if Side.PEER in plan.work])

    ours, peers = [
        {(each.plan, each.work) for each in run.measured if each.side is side} for side in (Side.OURS, Side.PEER)
    ]
    assert peers <= ours
    ours_alone = [work for _plan, work in ours - peers]
    assert all(" within 10 s through the router" in work for work in ours_alone), "the peer's lookups have no bound"
    assert len(ours_alone) == 2
    assert len(peers) >= 13


@pytest.mark.long
@pytest.mark.timeout(900)
def test_redis_is_measured_too(kafka: EmbeddedKafka, tmp_path: Path, unique_name: Callable[[str], str]) -> None:
    lookups, fed = named(SIZES["rehearsal"], "Redis")
    run = Run(kafka.bootstrap, tmp_path, unique_name("bench"), print)

    run.play([lookups, fed])

    found = {(each.side, each.plan, each.work): each.figures for each in run.measured}
    works = [{(plan, work) for of, plan, work in found if of is side} for side in (Side.OURS, Side.REDIS)]
    assert works[0] == works[1] | {(fed.name, "Event produced to visible at the standby")} | {
        (fed.name, f"Building the store from {fed.shape.keys} records, until visible at active and standby")
    }
    kills = {
        (side, work): figures for (side, plan, work), figures in found.items() if plan == fed.name and "kill" in work
    }
    assert len(kills) == 5
    for (side, work), figures in kills.items():
        if side is Side.OURS:
            assert figures["lost"] == 0
            assert figures.get("torn_partitions", 0) == 0
        assert 0 <= figures["lost"] <= fed.shape.keys, work
    # Snapshots are made once a minute at most, and not of so few keys.
    assert kills[Side.REDIS_SNAPSHOTS, f"The store killed while Spark writes {fed.shape.keys} keys to it"]["lost"] > 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_both_sides_are_measured_and_reported(
    kafka: EmbeddedKafka, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    plans, run = SIZES["smoke"], Run(kafka.bootstrap, tmp_path, unique_name("bench"), print)

    watch = Watch()
    run.play(plans)
    data, page, *pictures = write(tmp_path / "results", "smoke", "make bench-smoke", plans, run, watch)

    measured = json.loads(data.read_text())["measured"]
    works = {side: {each["work"] for each in measured if each["side"] == side} for side in ("ours", "peer")}
    assert works["ours"] == works["peer"]
    assert len(works["ours"]) == 6
    assert all(value > 0 for each in measured for value in each["figures"].values())
    assert all("stolen_percent" in each["disturbance"] for each in measured)
    assert all(work in page.read_text() for work in works["ours"])
    assert {picture.suffix for picture in pictures} == {".png"}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_lookups_are_measured_plain_and_with_tls_in_turn(
    kafka: EmbeddedKafka, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    (plan,), run = secured(SIZES["smoke"]), Run(kafka.bootstrap, tmp_path, unique_name("bench"), print)

    run.play([replace(plan, rounds=2)])

    assert [(each.round, each.side) for each in run.measured[::4]] == [
        (1, Side.OURS),
        (1, Side.OURS_TLS),
        (2, Side.OURS_TLS),
        (2, Side.OURS),
    ]
    assert len({each.work for each in run.measured}) == 4
