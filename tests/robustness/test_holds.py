"""How many lookups a hold saves if partitions have one copy: nodes are restarted in turn, with and without holds.

By hand, with a table of the results: `python -m pytest tests/robustness/test_holds.py -m long`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.robustness.cluster import ClusterShape
from tests.robustness.figures import percentile
from tests.robustness.history import LookupRecord
from tests.robustness.report import machine
from tests.robustness.run import Run, Size

HEAD: Final = (
    "| `hold_window_ms` | lookups | failed | p50 ms | p99 ms | max ms | longest of those that failed ms |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


@dataclass(frozen=True, slots=True)
class Restarts:
    """Lookups while every node was restarted once."""

    hold_window_ms: int
    lookups: Sequence[LookupRecord]

    @property
    def failed(self) -> list[LookupRecord]:
        return [lookup for lookup in self.lookups if not lookup.answered]

    def row(self) -> str:
        took_ms = sorted(1_000 * lookup.took_s for lookup in self.lookups if lookup.answered)
        times = [percentile(took_ms, share) for share in (0.5, 0.99, 1.0)]
        times.append(max((1_000 * lookup.took_s for lookup in self.failed), default=0.0))
        shown = " | ".join(f"{each:,.1f}" for each in times)
        return f"| {self.hold_window_ms:,} | {len(self.lookups):,} | {len(self.failed):,} | {shown} |"


def _restarts(directory: Path, hold_window_ms: int) -> Restarts:
    """Restart three nodes in turn, by SIGINT: each is back within the session timeout, and nothing is moved."""
    shape = ClusterShape(nodes=3, partitions=6, standbys=0, starting_nice=0, hold_window_ms=hold_window_ms)
    with Run("holds", Size(shape, rate=100, writes=40, calm_s=2.0), directory) as run:
        cluster, began_at = run.cluster, run.recorder.now
        for name in list(cluster.nodes):
            assert cluster.nodes[name].stop(signal.SIGINT, 60.0) == 0
            cluster.restart(name)
            cluster.wait_settled()
        ended_at = run.recorder.now
    during = [lookup for lookup in run.history.lookups if began_at <= lookup.due_at < ended_at]
    return Restarts(hold_window_ms, during)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_no_lookup_fails_while_the_only_copy_restarts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without, held = _restarts(tmp_path / "without", 0), _restarts(tmp_path / "held", 10_000)
    with capsys.disabled():
        sys.stdout.write(f"\n{machine()}\n{HEAD}\n{without.row()}\n{held.row()}\n")
    assert without.failed, "or the nodes were never away, and nothing is shown"
    assert held.failed == []
