"""What moments cost those that write, follow and read: `python -m bench.moments`.

Both ways take turns, and each turn is compared with those beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.machine import Watch, describe
from bench.moments.compared import Compared, Turn, compared
from bench.moments.following import followed
from bench.moments.reading import read
from bench.moments.sink import BATCH, WARM_UP, fill, processed
from bench.reporting import carried_out, say
from statehouse.local.kafka import EmbeddedKafka

_BROKER_HEAP_MB: Final = 1024
_TOPIC: Final = "moments"
SINK, FOLLOW, READ = "sink", "follow", "read"
_BARS: Final = {SINK: 3.0, FOLLOW: 5.0, READ: 20.0}
"""What each may cost more, percent."""
_HEAD: Final = ("| what | without | with | more (middle half) | bar |", "|---|---|---|---|---|")


def main() -> int:
    """Measure, and print a table; the exit code is 1 if it failed, 130 if it was interrupted."""
    options = _parser().parse_args()
    return carried_out(lambda: _carry_out(options))


def _carry_out(options: argparse.Namespace) -> None:
    watch = Watch()
    runs: dict[tuple[str, str], Sequence[Sequence[Turn]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-moments-", dir=options.directory) as directory:
        if SINK in options.parts:
            runs |= _sink(Path(directory), options.rounds, options.batches)
        if FOLLOW in options.parts:
            say(f"following, {options.turns} turns of {options.followed} batches")
            with EmbeddedKafka(Path(directory) / "followed", heap_mb=_BROKER_HEAP_MB) as broker:
                costs = followed(broker.bootstrap, Path(directory) / "node", options.turns, options.followed)
            runs[FOLLOW, "processor µs a record"] = [costs]
        if READ in options.parts:
            say(f"reading, {options.turns} turns of each call")
            with EmbeddedKafka(Path(directory) / "broker-read", heap_mb=_BROKER_HEAP_MB) as broker:
                of_calls = read(broker, Path(directory), options.turns)
            runs |= {(READ, f"{call}, processor µs"): [turns] for call, turns in of_calls.items()}
    results = {name: compared(turns) for name, turns in runs.items()}
    say("\n".join(("", *_HEAD, *(_row(*name, found) for name, found in results.items()))))
    disturbance = watch.so_far()
    say(f"the machine: {disturbance}")
    if options.json is not None:
        content = {
            "machine": describe(),
            "disturbance": disturbance,
            "results": [
                {"what": name, **asdict(found), "runs": [[asdict(turn) for turn in run] for run in runs[name]]}
                for name, found in results.items()
            ],
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _sink(directory: Path, rounds: int, batches: int) -> dict[tuple[str, str], Sequence[Sequence[Turn]]]:
    say(f"the sink: {rounds} runs of {batches} batches of {BATCH} records, the first {WARM_UP} don't count")
    with EmbeddedKafka(directory / "broker", heap_mb=_BROKER_HEAP_MB) as broker:
        fill(broker.bootstrap, _TOPIC, batches)
        costs = []
        for number in range(rounds):
            say(f"run {number + 1}: the header is in {'odd' if number % 2 else 'even'} batches")
            where = directory / f"run-{number}"
            where.mkdir()
            costs.append(processed(broker, where, f"{_TOPIC}", batches, number % 2))
    return {
        (SINK, "µs a record"): [each.wall_us for each in costs],
        (SINK, "processor µs a record"): [each.processor_us for each in costs],
    }


def _row(part: str, unit: str, found: Compared) -> str:
    return f"| {part}, {unit} | {found.without:.2f} | {found.with_it:.2f} | {found} | {_BARS[part]:g} % |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.moments", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(_BARS), default=list(_BARS), help="default: all")
    parser.add_argument("--rounds", type=int, default=2, help="runs of Spark (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=19, help="batches of each (default: %(default)s)")
    parser.add_argument(
        "--turns", type=int, default=9, help="turns of following, and of each call (default: %(default)s)"
    )
    parser.add_argument("--followed", type=int, default=20, help="batches of each turn (default: %(default)s)")
    parser.add_argument("--directory", type=Path, help="where data and logs go (default: the system's temporary one)")
    parser.add_argument("--json", type=Path, help="file for every figure of every turn")
    return parser


if __name__ == "__main__":
    sys.exit(main())
