"""Measures how slow a flood makes well-behaved callers: `python -m bench.floods`.

There are two fleets of one node and one router, each with a proxy. Callers look keys up through the first one's
router at a steady rate. At the same time, flooders with half a core flood the first fleet or, for comparison, the
second: then they take as much of the machine from everybody, and nothing of the fleet that is measured. With one node
no standby hides what a flood does to it. Bounds are the defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench.cores import CoresLimit
from bench.failure import BenchFailure
from bench.floods.flooder import FULL
from bench.generator import running
from bench.records import create_topic, produce
from bench.reporting import carried_out, say
from bench.shape import Shape, Side
from bench.sides.ours import STORE, Fleet
from bench.sides.servers import ROOT
from statehouse.local.kafka import EmbeddedKafka

_SHAPE: Final = Shape(keys=10_000, partitions=2, nodes=1)
_RATE: Final = 300
_WARM_UP_S: Final = 3.0
_SHORTEST_S: Final = 10.0
_LONGEST_S: Final = 300.0
_LOOKUP_MS: Final = 5_000
_TARGETS: Final = ("router", "node")


@dataclass(frozen=True, slots=True)
class Beside:
    """What well-behaved callers had during a flood."""

    p99_ms: float
    lookups: int
    failed: int


def main() -> int:
    """Measure, report progress, print a table; the exit code is 1 if it failed, 130 if it was interrupted."""
    options = _parser().parse_args()
    return carried_out(lambda: _carry_out(options))


def _carry_out(options: argparse.Namespace) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="bench-floods-") as name,
        EmbeddedKafka(Path(name) / "broker") as broker,
        ExitStack() as running_fleets,
    ):
        here, elsewhere = (
            running_fleets.enter_context(_fleet(broker.bootstrap, Path(name) / each, each))
            for each in ("here", "elsewhere")
        )
        limit = running_fleets.enter_context(closing(CoresLimit(f"floods-{os.getpid()}")))
        rows = []
        for kind in options.kinds:
            for target in _TARGETS:
                found: dict[Fleet, list[Beside]] = {here: [], elsewhere: []}
                for number in range(options.rounds):
                    # They take turns to be first.
                    for flooded in (here, elsewhere)[:: -1 if number % 2 else 1]:
                        found[flooded].append(_beside(here, flooded, target, kind, limit))
                        side = "here" if flooded is here else "elsewhere"
                        say(f"{kind} of the {target}, {side}: {found[flooded][-1]}")
                rows.append(_row(kind, target, found[here], found[elsewhere]))
        sys.stdout.write("\n".join([*_HEADER, *rows, ""]))


@contextmanager
def _fleet(bootstrap: str, directory: Path, name: str) -> Iterator[Fleet]:
    topic = f"floods-{name}"
    create_topic(bootstrap, topic, _SHAPE.partitions, {"cleanup.policy": "compact"})
    produce(bootstrap, topic, _SHAPE.partitions, range(_SHAPE.keys))
    fleet = Fleet(Side.OURS, bootstrap, _SHAPE, directory, topic)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


def _beside(measured: Fleet, flooded: Fleet, target: str, kind: str, limit: CoresLimit) -> Beside:
    address = flooded.router_target if target == "router" else flooded.target(flooded.node_names[0])
    flooder = [sys.executable, "-m", "bench.floods.flooder", kind, address, STORE, str(FULL[kind]), f"{_SHORTEST_S:g}"]
    options = {**measured.anywhere(), "keys": _SHAPE.keys, "rate": _RATE, "timeout_ms": _LOOKUP_MS}
    with running({**options, "warmup_s": _WARM_UP_S, "duration_s": _LONGEST_S}) as load:
        time.sleep(_WARM_UP_S)
        began_at = time.monotonic()
        while time.monotonic() < began_at + _SHORTEST_S:
            _flood([*limit.prefix, *flooder])
        report = load.end()
    return Beside(report["latency_us"]["ok"]["p99"] / 1_000, report["lookups"]["total"], report["lookups"]["failed"])


def _flood(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=_LONGEST_S)
    if done.returncode != 0:
        raise BenchFailure(f"the flooder ended with {done.returncode}: {done.stderr[-2000:]}")
    say(f"outcomes of the flood: {json.loads(done.stdout)}")


_HEADER: Final = (
    "| flood | of | p99 beside it, ms | p99 beside the same elsewhere, ms | failed beside it | failed, elsewhere |",
    "|---|---|---|---|---|---|",
)


def _row(kind: str, target: str, here: Sequence[Beside], elsewhere: Sequence[Beside]) -> str:
    p99s = " | ".join(f"{median(each.p99_ms for each in side):.1f}" for side in (here, elsewhere))
    failed = " | ".join(
        f"{sum(each.failed for each in side)} of {sum(each.lookups for each in side):,}" for side in (here, elsewhere)
    )
    return f"| {kind.replace('_', ' ')} | {target} | {p99s} | {failed} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.floods", description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=FULL, default=list(FULL), help="which floods (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which medians are printed (default: 3)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
