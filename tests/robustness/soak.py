"""Ten million lookups while nodes die. It is played by its name alone, for its length."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Final

from tests.robustness.acceptance import kill_for_good
from tests.robustness.cluster import ClusterShape
from tests.robustness.history import History
from tests.robustness.run import Run, Size
from tests.robustness.scenario import Scenario


def soak(size: Size, directory: Path) -> History:
    """Kill each node in turn until its tasks are with others, and start it again, until there were so many lookups."""
    with Run("soak", size, directory) as run:
        for name in cycle(list(run.cluster.nodes)):
            kill_for_good(run, name)
            with run.fault("start", name):
                run.cluster.restart(name)
                run.cluster.wait_settled()
            if run.recorder.now * size.lookups_per_s >= size.lookups:
                break
    return run.history


SOAK: Final = Scenario(
    "soak",
    "Ten million lookups in forty minutes, nodes killed all the time",
    soak,
    # While a batch waits for one partition, all its lookups are under way.
    Size(ClusterShape(max_lookups=10_000), rate=150, batch=61, lookups=11_000_000),
    limit_s=3_600,
)
