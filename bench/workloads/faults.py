"""Lookups at a steady rate while nodes are killed, or restarted one by one.

Lookups come in an open loop and go to servers that forward to the owners: our router, or instances of the peer that
keep running. So the count has the failures that servers could not hide, not failures of a client's own connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bench.generator import Report, running
from bench.measure import Result, Stage, latencies

_CALM_S: Final = 2.0
_LONGEST_S: Final = 600.0


def failover(stage: Stage) -> Iterator[Result]:
    """Kill a node by SIGKILL; it stays away until the load is over, longer than the session timeout."""
    *others, victim = stage.servers.node_names

    def kill() -> None:
        stage.servers.nodes[victim].kill()
        time.sleep(1.5 * stage.shape.session_timeout_ms / 1000)

    report = _under_load(stage, others, kill)
    stage.servers.nodes[victim].start()
    stage.servers.wait_settled()
    yield _result("A node killed", stage, report)


def rolling_restart(stage: Stage) -> Iterator[Result]:
    """Restart all nodes but the first by SIGTERM, the next one when the copies are complete again."""
    first, *others = stage.servers.node_names

    def restart() -> None:
        for name in others:
            stage.servers.restart(name)
            stage.servers.wait_settled()

    yield _result("Nodes restarted one by one", stage, _under_load(stage, [first], restart))


def _under_load(stage: Stage, targets: Sequence[str], fault: Callable[[], None]) -> Report:
    options = {**stage.servers.anywhere(targets), "keys": stage.shape.keys, "rate": stage.load.rate}
    with running({**options, "duration_s": _LONGEST_S}) as load:
        time.sleep(_CALM_S)
        fault()
        time.sleep(_CALM_S)
        return load.end()


def _result(fault: str, stage: Stage, report: Report) -> Result:
    lookups = report["lookups"]
    figures = {
        "failed": lookups["failed"],
        "failed_percent": 100 * lookups["failed"] / max(1, lookups["total"]),
        "gap_ms": report["longest_gap"]["gap_ms"],
        "partition_gap_ms": report["longest_partition_gap"]["gap_ms"],
    }
    return Result(f"{fault}, {stage.load.rate} lookups/s", figures | latencies(report))
