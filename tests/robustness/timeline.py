"""A run as a picture: availability, latency, staleness, epochs and faults over one axis of time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from tests.robustness.figures import percentile, span
from tests.robustness.history import History, LookupRecord

_BIN_S: Final = 1.0
# The same history gives the same file: names of parts are derived from a fixed salt, and there is no date in it.
_STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "statehouse",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.grid": True,
}
_ACTIVE, _STANDBY, _FAILED, _FAULT, _MAX = "#4477aa", "#66ccee", "#ee6677", "#ccbb44", "#bbbbbb"


def draw(history: History, title: str, path: Path) -> None:
    """Write the picture of a run as SVG."""
    first, last = span(history)
    bins = _binned(history.lookups, first, last)
    times = [number * _BIN_S for number in range(len(bins))]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 8), layout="constrained")
        axes: Any = figure.subplots(5, sharex=True, height_ratios=(3, 3, 2, 2, 2))
        figure.suptitle(title)
        _draw_availability(axes[0], times, bins)
        _draw_latency(axes[1], times, bins)
        staleness = [max((lookup.staleness_ms or 0 for lookup in each), default=0) for each in bins]
        axes[2].step(times, staleness, where="post", color=_ACTIVE)
        axes[2].set_ylabel("largest\nstaleness (ms)")
        _draw_epochs(axes[3], history, first, last)
        _draw_faults(axes, history, first)
        axes[-1].set_xlabel("seconds")
        axes[-1].set_xlim(0, max(last - first, _BIN_S))
        figure.savefig(path, format="svg", metadata={"Date": None})


def _binned(lookups: Sequence[LookupRecord], first: float, last: float) -> list[list[LookupRecord]]:
    """Sort lookups into bins by when they were due."""
    bins: list[list[LookupRecord]] = [[] for _ in range(int((last - first) / _BIN_S) + 1)]
    for lookup in lookups:
        bins[int((lookup.due_at - first) / _BIN_S)].append(lookup)
    return bins


def _draw_availability(axis: Any, times: list[float], bins: list[list[LookupRecord]]) -> None:
    def rate(is_counted: Callable[[LookupRecord], bool]) -> list[float]:
        return [sum(map(is_counted, each)) / _BIN_S for each in bins]

    axis.stackplot(
        times,
        rate(lambda lookup: lookup.role == "ACTIVE"),
        rate(lambda lookup: lookup.answered and lookup.role != "ACTIVE"),
        rate(lambda lookup: not lookup.answered),
        labels=("by the active", "by a standby", "failed"),
        colors=(_ACTIVE, _STANDBY, _FAILED),
        step="post",
    )
    axis.set_ylabel("lookups / s")
    axis.legend(loc="lower left", ncols=3)


def _draw_latency(axis: Any, times: list[float], bins: list[list[LookupRecord]]) -> None:
    latencies = [sorted(1000 * lookup.took_s for lookup in each if lookup.answered) for each in bins]
    for share, name, colour in ((1.0, "max", _MAX), (0.99, "p99", _FAILED), (0.5, "p50", _ACTIVE)):
        values = [percentile(each, share) if each else float("nan") for each in latencies]
        axis.step(times, values, where="post", label=name, color=colour, linewidth=1)
    axis.set_yscale("log")
    axis.set_ylabel("latency (ms)")
    axis.legend(loc="upper left", ncols=3)


def _draw_epochs(axis: Any, history: History, first: float, last: float) -> None:
    epochs = [(max(0.0, epoch.at - first), epoch.epoch) for epoch in history.epochs if epoch.at <= last]
    if epochs:
        at, numbers = zip(*epochs, (last - first, epochs[-1][1]), strict=True)
        axis.step(at, numbers, where="post", color=_ACTIVE)
    axis.set_ylabel("epoch")


def _draw_faults(axes: Sequence[Any], history: History, first: float) -> None:
    """Mark on every axis when a fault begins, and show on the last how long it lasts: a row for each kind."""
    rows: dict[str, int] = defaultdict(lambda: len(rows))
    for fault in history.faults:
        began_at, ended_at = fault.began_at - first, fault.ended_at - first
        for axis in axes[:-1]:
            axis.axvline(began_at, color=_FAULT, linestyle="--", linewidth=1)
        axes[-1].barh(rows[fault.kind], ended_at - began_at, left=began_at, color=_FAULT)
        axes[-1].text(began_at, rows[fault.kind], f" {fault.target}", va="center", clip_on=True)
    axes[-1].set_yticks(range(len(rows)), list(rows))
    axes[-1].invert_yaxis()
    axes[-1].grid(visible=False, axis="y")
