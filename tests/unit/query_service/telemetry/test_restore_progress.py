"""Progress of restores: when something is said, rates and ETAs, and what people see."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from query_service.telemetry.events import StorePartition
from query_service.telemetry.restore_display import BarDisplay, RestoreProgressListener
from query_service.telemetry.restore_progress import RestoreProgress, RestoreStatus

WHERE = StorePartition("counts", "app-counts-changelog", 3)
OTHER = StorePartition("counts", "app-counts-changelog", 4)


def test_nothing_is_said_of_short_restores() -> None:
    progress = RestoreProgress(10)
    progress.start(WHERE, 0, 1_000, 100.0)
    assert [progress.batch(WHERE, n * 100, 100, 100.0 + n) for n in range(1, 10)] == [None] * 9
    progress.end(WHERE)
    assert progress.batch(WHERE, 1_000, 100, 200.0) is None


def test_long_restores_are_told_of_at_most_every_interval() -> None:
    progress = RestoreProgress(10)
    progress.start(WHERE, 50, 1_050, 0.0)
    said = {at: progress.batch(WHERE, 50 + at * 10, 5, float(at)) for at in range(1, 41)}
    assert [at for at, status in said.items() if status] == [10, 20, 30, 40]
    # A hundred offsets, half of them records, in ten seconds each.
    assert said[10] == RestoreStatus(WHERE, 50, 100, 900, 5.0, 90.0)
    assert said[40] == RestoreStatus(WHERE, 200, 400, 600, 5.0, 60.0)


def test_rate_is_of_late_and_not_of_all_times() -> None:
    progress = RestoreProgress(10)
    progress.start(WHERE, 0, 10_000, 0.0)
    progress.batch(WHERE, 1_000, 1_000, 10.0)
    status = progress.batch(WHERE, 1_100, 100, 20.0)
    assert status is not None
    assert (status.records_per_s, status.eta_s) == (10.0, 890.0)


def test_eta_is_unknown_while_nothing_moves_and_zero_beyond_the_end() -> None:
    progress = RestoreProgress(10)
    progress.start(WHERE, 0, 100, 0.0)
    stuck = progress.batch(WHERE, 0, 0, 10.0)
    beyond = progress.batch(WHERE, 130, 130, 20.0)
    assert stuck is not None
    assert beyond is not None
    assert (stuck.eta_s, stuck.records_per_s) == (None, 0.0)
    assert (beyond.remaining, beyond.eta_s) == (0, 0.0)


def test_restores_are_told_apart() -> None:
    progress = RestoreProgress(10)
    progress.start(WHERE, 0, 100, 0.0)
    progress.start(OTHER, 0, 100, 5.0)
    assert progress.batch(WHERE, 10, 10, 10.0) is not None
    assert progress.batch(OTHER, 10, 10, 10.0) is None
    assert progress.batch(OTHER, 20, 10, 15.0) is not None


@pytest.mark.feature("listeners-states-restores")
@pytest.mark.parametrize("is_taken_away", [False, True])
def test_bars_come_and_go(is_taken_away: bool) -> None:
    out = io.StringIO()
    now = 0.0
    listener = RestoreProgressListener(
        RestoreProgress(0.5), BarDisplay(Console(file=out, force_terminal=True, width=120)), lambda: now
    )
    listener.on_restore_start(WHERE, 0, 4_000, full=True)
    listener.on_restore_start(OTHER, 0, 4_000, full=True)
    now = 1.0
    listener.on_batch_restored(WHERE, 1_000, 1_000)
    now = 2.0
    listener.on_batch_restored(WHERE, 2_000, 1_000)
    assert "restoring counts[3]" in out.getvalue()
    (listener.on_restore_suspended if is_taken_away else listener.on_restore_end)(WHERE, 2_000)
    assert "2,000 records, 1,000/s, 2 s to go" in out.getvalue()
    assert "counts[4]" not in out.getvalue()
    assert out.getvalue().rstrip().endswith("\x1b[2K\x1b[?25h"), "what was drawn is gone, and the cursor is back"
