"""Progress of restores that take long: when to say what, how fast they are and how long they have yet to go.

`RestoreProgress` decides, without I/O and clocks; `ProgressListener` shows what it says, as bars if a person is
watching and as log lines if not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from query_service.listeners import StorePartition

log = structlog.get_logger(__name__)

LOG_INTERVAL_S = 10.0
BAR_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class RestoreStatus:
    """Where a restore is.

    Attributes:
        where: what is restored.
        records: how many records so far.
        done: offsets passed so far; there are fewer records than offsets.
        remaining: offsets up to the end that the log had at the start.
        records_per_s: since the last status, or the start.
        eta_s: seconds until the end at the same speed, None while nothing moves.

    """

    where: StorePartition
    records: int
    done: int
    remaining: int
    records_per_s: float
    eta_s: float | None


@dataclass(slots=True)
class _Restore:
    start: int
    end: int
    records: int
    said_at_s: float
    said_offset: int
    said_records: int


class RestoreProgress:
    """Says of each restore where it is, at most every `interval_s`, and nothing of those that take less.

    Times are seconds of any one clock.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._restores: dict[StorePartition, _Restore] = {}

    def start(self, where: StorePartition, start_offset: int, end_offset: int, now_s: float) -> None:
        """Take the start of a restore."""
        self._restores[where] = _Restore(start_offset, end_offset, 0, now_s, start_offset, 0)

    def batch(self, where: StorePartition, offset: int, records: int, now_s: float) -> RestoreStatus | None:
        """Take a batch; return where the restore is if it is time to say so."""
        restore = self._restores.get(where)
        if restore is None:
            return None
        restore.records += records
        elapsed_s = now_s - restore.said_at_s
        if elapsed_s < self._interval_s:
            return None
        remaining = max(0, restore.end - offset)
        passed = offset - restore.said_offset
        status = RestoreStatus(
            where,
            restore.records,
            offset - restore.start,
            remaining,
            (restore.records - restore.said_records) / elapsed_s,
            remaining * elapsed_s / passed if passed > 0 else None,
        )
        restore.said_at_s, restore.said_offset, restore.said_records = now_s, offset, restore.records
        return status

    def end(self, where: StorePartition) -> None:
        """Take the end of a restore, reached or not."""
        self._restores.pop(where, None)


class Display(Protocol):
    """Where progress is shown."""

    def show(self, status: RestoreStatus) -> None:
        """Show where a restore is."""

    def end(self, where: StorePartition) -> None:
        """Show a restore no longer, if it was shown."""


class LogDisplay:
    """Writes a line each time."""

    def show(self, status: RestoreStatus) -> None:
        """Write a line."""
        log.info(
            "restore goes on",
            store=status.where.store,
            partition=status.where.partition,
            records=status.records,
            remaining=status.remaining,
            records_per_s=round(status.records_per_s),
            eta_s=None if status.eta_s is None else round(status.eta_s),
        )

    def end(self, where: StorePartition) -> None:
        """Leave the end to the log of restores."""


class BarDisplay:
    """Shows a bar each on a terminal; there is nothing on it while nothing takes long."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: dict[StorePartition, TaskID] = {}
        self._progress: Progress | None = None

    def show(self, status: RestoreStatus) -> None:
        """Draw a bar."""
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
                console=self._console,
                transient=True,
            )
            self._progress.start()
        bar = self._bars.get(status.where)
        if bar is None:
            name = f"{status.where.store}[{status.where.partition}]".replace("[", r"\[")
            bar = self._bars[status.where] = self._progress.add_task(f"restoring {name}", text="")
        eta = "" if status.eta_s is None else f", {round(status.eta_s)} s to go"
        self._progress.update(
            bar,
            total=status.done + status.remaining,
            completed=status.done,
            text=f"{status.records:,} records, {round(status.records_per_s):,}/s{eta}",
            refresh=True,
        )

    def end(self, where: StorePartition) -> None:
        """Remove a bar, and with the last one everything."""
        bar = self._bars.pop(where, None)
        if bar is None or self._progress is None:
            return
        self._progress.remove_task(bar)
        if not self._bars:
            self._progress.stop()
            self._progress = None


class ProgressListener:
    """The built-in listener that shows how long restores go on."""

    def __init__(self, progress: RestoreProgress, display: Display, clock: Callable[[], float]) -> None:
        self._progress, self._display, self._clock = progress, display, clock

    def on_restore_start(self, where: StorePartition, start_offset: int, end_offset: int, *, full: bool) -> None:  # noqa: ARG002 - takes what a listener is given
        """Take a beginning."""
        self._progress.start(where, start_offset, end_offset, self._clock())

    def on_batch_restored(self, where: StorePartition, batch_end_offset: int, records: int) -> None:
        """Take a batch."""
        status = self._progress.batch(where, batch_end_offset, records, self._clock())
        if status is not None:
            self._display.show(status)

    def on_restore_end(self, where: StorePartition, total: int) -> None:  # noqa: ARG002 - as above
        """Take the end."""
        self._progress.end(where)
        self._display.end(where)

    def on_restore_suspended(self, where: StorePartition, total: int) -> None:
        """Take an end before the end of the log."""
        self.on_restore_end(where, total)


def progress_listener() -> ProgressListener:
    """Return the listener for this process: bars if stderr is a terminal, else lines."""
    if sys.stderr.isatty():
        return ProgressListener(RestoreProgress(BAR_INTERVAL_S), BarDisplay(Console(stderr=True)), time.monotonic)
    return ProgressListener(RestoreProgress(LOG_INTERVAL_S), LogDisplay(), time.monotonic)
