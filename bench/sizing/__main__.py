"""Measures what `statehouse size` calculates with (`--measure`), and compares it with fleets that it wasn't fitted to.

`python -m bench.sizing` runs two fleets of different size and prints, for each, what was measured beside what is
calculated for this machine's speed. `--measure` runs two others first, fits the coefficients to these and writes them
(a file of your own with `--into`). `--speed` only measures this machine's speed, for `statehouse size --empty-call-us`.
It takes five minutes, and ten with `--measure`, of a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import datetime as dt
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.failure import BenchFailure
from bench.machine import Watch, describe
from bench.reporting import carried_out, say
from bench.sides.servers import ROOT
from bench.sizing.fit import as_toml, coefficients
from bench.sizing.fleets import Measured, MeasuredFleet, RunningFleet, broker, empty_call_us, running_fleet
from statehouse.cli.sizes import read_coefficients
from statehouse.cli.sizing import AskedHosts, Coefficients, FleetNeeds, Way, needs

_COEFFICIENTS: Final = ROOT / "statehouse" / "cli" / "sizing.toml"
_SMALL: Final = MeasuredFleet(keys=400_000, value_bytes=100, nodes=2, partitions=2)
_LARGE: Final = MeasuredFleet(keys=40_000, value_bytes=3_000, nodes=2, partitions=2)
_ROUTED_RATES: Final = (200, 800, 2_000)
_STRAIGHT_RATES: Final = (200, 1_000, 4_000)
_CHECKED: Final = (
    ("three nodes, through the router", MeasuredFleet(200_000, 400, nodes=3, partitions=6), 500, Way.ROUTER),
    ("four nodes, straight", MeasuredFleet(600_000, 150, nodes=4, partitions=8), 1_600, Way.STRAIGHT),
)
_WITHIN: Final = 0.25


def main() -> int:
    """Measure, report progress, print tables; the exit code is 1 if it failed or a figure is too far off."""
    options = _parser().parse_args()
    return carried_out(lambda: _carry_out(options))


def _carry_out(options: argparse.Namespace) -> None:
    if options.speed:
        say(f"an empty call takes {empty_call_us(options.seconds):.0f} us of processor time")
        return
    watch = Watch()
    with broker() as bootstrap:
        if options.measure:
            known = _fitted(bootstrap, options.seconds)
            options.into.write_text(as_toml(known))
            say(f"written: {options.into}")
        known = read_coefficients(options.into)
        empty = empty_call_us(options.seconds)
        say(f"an empty call takes {empty:.0f} us now, and took {known.empty_call_us:.0f} where it was measured")
        hosts = AskedHosts(speed=empty / known.empty_call_us)
        rows = [row for nth in range(len(_CHECKED)) for row in _compared(bootstrap, nth, known, hosts, options.seconds)]
    say(f"the machine meanwhile: {watch.so_far()}")
    sys.stdout.write("\n".join([*_HEADER, *(text for text, _ in rows), ""]))
    if not all(is_near for _, is_near in rows):
        raise BenchFailure(f"a figure is more than {_WITHIN:.0%} off")


def _fitted(bootstrap: str, seconds: float) -> Coefficients:
    empty = empty_call_us(seconds)
    say(f"an empty call takes {empty:.0f} us")
    with running_fleet(bootstrap, _LARGE, "large") as fleet:
        large = fleet.idle(seconds)
        say(f"at rest: {large}")
    with running_fleet(bootstrap, _SMALL, "small") as fleet:
        idle = fleet.idle(seconds)
        say(f"at rest: {idle}")
        routed = [_asked(fleet, rate, Way.ROUTER, seconds) for rate in _ROUTED_RATES]
        straight = [_asked(fleet, rate, Way.STRAIGHT, seconds) for rate in _STRAIGHT_RATES]
    machine = describe()
    measured = (
        f"commit {_commit()}, {dt.datetime.now(dt.UTC):%Y-%m-%d}, {machine['cores']} cores ({machine['model']}), "
        f"Python {machine['python']}"
    )
    return coefficients(measured, empty, (_SMALL, idle, routed, straight), (_LARGE, large))


def _asked(fleet: RunningFleet, rate: float, way: Way, seconds: float) -> Measured:
    found = fleet.asked(rate, way, seconds)
    say(f"{rate} lookups/s, {way}: {found}")
    return found


def _compared(
    bootstrap: str, nth: int, known: Coefficients, hosts: AskedHosts, seconds: float
) -> Iterator[tuple[str, bool]]:
    """Yield a row for each figure of a fleet, and whether it is near enough."""
    title, shape, rate, way = _CHECKED[nth]
    with running_fleet(bootstrap, shape, f"checked-{nth}") as fleet:
        found = _asked(fleet, rate, way, seconds)
    calculated = needs(shape.load(rate, way), known, hosts, shape.nodes, 1)
    for name, is_value, was_value, unit in _figures(found, calculated):
        ratio = was_value / is_value if is_value else float("inf")
        yield (
            f"| {title} | {name} | {is_value:.4g} {unit} | {was_value:.4g} {unit} | {ratio:.2f} |",
            (abs(ratio - 1) <= _WITHIN),
        )


def _figures(found: Measured, calculated: FleetNeeds) -> Sequence[tuple[str, float, float, str]]:
    """Return name, measured and calculated value, and unit of each figure of a whole fleet."""
    network = found.router_port_bytes + 2 * found.node_port_bytes + found.kafka_bytes
    if calculated.routers and found.router_port_bytes < found.node_port_bytes / 100:
        network = found.node_port_bytes + found.kafka_bytes
    return (
        ("processor time", found.node_cores + found.router_cores, calculated.all_cores, "cores"),
        ("memory", found.node_memory_mib + found.router_memory_mib, calculated.all_memory_mib, "MiB"),
        ("disk", found.node_disk_mib, calculated.all_disk_mib, "MiB"),
        ("network", network / 1e3, calculated.all_bytes / 1e3, "kB/s"),
    )


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


_HEADER: Final = (
    "| fleet | figure | measured | calculated | ratio |",
    "|---|---|---|---|---|",
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.sizing", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure the coefficients first, and write them")
    parser.add_argument("--speed", action="store_true", help="only measure this machine's speed")
    parser.add_argument("--into", type=Path, default=_COEFFICIENTS, help="the file of coefficients (default: our own)")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each measurement (default: 15)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
