"""How old an event is when the changelog shows it: `python -m bench.freshness [--against COMMIT]`.

Only a broker and Spark run. Events come at steady rates, and a reader that reads committed records notes when each of
them shows. Beside the applications runs Spark's own query from Kafka to Kafka: what a batch takes at least. With
`--against`, another commit of this repository is measured in turn with this one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

from bench.failure import BenchFailure
from bench.freshness.play import PROGRAMS, Figures, play
from bench.machine import Watch, describe
from bench.reporting import carried_out, say
from bench.sides.servers import ROOT

_NOW: Final = "now"

Results = dict[tuple[str, str, float], list[Figures]]
"""By program, tree and rate."""


def main() -> int:
    """Measure, and print a table; the exit code is 1 if a play failed, 130 if it was interrupted."""
    options = _parser().parse_args()
    return carried_out(lambda: _carry_out(options))


def _carry_out(options: argparse.Namespace) -> None:
    results: Results = defaultdict(list)
    watch = Watch()
    _measure(options, results)
    say("\n".join(_table(results)))
    if options.json is not None:
        content = {
            "machine": describe(),
            "disturbance": watch.so_far(),
            "plays": [
                {"program": program, "tree": tree, "rate": rate, "rounds": [asdict(each) for each in rounds]}
                for (program, tree, rate), rounds in results.items()
            ],
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _measure(options: argparse.Namespace, results: Results) -> None:
    with _trees(options.against) as trees, tempfile.TemporaryDirectory(prefix="freshness-") as directory:
        for number, rate in product(range(1, options.rounds + 1), options.rates):
            for program, tree in _order(options.programs, trees, number):
                where = Path(directory) / f"{number}-{rate:g}-{program}-{tree}"
                found = play(where, program, trees[tree], rate, options.warm_up, options.seconds)
                results[program, tree, rate].append(found)
                say(
                    f"round {number}, {rate:g}/s, {program}, {tree}: p50 {found.p50_ms:.0f} ms, "
                    f"p99 {found.p99_ms:.0f} ms, batch {found.batch_ms:.0f} ms, processors {found.cpu_s_per_s:.2f}"
                )


def _order(programs: Sequence[str], trees: Mapping[str, Path], number: int) -> Iterator[tuple[str, str]]:
    """Yield what is played in a round; the trees take turns to be first. The floor is Spark's, and has one tree."""
    for program in programs:
        names = [_NOW] if program == "floor" else list(trees)[:: 1 if number % 2 else -1]
        yield from ((program, name) for name in names)


@contextmanager
def _trees(against: str | None) -> Iterator[Mapping[str, Path]]:
    """Give the source trees: this one, and another commit's in a folder of its own."""
    if against is None:
        yield {_NOW: ROOT}
        return
    with tempfile.TemporaryDirectory(prefix="freshness-tree-") as directory:
        archive = Path(directory) / "tree.tar"
        packed = subprocess.run(["git", "-C", str(ROOT), "archive", "-o", archive, against], check=False)
        if packed.returncode != 0:
            raise BenchFailure(f"git knows no commit {against}")
        subprocess.run(["tar", "-x", "-f", archive, "-C", directory], check=True)
        yield {against: Path(directory), _NOW: ROOT}


def _table(results: Results) -> Iterator[str]:
    """Yield the lines of a table of medians; ratios are to the other commit, and to the floor, of the same round."""
    yield "| program | tree | events/s | p50 ms | p99 ms | batch ms | p50, p99 to the other | batch to the floor |"
    yield "|---|---|---|---|---|---|---|---|"
    for (program, tree, rate), rounds in results.items():
        floor = results.get(("floor", _NOW, rate), []) if program != "floor" else []
        others = [] if tree != _NOW else _others(results, program, rate)
        to_other = ", ".join(_ratio(rounds, others, name) for name in ("p50_ms", "p99_ms"))
        p50, p99, batch = (median(getattr(each, name) for each in rounds) for name in ("p50_ms", "p99_ms", "batch_ms"))
        shown = f"| {program} | {tree} | {rate:g} | {p50:.0f} | {p99:.0f} | {batch:.0f}"
        yield f"{shown} | {to_other} | {_ratio(rounds, floor, 'batch_ms')} |"


def _others(results: Results, program: str, rate: float) -> Sequence[Figures]:
    """Return what the other commit's program did."""
    return next(
        (found for (name, tree, at), found in results.items() if (name, at) == (program, rate) and tree != _NOW), []
    )


def _ratio(ours: Sequence[Figures], theirs: Sequence[Figures], name: str) -> str:
    """Return the median of the rounds' ratios of a figure."""
    if not theirs:
        return "-"
    return f"{median(getattr(one, name) / getattr(other, name) for one, other in zip(ours, theirs, strict=True)):.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.freshness", description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", help="another commit to measure in turn with this tree")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="default: all")
    parser.add_argument(
        "--rates", nargs="+", type=float, default=[20.0, 200.0], help="events a second (default: 20 200)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds before it counts (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds that count (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for every figure of every round")
    return parser


if __name__ == "__main__":
    sys.exit(main())
