"""Measures what readers of the live page cost lookups, and how a large fleet opens: `python -m bench.page`.

One fleet of two nodes and a router serves lookups at a steady rate. In turns nobody reads the page, or ten HTTP
clients follow its streams, each another page. Then the pages of a simulated fleet of 10,000 partitions and 200 nodes
are opened.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import httpx

from bench.failure import BenchFailure
from bench.generator import running
from bench.page.simulated_fleet import FleetSize, simulated_fleet_process
from bench.page.web_process import web_process
from bench.records import create_topic, produce
from bench.reporting import carried_out, say
from bench.shape import Shape, Side
from bench.sides.ours import Fleet
from bench.sides.servers import ROOT
from bench.waiting import wait_for
from statehouse.local.kafka import EmbeddedKafka

_SHAPE: Final = Shape(keys=10_000, partitions=8, nodes=2)
_RATE: Final = 500
_WARM_UP_S: Final = 3.0
_FOLLOWED: Final = (
    "fleet",
    "map",
    "heat",
    "heat?of=lag",
    "heat?of=role",
    "nodes",
    "restores",
    "queries",
    "routing",
    "changelogs",
)
"""Ten streams, no two of which are one page."""
_LARGE: Final = FleetSize(10_000, 200)
_OPENED: Final = ("", "map", "heat", "heat?of=lag", "heat?of=role", "nodes", "restores", "stores", "changelogs")
_OPENINGS: Final = 5
_COLUMNS: Final = 30
"""So much past a heat map has when it is opened."""


def main() -> int:
    """Measure, report progress, print tables; the exit code is 1 if it failed, 130 if it was interrupted."""
    options = _parser().parse_args()
    return carried_out(lambda: _carry_out(options))


def _carry_out(options: argparse.Namespace) -> None:
    if "readers" in options.what:
        _readers(options.rounds, options.seconds)
    if "large" in options.what:
        _large()


def _readers(rounds: int, seconds: float) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="bench-page-") as name,
        EmbeddedKafka(Path(name) / "broker") as broker,
        _fleet(broker.bootstrap, Path(name) / "fleet") as fleet,
        web_process(fleet.router_target) as base,
    ):
        _wait_for_columns(base, 1)
        p99s: dict[int, list[float]] = {0: [], len(_FOLLOWED): []}
        for number in range(rounds):
            for readers in list(p99s)[:: -1 if number % 2 else 1]:
                with _following(base, _FOLLOWED[:readers]):
                    p99s[readers].append(_p99_ms(fleet, seconds))
                say(f"round {number + 1}, {readers} readers: p99 {p99s[readers][-1]:.2f} ms")
        without, beside = (median(p99s[readers]) for readers in p99s)
        ratios = [many / none for none, many in zip(*p99s.values(), strict=True)]
        sys.stdout.write(
            f"| readers | p99 of lookups, ms, median of {rounds} |\n|---|---|\n"
            f"| 0 | {without:.2f} |\n| {len(_FOLLOWED)} | {beside:.2f} |\n\n"
            f"The median of the rounds' ratios is {median(ratios):.3f}.\n"
        )


@contextlib.contextmanager
def _fleet(bootstrap: str, directory: Path) -> Iterator[Fleet]:
    create_topic(bootstrap, "page", _SHAPE.partitions, {"cleanup.policy": "compact"})
    produce(bootstrap, "page", _SHAPE.partitions, range(_SHAPE.keys))
    fleet = Fleet(Side.OURS, bootstrap, _SHAPE, directory, "page")
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


def _p99_ms(fleet: Fleet, seconds: float) -> float:
    options = {**fleet.anywhere(), "keys": _SHAPE.keys, "rate": _RATE, "timeout_ms": 5_000}
    with running({**options, "warmup_s": _WARM_UP_S, "duration_s": seconds}) as load:
        report = load.report()
    return float(report["latency_us"]["ok"]["p99"]) / 1_000


@contextlib.contextmanager
def _following(base: str, paths: Sequence[str]) -> Iterator[None]:
    """Follow streams meanwhile, in a process of its own."""
    command = [sys.executable, "-m", "bench.page.reader", base, *paths]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        try:
            if process.stdout.readline().strip() != "follows":
                raise BenchFailure("the readers have ended; their own message says why")
            yield
        finally:
            process.terminate()


def _large() -> None:
    with simulated_fleet_process(_LARGE) as target, web_process(target) as base:
        _wait_for_columns(base, _COLUMNS)
        rows = []
        for path in _OPENED:
            took_s, size = zip(*(_opened(f"{base}/{path}") for _ in range(_OPENINGS)), strict=True)
            rows.append(f"| /{path} | {median(took_s):.2f} | {max(took_s):.2f} | {max(size) / 1_024:.0f} |")
        sys.stdout.write(
            f"\n{_LARGE.partitions:,} partitions on {_LARGE.nodes} nodes:\n\n"
            "| page | opens in, s, median | most | KiB |\n|---|---|---|---|\n" + "\n".join([*rows, ""])
        )


def _opened(url: str) -> tuple[float, int]:
    began_at = time.monotonic()
    answer = httpx.get(url, timeout=60.0).raise_for_status()
    return time.monotonic() - began_at, len(answer.content)


def _wait_for_columns(base: str, count: int) -> None:
    def has_columns() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return len(httpx.get(f"{base}/heat.json", timeout=60.0).json()["page"]["times_ms"]) >= count
        return False

    wait_for(has_columns, 300.0, "the page to know the fleet")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("what", nargs="*", default=["readers", "large"], help="readers, large (default: both)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which medians are printed (default: 3)")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of each measurement (default: 60)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
