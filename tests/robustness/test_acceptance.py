"""Every scenario, small in normal tests and at full size in the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.robustness.scenarios import SCENARIOS, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_holds_at_small_size(scenario: Scenario, tmp_path: Path) -> None:
    history = scenario.play(scenario.small, tmp_path)
    assert all(lookup.answered for lookup in history.lookups if lookup.bound != "active_only")
