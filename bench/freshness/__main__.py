"""How old an event is when the changelog shows it: `python -m bench.freshness [--against COMMIT]`.

Only a broker and Spark run. Events come at steady rates, and a reader that reads committed records notes when each of
them shows. In addition to the applications, Spark's own query from Kafka to Kafka runs: it shows what a batch takes at
least. With `--against`, another commit of this repository is measured in turn with this one; with `--conf`, this one
with other settings of Spark.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from itertools import product
from pathlib import Path

from bench.freshness.comparison import Results, order, table, trees_of
from bench.freshness.floor import SETTINGS
from bench.freshness.play import PARTITIONS, PROGRAMS, play
from bench.machine import Watch, describe
from bench.reporting import carried_out, say
from processor.settings import ProcessorSettings


def main() -> int:
    """Measure, and print a table; the exit code is 1 if a play failed, 130 if it was interrupted."""
    options = _parser().parse_args()
    return carried_out(lambda: _carry_out(options))


def _carry_out(options: argparse.Namespace) -> None:
    results: Results = defaultdict(list)
    watch = Watch()
    _measure(options, results)
    say("\n".join(table(results)))
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
    commit_ms = ProcessorSettings(bootstrap="unused:1").commit_interval_ms
    say(f"{PARTITIONS} partitions; applications: commit_interval_ms {commit_ms}, exactly once; floor: {SETTINGS}")
    scratch = tempfile.TemporaryDirectory(prefix="freshness-")
    with trees_of(options.against, options.conf) as trees, scratch as directory:
        for number, rate in product(range(1, options.rounds + 1), options.rates):
            for place, (program, tree) in enumerate(order(options.programs, trees, number)):
                where = Path(directory) / f"{number}-{rate:g}-{place}"
                root, conf = trees[tree]
                found = play(where, program, root, rate, options.warm_up, options.seconds, conf)
                results[program, tree, rate].append(found)
                say(
                    f"round {number}, {rate:g}/s, {program}, {tree}: p50 {found.p50_ms:.0f} ms, "
                    f"p99 {found.p99_ms:.0f} ms, batch {found.batch_ms:.0f} ms, processors {found.cpu_s_per_s:.2f}"
                )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.freshness", description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", help="another commit to measure in turn with this tree")
    parser.add_argument(
        "--conf",
        metavar="SETTINGS",
        action="append",
        default=[],
        help='measure this tree also with settings of Spark: "spark.name=value; spark.name=value" (repeatable)',
    )
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
