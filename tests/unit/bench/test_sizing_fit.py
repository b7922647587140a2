"""Coefficients that are fitted to fleets give these fleets, and others, again."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

import pytest

from bench.sizing.fit import as_toml, coefficients
from bench.sizing.fleets import Measured, MeasuredFleet
from statehouse.cli.sizes import read_coefficients
from statehouse.cli.sizing import AskedHosts, Coefficients, Way, needs

SMALL = MeasuredFleet(keys=400_000, value_bytes=100, nodes=2, partitions=2)
LARGE = MeasuredFleet(keys=40_000, value_bytes=3_000, nodes=2, partitions=2)
OTHER = MeasuredFleet(keys=200_000, value_bytes=400, nodes=3, partitions=6)
HOSTS = AskedHosts()
# Within a cache, so that more entries take more memory.
TRUE = read_coefficients()


def measured(shape: MeasuredFleet, lookups: float, way: Way) -> Measured:
    """Return what a fleet would show that is exactly as the coefficients say."""
    found = needs(shape.load(lookups, way), TRUE, HOSTS, shape.nodes, 1)
    entry = shape.load(lookups, way).entry_bytes
    routed = lookups * (way is Way.ROUTER)
    hop = TRUE.inner_bytes if way is Way.ROUTER else TRUE.caller_bytes
    return Measured(
        lookups,
        shape.nodes * found.node_cores,
        found.router_cores,
        shape.nodes * found.node_memory_mib,
        found.router_memory_mib,
        shape.nodes * found.node_disk_mib,
        routed * (entry + TRUE.caller_bytes),
        lookups * (entry + hop),
        (shape.nodes + 1) ** 2 * TRUE.heartbeat_bytes,
    )


@pytest.fixture(scope="module")
def fitted() -> Coefficients:
    def asked(rates: Sequence[int], way: Way) -> list[Measured]:
        return [measured(SMALL, rate, way) for rate in rates]

    small = (SMALL, measured(SMALL, 0, Way.ROUTER), asked((200, 800, 2_000), Way.ROUTER))
    straight = asked((200, 1_000, 4_000), Way.STRAIGHT)
    return coefficients("by a test", 203, (*small, straight), (LARGE, measured(LARGE, 0, Way.ROUTER)))


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("lookups", [0, 300, 1_500])
def test_a_fleet_that_they_were_not_fitted_to_is_as_it_would_be(fitted: Coefficients, way: Way, lookups: int) -> None:
    true, found = (needs(OTHER.load(lookups, way), each, HOSTS, OTHER.nodes, 1) for each in (TRUE, fitted))
    for figure in ("all_cores", "all_memory_mib", "all_disk_mib", "all_bytes"):
        assert getattr(found, figure) == pytest.approx(getattr(true, figure), rel=0.05), figure


def test_they_are_written_as_the_command_reads_them(fitted: Coefficients) -> None:
    read = Coefficients.of(tomllib.loads(as_toml(fitted)))
    assert read.measured == "by a test"
    assert read.on_disk == pytest.approx(fitted.on_disk, rel=1e-3)
    assert read.node_routed.at(500) == pytest.approx(fitted.node_routed.at(500), rel=1e-3)
