"""Every scenario: one, small and with TLS and rules, in normal tests.

All, also at full size and with limits on times, in long ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.robustness.scenario import Scenario, played
from tests.robustness.soak import SOAK
from tests.robustness.suite import SCENARIOS

# Nodes end, and are called again.
_SECURED = "static-bounce"


@pytest.mark.feature("node-killed-frozen")
@pytest.mark.feature("router-killed-started")
@pytest.mark.feature("nodes-restarted-one")
@pytest.mark.feature("histories-real-processes")
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
@pytest.mark.long
@pytest.mark.timeout(330)
def test_holds_at_small_size(scenario: Scenario, tmp_path: Path) -> None:
    assert played(scenario, tmp_path, full=False).violations == ()


@pytest.mark.feature("histories-real-processes")
@pytest.mark.parametrize(
    "name",
    [name if name == _SECURED else pytest.param(name, marks=pytest.mark.long) for name in SCENARIOS],
)
@pytest.mark.timeout(330)
def test_holds_with_tls_and_rules(name: str, tmp_path: Path) -> None:
    assert played(SCENARIOS[name], tmp_path, full=False, secured=True).violations == ()


@pytest.mark.feature("nodes-restarted-one")
@pytest.mark.feature("driver-killed-serving")
@pytest.mark.feature("broker-down-reads")
@pytest.mark.feature("full-disk-stops")
@pytest.mark.feature("driver-dies-then")
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
@pytest.mark.long
@pytest.mark.timeout(330)
def test_holds_at_full_size(scenario: Scenario, tmp_path: Path) -> None:
    assert played(scenario, tmp_path, full=True).violations == ()


@pytest.mark.parametrize("full", [False, True], ids=("small", "full"))
@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_an_hours_lookups_hold_while_nodes_die(tmp_path: Path, full: bool) -> None:
    assert played(SOAK, tmp_path, full=full).violations == ()
