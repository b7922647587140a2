"""The data plane answers what simulated nodes did, from the same records, at the same positions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulation.replay import NOTHING, Figures, build, record, replay
from tests.simulation.run import run_seed

SEEDS = 2
RACED_SEEDS = 6
LONG_SEEDS = 1_000
_AT_ONCE = 25


@pytest.mark.feature("whole-fleet-simulation")
@pytest.mark.timeout(900)
def test_the_data_plane_answers_as_the_nodes_of_a_few_runs_did(tmp_path: Path) -> None:
    check(replay_all(range(SEEDS), tmp_path, races=False), SEEDS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_races_are_found_in_a_few_runs(tmp_path: Path) -> None:
    check(replay_all(range(RACED_SEEDS), tmp_path, races=True), RACED_SEEDS)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_the_data_plane_answers_as_the_nodes_of_a_thousand_runs_did(tmp_path: Path) -> None:
    check(replay_all(range(LONG_SEEDS), tmp_path, races=False), LONG_SEEDS)


def replay_all(seeds: range, folder: Path, *, races: bool) -> Figures:
    program, figures = build(folder, races=races), NOTHING
    for first in range(seeds.start, seeds.stop, _AT_ONCE):
        some = folder / str(first)
        some.mkdir()
        figures += replay(program, range(first, min(first + _AT_ONCE, seeds.stop)), some, jobs=2)
        for recording in some.iterdir():
            recording.unlink()
    return figures


def check(figures: Figures, seeds: int) -> None:
    """Enough of everything was replayed."""
    assert figures.runs == seeds
    assert figures.answers > 200 * seeds
    assert figures.with_writes > seeds
    assert figures.batches > 50 * seeds
    assert figures.opened_again > 2 * seeds


def test_a_run_is_the_same_with_a_recorder_and_without(tmp_path: Path) -> None:
    alone = run_seed(4, is_traced=True)
    assert run_seed(4, is_traced=True, recorded_to=tmp_path / "4.jsonl").trace == alone.trace


def test_a_recording_has_all_kinds_of_lookups(tmp_path: Path) -> None:
    """Answers and refusals, and each reason for these."""
    record(tmp_path, 1)
    events = [json.loads(line) for line in (tmp_path / "1.jsonl").read_text().splitlines()[1:]]
    assert {each["do"] for each in events} == {
        "open", "follow", "read", "save", "close", "end", "decide", "know", "get", "scan"
    }  # fmt: skip
    gets = [each for each in events if each["do"] == "get"]
    assert all(("answer" in each) == ("obstacle" not in each) for each in gets)
    assert {each.get("obstacle", 0) for each in gets} >= {0, 1, 3, 6, 7, 9}
