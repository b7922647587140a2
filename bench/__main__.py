"""Runs the benchmarks: `python -m bench quick`."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.failure import BenchFailure
from bench.machine import Watch
from bench.reporting import carried_out, say
from bench.results import publish, write
from bench.run import Run
from bench.shape import Plan, Side, slug
from bench.sides.servers import ROOT
from bench.sizes import SIZES, compared, named, of_sides, secured
from bench.trees import build_program, tree_of
from statehouse.local.kafka import EmbeddedKafka

_BROKER: Final = {
    # Kafka's default. Without it the first instance of the peer gets all tasks, and the second none for ten minutes.
    "group.initial.rebalance.delay.ms": "3000",
}
_BROKER_HEAP_MB: Final = 1024


def main() -> int:
    """Run, report progress, write the results; the exit code is 1 if the run failed, 130 if it was interrupted."""
    options = _parser().parse_args()
    return carried_out(lambda: _carry_out(options))


def _carry_out(options: argparse.Namespace) -> None:
    plans = [replace(plan, rounds=options.rounds or plan.rounds) for plan in _chosen(options)]
    name = f"{options.size}-tls" if options.tls else options.size
    name = name if options.plan is None else f"{name}-{slug(options.plan)}"
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    say(f"logs and data go to {directory}, and stay there if something fails")
    began_at, watch = datetime.now(UTC), Watch()
    with (
        EmbeddedKafka(directory / "broker", heap_mb=_BROKER_HEAP_MB, config=_BROKER) as broker,
        nullcontext(ROOT) if options.against is None else tree_of(options.against) as before,
    ):
        if before != ROOT:
            build_program(before)
        run = Run(broker.bootstrap, directory, "bench", say, before)
        run.play(plans)
    shutil.rmtree(directory)
    command = f"python -m bench {shlex.join(sys.argv[1:])}"
    files = write(options.results, f"{began_at:%Y-%m-%d-%H%M}-{name}", command, plans, run, watch)
    if options.page is not None:
        publish(options.page, files)
    say(f"results: {', '.join(map(str, files))}")


def _chosen(options: argparse.Namespace) -> list[Plan]:
    of_size: Sequence[Plan] = SIZES[options.size]
    if options.tls:
        of_size = secured(of_size)
    elif options.against is not None:
        of_size = compared(of_size)
    plans = named(of_size, options.plan)
    if not plans:
        known = ", ".join(plan.name for plan in of_size)
        raise BenchFailure(f"{options.size} has no plan {options.plan!r}; it has {known}")
    return plans if options.sides is None else of_sides(plans, options.sides)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument(
        "--plan",
        help="only this plan, such as Processing, or this family, such as Growth (default: all)",
    )
    parser.add_argument("--rounds", type=int, help="rounds of each plan (default: as the plan says)")
    parser.add_argument("--sides", nargs="+", type=Side, choices=list(Side), help="only these (default: all of a plan)")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", help="where results are written")
    parser.add_argument("--page", type=Path, help="a Markdown page to link these results from")
    parser.add_argument("--directory", type=Path, help="where data and logs go (default: the system's temporary one)")
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--against", metavar="COMMIT", help="only plans with Spark, with another commit in them")
    others.add_argument("--tls", action="store_true", help="only our lookups: plain, and with TLS and rules")
    return parser


if __name__ == "__main__":
    sys.exit(main())
