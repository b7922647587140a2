"""How large a fleet must be: what each figure is derived from, and what can't be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from statehouse.cli.main import app
from statehouse.cli.sizing import AskedHosts, AskedLoad, Coefficients, LookupCost, Way, needs, size
from statehouse.errors import ConfigurationError

# Round figures, so that the results can be checked by hand.
KNOWN = Coefficients(
    "by hand",
    empty_call_us=200,
    node_idle_cores=0.02,
    router_idle_cores=0.01,
    node_routed=LookupCost(100, 100, 1000),
    node_straight=LookupCost(300, 100, 1000),
    router_lookup=LookupCost(200, 200, 1000),
    update_us=10,
    node_mib=100,
    router_mib=80,
    partition_mib=0.5,
    resident=1,
    entry_overhead=20,
    on_disk=0.5,
    caller_bytes=200,
    inner_bytes=100,
    update_bytes=30,
    heartbeat_bytes=0,
)
LOAD = AskedLoad(1_000_000, 84, 1_000, key_bytes=16, partitions=16)
HOSTS = AskedHosts()


@pytest.mark.feature("statehouse-size-nodes")
def test_each_figure_of_a_fleet() -> None:
    found = needs(LOAD, KNOWN, HOSTS, nodes=4, routers=2)
    assert found.node_cores == pytest.approx(0.02 + 250 * 100e-6)
    assert found.router_cores == pytest.approx(0.01 + 500 * 200e-6)
    # Half a million copies of 100 bytes, and eight open partitions.
    assert found.node_memory_mib == pytest.approx(100 + 8 * 0.5 + 500_000 * 100 / 2**20)
    assert found.node_disk_mib == pytest.approx(0.5 * 500_000 * 120 / 2**20)
    assert found.node_bytes == pytest.approx(250 * 200)
    assert found.router_bytes == pytest.approx(500 * (200 + 300))
    assert found.all_bytes == pytest.approx(4 * found.node_bytes + 2 * found.router_bytes)


def test_a_lookup_that_comes_alone_costs_the_most() -> None:
    cost = LookupCost(300, 100, 1000)
    assert cost.at(0) == 300
    assert cost.at(1000) == 200
    assert cost.at(1e9) == pytest.approx(100, rel=1e-3)


def test_straight_lookups_cost_routers_nothing() -> None:
    found = needs(replace(LOAD, way=Way.STRAIGHT), KNOWN, HOSTS, nodes=4, routers=1)
    assert found.router_cores == KNOWN.router_idle_cores
    assert found.router_bytes == 0
    assert found.node_bytes == pytest.approx(250 * 300)


def test_the_caches_bound_the_memory_of_entries() -> None:
    much = replace(LOAD, keys=10**9)
    found = needs(much, KNOWN, HOSTS, nodes=4, routers=1)
    assert found.node_memory_mib == pytest.approx(100 + 8 * 0.5 + 256)


def test_a_slower_machine_takes_longer_for_the_same() -> None:
    found = needs(LOAD, KNOWN, replace(HOSTS, speed=2), nodes=4, routers=2)
    assert found.node_cores == pytest.approx(2 * (0.02 + 250 * 100e-6))


@pytest.mark.feature("statehouse-size-nodes")
def test_the_smallest_fleet_survives_the_loss_of_one_of_each() -> None:
    found = size(replace(LOAD, lookups=30_000), KNOWN)
    # 1.2 cores may be in use: 11,800 lookups a second at a node, so three of them must be left.
    assert found.needs.nodes == 4
    assert found.nodes_because == "processor time: 1.52 of 2 cores with 2 serving"
    # And 5,950 at a router: six are too few for 30,000 with one away.
    assert found.needs.routers == 7
    assert found.routers_because == "processor time: 1.21 of 2 cores with 5 serving"
    without = size(replace(LOAD, lookups=30_000), KNOWN, AskedHosts(survives_loss=False))
    assert (without.needs.nodes, without.needs.routers) == (3, 6)


@pytest.mark.parametrize(
    ("hosts", "nodes", "because"),
    [
        (AskedHosts(), 3, "2 must be left after a loss"),
        (AskedHosts(survives_loss=False), 2, "2 must be left"),
        (AskedHosts(memory_mib=150), 6, "memory: 152 MiB of 150 with 4 serving"),
        (AskedHosts(disk_mib=25), 6, "disk: 29 MiB of 25 with 4 serving"),
    ],
)
def test_what_decides_the_number_of_nodes(hosts: AskedHosts, nodes: int, because: str) -> None:
    found = size(LOAD, KNOWN, hosts)
    assert found.needs.nodes == nodes
    assert found.nodes_because == because


@pytest.mark.parametrize(
    ("load", "hosts", "message"),
    [
        (replace(LOAD, keys=-1), HOSTS, "keys must be 0 or more, and not -1"),
        (replace(LOAD, lookups=float("inf")), HOSTS, "lookups must be 0 or more"),
        (replace(LOAD, value_bytes=float("nan")), HOSTS, "value bytes must be"),
        (LOAD, AskedHosts(busiest=1.5), "at most 1"),
        (LOAD, AskedHosts(cores=0), "cores must be above 0"),
        (LOAD, AskedHosts(memory_mib=float("nan")), "memory must be above 0, and not nan"),
        (LOAD, AskedHosts(disk_mib=0), "disk must be above 0"),
        (LOAD, AskedHosts(block_cache_bytes=float("nan")), "block must be above 0"),
        (LOAD, AskedHosts(memory_mib=50), "not even 10000 nodes are enough: memory"),
        (replace(LOAD, lookups=1e12), HOSTS, "not even 10000 nodes are enough: processor time"),
    ],
)
def test_what_cant_be_is_refused(load: AskedLoad, hosts: AskedHosts, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        size(load, KNOWN, hosts)


def test_a_fleet_that_cant_hold_the_copies_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="2 copies need as many nodes, and there are 1"):
        needs(LOAD, KNOWN, HOSTS, nodes=1, routers=1)
    with pytest.raises(ConfigurationError, match="at least one"):
        needs(LOAD, KNOWN, HOSTS, nodes=2, routers=0)


def test_the_command_says_what_a_load_takes() -> None:
    asked = "size --keys 10000000 --value-bytes 200 --lookups 5000"
    run = CliRunner().invoke(app, asked.split())
    assert run.exit_code == 0, run.output
    for word in ("nodes", "routers", "cores in use", "memory", "disk", "network", "DERIVED FROM", "measured: "):
        assert word in run.output
    as_json = CliRunner().invoke(app, [*asked.split(), "-o", "json"])
    assert '"figure": "nodes"' in as_json.output
    refused = CliRunner().invoke(app, [*asked.split(), "--memory-gib", "0.1"])
    assert refused.exit_code == 2
    assert "not even 10000 nodes are enough" in refused.output
