"""A scenario: the events that a cluster goes through, and the result of one play."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.machine import ProcessorTime
from tests.robustness.checker import Violation, check
from tests.robustness.cluster import ClusterShape
from tests.robustness.figures import limits_kept
from tests.robustness.history import History
from tests.robustness.run import HISTORY_FILE, Size

# The machine may be busy: a node that is only slow is given time, and competes with others' work as an equal.
SMALL_SHAPE: Final = ClusterShape(
    nodes=3,
    partitions=4,
    heartbeat_interval_ms=200,
    session_timeout_ms=3_000,
    attempt_timeout_ms=1_500,
    starting_nice=0,
)
SMALL: Final = Size(
    SMALL_SHAPE,
    rate=60,
    writes=40,
    restarts=1,
    added=1,
    calm_s=0.5,
    outage_s=4,
    succession=20.0,
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story.

    Attributes:
        name: short, for files and the command line.
        title: for the report.
        play: plays it in a directory and returns the history; an AssertionError is a violation like those that the
            checker finds.
        full: the size in the report.
        small: the size without limits on times.
        p99_ms: what the 99th percentile of the latency must be below at full size.
        gap_s: longest time without an answer that any key may have at full size.
        limit_s: longest that it may take, whatever happens.

    """

    name: str
    title: str
    play: Callable[[Size, Path], History]
    full: Size
    small: Size = SMALL
    p99_ms: float | None = None
    gap_s: float | None = None
    limit_s: int = 300

    @property
    def story(self) -> str:
        """What happens in it."""
        return " ".join((self.play.__doc__ or "").split())


@dataclass(frozen=True, slots=True)
class Outcome:
    """A scenario as it was played; one that broke off has the history up to there."""

    scenario: Scenario
    size: Size
    history: History
    violations: tuple[Violation, ...]
    processors: ProcessorTime


def played(
    scenario: Scenario, directory: Path, *, full: bool, limit_s: int | None = None, secured: bool = False
) -> Outcome:
    """Play a scenario and check its history; at full size also the limits on times.

    `limit_s`: less than its own. `secured`: as in ClusterShape.
    """
    size = scenario.full if full else scenario.small
    size = replace(size, shape=replace(size.shape, secured=secured))
    broken: list[Violation] = []
    before = ProcessorTime.now()
    try:
        with _limited(min(scenario.limit_s, limit_s or scenario.limit_s)):
            history = scenario.play(size, directory)
    except Exception as error:  # noqa: BLE001 - what ends a scenario is part of its report, and others follow
        kept = directory / HISTORY_FILE
        history = History.load(kept) if kept.exists() else History()
        end = max((lookup.done_at for lookup in history.lookups), default=0.0)
        broken.append(Violation("broken off", end, f"{type(error).__name__}: {error}"))
    broken += check(history)
    if full:
        broken += limits_kept(history, scenario.p99_ms, scenario.gap_s)
    return Outcome(scenario, size, history, tuple(broken), ProcessorTime.now().since(before))


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Break off, with a TimeoutError, what takes longer. Only in the main thread."""

    def break_off(_signum: int, _frame: Any) -> None:
        raise TimeoutError(f"the scenario took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, break_off)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
