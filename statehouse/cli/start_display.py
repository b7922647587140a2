"""Shows the progress of a cluster on stderr: with a live line on a terminal, else by lines alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from statehouse.cli.output import note
from statehouse.cli.start_view import StartView
from statehouse.local.cluster_progress import ClusterProgress, OnProgress

_REDRAWS_PER_S = 8


@contextmanager
def shown_progress() -> Iterator[OnProgress]:
    """Return what takes a cluster's progress, from any thread; in this context it is shown."""
    is_live = sys.stderr.isatty()
    view, lock = StartView(is_live=is_live), Lock()

    def take(step: ClusterProgress) -> None:
        with lock:
            line = view.take(step, time.monotonic())
        if line is not None:
            note(line)

    if not is_live:
        yield take
        return
    live = _LiveLine(view)
    with Live(live, console=Console(stderr=True), refresh_per_second=_REDRAWS_PER_S, transient=True):
        yield take


class _LiveLine:
    """What rich draws again and again: what is under way, after something that turns."""

    def __init__(self, view: StartView) -> None:
        self._view = view
        self._spinner = Spinner("dots")

    def __rich__(self) -> RenderableType:
        said = self._view.live(time.monotonic())
        if not said:
            return Text("")
        turning = self._spinner.render(time.monotonic())
        assert isinstance(turning, Text)  # noqa: S101 - as long as it has no text of its own
        return Text.assemble(turning, " ", said, no_wrap=True, overflow="ellipsis")
