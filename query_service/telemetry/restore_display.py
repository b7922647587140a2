"""Shows the progress of long restores: as bars on a terminal, otherwise as log lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from query_service.telemetry.events import StorePartition
from query_service.telemetry.restore_progress import RestoreProgress, RestoreStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

log = structlog.get_logger(__name__)

LOG_INTERVAL_S = 10.0
BAR_INTERVAL_S = 0.5


class LogDisplay:
    """Writes a log line for each report."""

    def show(self, status: RestoreStatus) -> None:
        """Write a log line."""
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
        """Write nothing: `LogListener` logs the end."""


class BarDisplay:
    """Shows a bar per long restore on a terminal, and nothing while there is none."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: dict[StorePartition, TaskID] = {}
        self._progress: Progress | None = None

    def show(self, status: RestoreStatus) -> None:
        """Draw or update a bar."""
        if self._progress is None:
            from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - only a terminal needs it

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
        """Remove a bar. With the last bar the whole display goes."""
        bar = self._bars.pop(where, None)
        if bar is None or self._progress is None:
            return
        self._progress.remove_task(bar)
        if not self._bars:
            self._progress.stop()
            self._progress = None


class RestoreProgressListener:
    """The built-in listener that shows the progress of long restores."""

    def __init__(self, progress: RestoreProgress, display: LogDisplay | BarDisplay, clock: Callable[[], float]) -> None:
        self._progress, self._display, self._clock = progress, display, clock

    def on_restore_start(self, where: StorePartition, start_offset: int, end_offset: int, *, full: bool) -> None:  # noqa: ARG002 - the protocol has them
        """Note the start of a restore."""
        self._progress.start(where, start_offset, end_offset, self._clock())

    def on_batch_restored(self, where: StorePartition, batch_end_offset: int, records: int) -> None:
        """Note a batch, and show the progress if it is time to."""
        status = self._progress.batch(where, batch_end_offset, records, self._clock())
        if status is not None:
            self._display.show(status)

    def on_restore_end(self, where: StorePartition, total: int) -> None:  # noqa: ARG002 - as above
        """Stop showing the restore."""
        self._progress.end(where)
        self._display.end(where)

    def on_restore_suspended(self, where: StorePartition, total: int) -> None:
        """Stop showing the restore."""
        self.on_restore_end(where, total)


def progress_listener() -> RestoreProgressListener:
    """Return the listener for this process: it shows bars if stderr is a terminal, otherwise log lines."""
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 - as above

        return RestoreProgressListener(
            RestoreProgress(BAR_INTERVAL_S), BarDisplay(Console(stderr=True)), time.monotonic
        )
    return RestoreProgressListener(RestoreProgress(LOG_INTERVAL_S), LogDisplay(), time.monotonic)
