"""Memory of the servers after they have served lookups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench.measure import Result, Stage
from bench.usage import Memory

_MIB: Final = 2**20


def memory(stage: Stage) -> Iterator[Result]:
    """Add up all processes of the side; with two nodes or more each key is held twice, by an active and a standby."""
    used = Memory.of(stage.servers.pids.values())
    figures = {
        "rss_mib": used.rss / _MIB,
        "pss_mib": used.pss / _MIB,
        "pss_mib_per_million": used.pss / _MIB / (stage.shape.keys / 1e6),
    }
    yield Result(f"Memory with {stage.shape.keys} keys", figures)
