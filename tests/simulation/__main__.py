"""`python -m tests.simulation`: replay one seed with its trace, or run many."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.run import Outcome, run_seed

_TRACE_LINES = 120
_CHUNK = 10


def main() -> int:
    """Run what the command line says; 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="replay one seed; prints the end of its trace if it fails")
    what.add_argument("--seeds", metavar="FIRST-LAST", help="run all of these")
    parser.add_argument("--trace", action="store_true", help="with --seed: print the whole trace")
    parser.add_argument("--jobs", type=int, default=2, help="processes to run seeds in (default: 2)")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _replay(arguments.seed, whole=arguments.trace)
    first, _, last = arguments.seeds.partition("-")
    return _run_many(range(int(first), int(last or first) + 1), arguments.jobs)


def _replay(seed: int, *, whole: bool) -> int:
    outcome = run_seed(seed, is_traced=True)
    print("\n".join(outcome.trace if whole else outcome.trace[-_TRACE_LINES:] if outcome.violation else ()))
    _print_figures(outcome.counts)
    print(f"seed {seed}: {outcome.violation or 'clean'}; {outcome.simulated_s:.0f} s in {outcome.took_s:.2f} s")
    return 1 if outcome.violation else 0


def outcomes(seeds: range, jobs: int) -> Iterator[Outcome]:
    """Run seeds in several processes; outcomes come in the seeds' order."""
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run_seed, seeds, chunksize=_CHUNK)


def _run_many(seeds: range, jobs: int) -> int:
    started, counts, failed = time.monotonic(), Counter[str](), []
    for number, outcome in enumerate(outcomes(seeds, jobs), 1):
        counts.update(outcome.counts)
        counts["simulated seconds"] += int(outcome.simulated_s)
        if outcome.violation:
            failed.append(outcome)
            print(f"seed {outcome.seed}: {outcome.violation}", flush=True)
        if number % 100 == 0:
            print(f"{number} of {len(seeds)} seeds, {number / (time.monotonic() - started):.1f}/s", flush=True)
    took_s = time.monotonic() - started
    _print_figures(counts)
    print(f"{len(seeds)} seeds in {took_s:.0f} s ({len(seeds) / took_s:.1f}/s), {len(failed)} failed")
    for outcome in failed[:10]:
        print(f"replay: python -m tests.simulation --seed {outcome.seed} --trace")
    return 1 if failed else 0


def _print_figures(counts: Counter[str]) -> None:
    for name, count in sorted(counts.items()):
        print(f"{count:>10}  {name}")


if __name__ == "__main__":
    sys.exit(main())
