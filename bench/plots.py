"""The figures as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl

from bench.measure import METRICS
from bench.shape import Side
from bench.summary import Line

mpl.use("Agg")
from matplotlib import pyplot as plt

PLOTTED: Final = ("lookups_per_s", "cpu_s_per_100k", "p99_ms", "records_per_s", "pss_mib")
_COLOURS: Final = {
    Side.OURS: "#1f5fa8",
    Side.OURS_GRPCIO: "#8fb3d9",
    Side.OURS_TLS: "#3d8f5f",
    Side.OURS_BEFORE: "#5fb0c4",
    Side.OURS_FOLLOWING: "#4a3d8f",
    Side.PEER: "#d97a1d",
    Side.PEER_DIRECT: "#8f4a0b",
    Side.PEER_UNCACHED: "#e8b98a",
    Side.REDIS: "#a41e11",
    Side.REDIS_SNAPSHOTS: "#d98880",
    Side.FLOOR: "#8a8a8a",
}


def plot(lines: Sequence[Line], directory: Path, stem: str) -> list[Path]:
    """Draw a picture for each of PLOTTED that was measured; return the files."""
    return [
        _dots(metric, found, directory / f"{stem}-{metric.replace('_', '-')}.png")
        for metric in PLOTTED
        if (found := [line for line in lines if line.metric == metric])
    ]


def _dots(metric: str, lines: Sequence[Line], path: Path) -> Path:
    """Draw medians as dots, with lines from the least to the most: on a logarithmic axis bars would have no foot."""
    sides = [side for side in Side if any(side in line.sides for line in lines)]
    step = 0.7 / len(sides)
    figure, axes = plt.subplots(figsize=(11, 1.6 + 0.22 * len(lines) * len(sides)), layout="constrained")
    for nth, side in enumerate(sides):
        found = [(at + nth * step, line.sides[side]) for at, line in enumerate(lines) if side in line.sides]
        medians = [spread.median for _, spread in found]
        spreads = [[s.median - s.least for _, s in found], [s.most - s.median for _, s in found]]
        places = [at for at, _ in found]
        axes.errorbar(medians, places, xerr=spreads, fmt="o", color=_COLOURS[side], label=str(side))
    axes.set_yticks([at + step * (len(sides) - 1) / 2 for at in range(len(lines))], [_name(line) for line in lines])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.grid(axis="x", alpha=0.4)
    axes.set_xlabel(f"{METRICS[metric].unit} ({METRICS[metric].better} is better)")
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _name(line: Line) -> str:
    return f"{line.plan}: {line.work}"
