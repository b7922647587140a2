"""When servers are ready to be measured, and when what was measured has happened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.data import key_of, value_of
from bench.failure import BenchFailure
from bench.measure import quantiles
from bench.shape import Shape
from bench.sides.servers import Copy, is_settled
from bench.workloads.build import last_records
from bench.workloads.starts import first
from statehouse.contract.partitioning import partition_for

SHAPE = Shape(keys=10, partitions=2, nodes=2)
SETTLED = [
    Copy("a", 0, active=True, position=5, caught_up=True),
    Copy("b", 0, active=False, position=5, caught_up=True),
    Copy("b", 1, active=True, position=5, caught_up=True),
    Copy("a", 1, active=False, position=5, caught_up=True),
]


def test_each_partition_needs_its_active_and_its_standby_caught_up() -> None:
    assert is_settled(SETTLED, SHAPE)
    assert not is_settled(SETTLED[:3], SHAPE)
    assert not is_settled([*SETTLED, Copy("c", 1, active=False, position=5, caught_up=True)], SHAPE)
    assert not is_settled([replace(SETTLED[0], caught_up=False), *SETTLED[1:]], SHAPE)
    assert not is_settled([replace(SETTLED[0], active=False), *SETTLED[1:]], SHAPE)
    assert not is_settled([replace(copy, active=True) for copy in SETTLED], SHAPE)


def test_a_single_node_has_no_standbys() -> None:
    assert is_settled([SETTLED[0], SETTLED[2]], replace(SHAPE, nodes=1))
    assert not is_settled(SETTLED, replace(SHAPE, nodes=1))


def test_the_first_look_counts_that_shows_it() -> None:
    samples = [(0.1, SETTLED[:1]), (0.2, SETTLED), (0.3, SETTLED)]

    assert first(samples, lambda copies: is_settled(copies, SHAPE)) == 0.2
    with pytest.raises(BenchFailure, match="none of 1 samples"):
        first(samples[:1], lambda copies: is_settled(copies, SHAPE))


def test_the_last_records_are_those_that_each_partition_gets_last() -> None:
    found = last_records(keys=100, partitions=4)

    for partition, (key, value) in found.items():
        numbers = [number for number in range(100) if partition_for(key_of(number).encode(), 4) == partition]
        assert (key, value) == (key_of(numbers[-1]), value_of(numbers[-1]).encode())
    assert set(found) == {0, 1, 2, 3}
    assert len(last_records(keys=1, partitions=4)) == 1


def test_quantiles_are_milliseconds_by_nearest_rank() -> None:
    assert quantiles([number / 1000 for number in range(100, 0, -1)]) == {"p50_ms": 50, "p99_ms": 99, "max_ms": 100}
    with pytest.raises(BenchFailure):
        quantiles([])
