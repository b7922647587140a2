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
from bench.sizes import SIZES, secured
from statehouse.local.kafka import EmbeddedKafka


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_that_there_is_is_measured(kafka: EmbeddedKafka, tmp_path: Path, unique_name: Callable[[str], str]) -> None:
    plans, run = SIZES["rehearsal"], Run(kafka.bootstrap, tmp_path, unique_name("bench"), print)

    run.play(plans)

    sides = [{(each.plan, each.work) for each in run.measured if each.side is side} for side in (Side.OURS, Side.PEER)]
    assert sides[0] == sides[1]
    assert len(sides[0]) >= 13


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

    assert [(each.round, each.side) for each in run.measured[::2]] == [
        (1, Side.OURS),
        (1, Side.OURS_TLS),
        (2, Side.OURS_TLS),
        (2, Side.OURS),
    ]
    assert len({each.work for each in run.measured}) == 2
