"""Source trees that are measured in turn, and the table of the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from bench.failure import BenchFailure
from bench.freshness.play import Figures
from bench.sides.servers import ROOT
from bench.trees import tree_of

NOW: Final = "now"
"""The name of this tree."""

Results = dict[tuple[str, str, float], list[Figures]]
"""By program, tree and rate."""
Trees = Mapping[str, tuple[Path, Mapping[str, str]]]
"""By name: a folder with our code, and settings of Spark. The first is what the others are compared with."""


@contextmanager
def trees_of(against: str | None, confs: Sequence[str]) -> Iterator[Trees]:
    """Give the source trees: another commit's in a folder of its own, this one, and this one with other settings."""
    ours: Trees = {NOW: (ROOT, {})} | {f"{NOW}, {conf}": (ROOT, spark_settings(conf)) for conf in confs}
    if against is None:
        yield ours
        return
    with tree_of(against) as tree:
        yield {against: (tree, {}), **ours}


def spark_settings(conf: str) -> Mapping[str, str]:
    """Read settings of Spark: "spark.name=value; spark.name=value".

    Raises:
        BenchFailure: it says something else.

    """
    pairs = [each.strip().partition("=") for each in conf.split(";")]
    if not all(name.startswith("spark.") and sign for name, sign, _ in pairs):
        raise BenchFailure(f'"{conf}" isn\'t "spark.name=value; spark.name=value"')
    return {name: value for name, _, value in pairs}


def order(programs: Sequence[str], trees: Trees, number: int) -> Iterator[tuple[str, str]]:
    """Yield what is played in a round; the trees take turns to be first. The floor is Spark's, and has one tree."""
    for program in programs:
        names = [NOW] if program == "floor" else list(trees)[:: 1 if number % 2 else -1]
        yield from ((program, name) for name in names)


def table(results: Results) -> Iterator[str]:
    """Yield the lines of a table of medians; ratios are to the first tree, and to the floor, of the same round."""
    compared_by = ("p50_ms", "p99_ms", "batch_ms")
    yield "| program | tree | events/s | p50 ms | p99 ms | batch ms | p50, p99, batch to the first | and to the floor |"
    yield "|---|---|---|---|---|---|---|---|"
    first: dict[tuple[str, float], list[Figures]] = {}
    for (program, tree, rate), rounds in results.items():
        floor = results.get(("floor", NOW, rate), []) if program != "floor" else []
        compared = first.setdefault((program, rate), rounds)
        others = [] if compared is rounds else compared
        to_first, to_floor = (
            ", ".join(_ratio(rounds, theirs, name) for name in compared_by) for theirs in (others, floor)
        )
        p50, p99, batch = (median(getattr(each, name) for each in rounds) for name in compared_by)
        shown = f"| {program} | {tree} | {rate:g} | {p50:.0f} | {p99:.0f} | {batch:.0f}"
        yield f"{shown} | {to_first} | {to_floor} |"


def _ratio(ours: Sequence[Figures], theirs: Sequence[Figures], name: str) -> str:
    """Return the median of the rounds' ratios of a figure."""
    if not theirs:
        return "-"
    return f"{median(getattr(one, name) / getattr(other, name) for one, other in zip(ours, theirs, strict=True)):.2f}"
