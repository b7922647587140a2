"""Compares what `statehouse size` calculates with a fleet that runs: three nodes, asked through a router and straight.

Prints, for each way, what was measured next to what is calculated for this machine's speed. `--speed` only measures
that, for `statehouse size --empty-call-us`. It takes five minutes of a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.data import VALUE_LENGTH, key_of
from bench.failure import BenchFailure
from bench.generator import running
from bench.records import create_topic, produce
from bench.reporting import carried_out, say
from bench.shape import Shape, Side
from bench.sides.floor import EmptyHandlers
from bench.sides.ours import Fleet
from bench.usage import Memory, cpu_seconds
from bench.waiting import wait_for
from statehouse.cli.sizing import AskedHosts, AskedLoad, Coefficients, Way, needs
from statehouse.local.kafka import EmbeddedKafka

_SHAPE: Final = Shape(keys=200_000, partitions=6, nodes=3)
_VALUE_BYTES: Final = 400
_RATES: Final = {Way.ROUTER: 500, Way.STRAIGHT: 1_600}
_KNOWN: Final = Coefficients()
_WITHIN: Final = 0.25
_MIB: Final = 2**20
# Just after a start lookups take half as much again: blocks aren't in the cache yet.
_WARM_UP_S: Final = 20.0
_CONCURRENCY: Final = 64


def main() -> int:
    """Measure, report progress, print a table; the exit code is 1 if it failed or a figure is too far off."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizing", description=__doc__)
    parser.add_argument("--speed", action="store_true", help="only measure this machine's speed")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each measurement (default: 15)")
    options = parser.parse_args()
    return carried_out(lambda: _carry_out(options.seconds, only_speed=options.speed))


def _carry_out(seconds: float, *, only_speed: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-sizing-") as directory:
        empty_us = _empty_call_us(Path(directory), seconds)
        say(
            f"an empty call takes {empty_us:.0f} us of processor time; {_KNOWN.empty_call_us:.0f} where it was measured"
        )
        if only_speed:
            return
        with EmbeddedKafka(Path(directory) / "kafka") as broker:
            rows = list(_rows(broker, Path(directory), empty_us / _KNOWN.empty_call_us, seconds))
    sys.stdout.write("| way | figure | measured | calculated | ratio |\n|---|---|---|---|---|\n")
    for way, name, found, calculated in rows:
        sys.stdout.write(f"| {way} | {name} | {found:.4g} | {calculated:.4g} | {calculated / found:.2f} |\n")
    if any(abs(calculated / found - 1) > _WITHIN for _, _, found, calculated in rows):
        raise BenchFailure(f"a figure is more than {_WITHIN:.0%} off")


def _rows(
    broker: EmbeddedKafka, directory: Path, speed: float, seconds: float
) -> Iterator[tuple[Way, str, float, float]]:
    say(f"writing {_SHAPE.keys} records with values of {_VALUE_BYTES} bytes")
    create_topic(broker.bootstrap, "sized", _SHAPE.partitions, {"cleanup.policy": "compact"})
    digits = random.Random(1)  # noqa: S311 - data
    produce(
        broker.bootstrap,
        "sized",
        _SHAPE.partitions,
        range(_SHAPE.keys),
        tail_of=lambda _number: digits.randbytes((_VALUE_BYTES - VALUE_LENGTH) // 2).hex().encode(),
    )
    fleet = Fleet(Side.OURS, broker.bootstrap, _SHAPE, directory, "sized")
    try:
        say("restoring them")
        fleet.start()
        for way, rate in _RATES.items():
            where = fleet.straight if way is Way.STRAIGHT else fleet.anywhere()
            _load({**where, "concurrency": _CONCURRENCY}, _WARM_UP_S)
            say(f"{rate} lookups a second, {way}")
            measured = _measured(fleet, {**where, "rate": rate}, seconds)
            load = AskedLoad(_SHAPE.keys, _VALUE_BYTES, rate, len(key_of(0)), partitions=_SHAPE.partitions, way=way)
            found = needs(load, _KNOWN, AskedHosts(speed=speed), _SHAPE.nodes, 1)
            calculated = (found.all_cores, found.all_memory_mib, found.all_disk_mib)
            names = ("processor time, cores", "memory, MiB", "disk, MiB")
            yield from ((way, *figures) for figures in zip(names, measured, calculated, strict=True))
    finally:
        fleet.stop()


def _measured(fleet: Fleet, load: Mapping[str, Any], seconds: float) -> tuple[float, float, float]:
    """Return processor time (cores), memory and disk (MiB) of all nodes and the router."""
    pids = [fleet.pids[name] for name in (*fleet.node_names, "router")]
    with running({**_options(load), "duration_s": seconds + 7}) as under_load:
        _pause(5.0)
        before, began_at = cpu_seconds(pids), time.monotonic()
        _pause(seconds)
        cores = (cpu_seconds(pids) - before) / (time.monotonic() - began_at)
        _require_passed(under_load.report())
    files = [path for name in fleet.node_names for path in fleet.state_dir(name).rglob("*") if path.is_file()]
    return cores, Memory.of(pids).pss / _MIB, sum(path.stat().st_size for path in files) / _MIB


def _load(load: Mapping[str, Any], seconds: float) -> None:
    with running({**_options(load), "duration_s": seconds}) as under_load:
        _require_passed(under_load.report())


def _options(load: Mapping[str, Any]) -> dict[str, Any]:
    return {**load, "keys": _SHAPE.keys, "tail": True, "timeout_ms": 5_000}


def _require_passed(report: Mapping[str, Any]) -> None:
    if not report["passed"]:
        raise BenchFailure(f"requests failed: {report['requests']['by_outcome']}, {report['errors'][:3]}")


def _empty_call_us(directory: Path, seconds: float) -> float:
    """Return the processor time of a call of an empty grpcio handler, 64 at the same time, in microseconds."""
    servers = EmptyHandlers("", Shape(keys=0, partitions=2, nodes=2), directory, "speed")
    try:
        servers.start()
        with running({**servers.straight, "concurrency": _CONCURRENCY, "duration_s": seconds + 7}) as under_load:
            _pause(5.0)
            before, began_at = cpu_seconds(servers.pids.values()), time.monotonic()
            _pause(seconds)
            spent, took_s = cpu_seconds(servers.pids.values()) - before, time.monotonic() - began_at
            return 1e6 * spent / (took_s * float(under_load.report()["lookups_per_s"]))
    finally:
        servers.stop()


def _pause(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() >= until, seconds + 10, f"{seconds:g} s to pass")


if __name__ == "__main__":
    sys.exit(main())
