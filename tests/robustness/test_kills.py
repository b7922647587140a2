"""A killed node's tasks have another active within a second, and a silent node keeps its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.robustness.figures import percentile
from tests.robustness.kills import CUT, FREEZE, KILL, played, summary
from tests.support.fleet import THIS

KILLS = 200
SILENCES = 50
GAP_S = 1.0


@pytest.fixture
def file(pytestconfig: pytest.Config) -> Path:
    """Return where what was done with this commit is kept: a run that breaks off is gone on with."""
    commit = subprocess.run(["git", "-C", THIS.root, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert pytestconfig.cache is not None
    return pytestconfig.cache.mkdir("kills") / f"{commit.stdout.strip()}.jsonl"


@pytest.mark.long
@pytest.mark.timeout(5_400)
def test_another_is_active_within_a_second_of_a_kill(file: Path) -> None:
    trials = played(file, KILL, KILLS)
    assert percentile(sorted(trial.gap_s for trial in trials), 0.99) <= GAP_S, summary(trials)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", [FREEZE, CUT])
def test_who_is_silent_for_less_than_a_session_loses_nothing(file: Path, kind: str) -> None:
    assert [trial for trial in played(file, kind, SILENCES) if trial.epochs] == []
