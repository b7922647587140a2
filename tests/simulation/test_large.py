"""The control plane of a large fleet, by its real parts: how often it plans, how much it writes, and how fast."""

from __future__ import annotations

import pytest

from tests.simulation.large import RECORD_MAX_BYTES, LargeFleet, readers


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_ten_thousand_partitions_on_two_hundred_nodes() -> None:
    fleet = LargeFleet(10_000)
    comes_up, dies, joins = fleet.changes(200)
    assert comes_up.moved == 0
    assert dies.moved == 50, "its actives, and nobody else's"
    assert joins.moved <= 60
    assert max(each.largest_bytes for each in (comes_up, dies, joins)) < RECORD_MAX_BYTES


def test_a_small_fleet_takes_few_epochs() -> None:
    fleet = LargeFleet(40)
    comes_up, dies, joins = fleet.changes(8)
    assert comes_up.moved == 0
    assert dies.moved == 5
    assert joins.moved <= 8
    found = readers(fleet)
    assert 0 < found.heartbeat_bytes < 2_000
    assert found.watch_bytes > 0
