"""What must hold for every load and every fleet that is calculated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.cli.sizing import AskedHosts, AskedLoad, Coefficients, Way, needs, size

KNOWN = Coefficients()
LOADS = st.builds(
    AskedLoad,
    keys=st.integers(0, 10**8),
    value_bytes=st.floats(0, 10_000),
    lookups=st.floats(0, 100_000),
    key_bytes=st.floats(0, 100),
    updates=st.floats(0, 10_000),
    standbys=st.integers(0, 3),
    partitions=st.integers(0, 1_000),
    way=st.sampled_from(Way),
)
FIGURES = ("node_cores", "router_cores", "node_memory_mib", "node_disk_mib", "node_bytes", "router_bytes")


@pytest.mark.feature("statehouse-size-nodes")
@given(LOADS, st.floats(1, 3), st.booleans())
def test_the_smallest_fleet_is_large_enough_and_one_less_is_not(load: AskedLoad, speed: float, spare: bool) -> None:
    hosts = AskedHosts(cores=4, speed=speed, survives_loss=spare)
    found = size(load, KNOWN, hosts).needs
    allowed = hosts.cores * hosts.busiest
    away = 1 if spare else 0
    assert found.nodes - away >= load.copies
    serving = needs(load, KNOWN, hosts, found.nodes - away, max(1, found.routers - away))
    assert serving.node_cores <= allowed
    assert serving.router_cores <= allowed
    if found.nodes - away > load.copies:
        assert needs(load, KNOWN, hosts, found.nodes - away - 1, 1).node_cores > allowed
    if found.routers - away > 1:
        assert needs(load, KNOWN, hosts, found.nodes, found.routers - away - 1).router_cores > allowed


@given(LOADS, st.integers(4, 50), st.integers(1, 20))
def test_more_of_anything_never_takes_less(load: AskedLoad, nodes: int, routers: int) -> None:
    found = needs(load, KNOWN, AskedHosts(), nodes, routers)
    for more in (
        replace(load, keys=2 * load.keys),
        replace(load, value_bytes=2 * load.value_bytes),
        replace(load, lookups=2 * load.lookups),
        replace(load, updates=2 * load.updates),
    ):
        grown = needs(more, KNOWN, AskedHosts(), nodes, routers)
        assert all(getattr(grown, each) >= getattr(found, each) for each in FIGURES)


@given(LOADS, st.integers(4, 50))
def test_more_nodes_share_the_same_lookups(load: AskedLoad, nodes: int) -> None:
    few, more = (needs(load, KNOWN, AskedHosts(), count, 1) for count in (nodes, 2 * nodes))
    assert more.node_cores <= few.node_cores
    assert more.node_disk_mib <= few.node_disk_mib + 1e-6
