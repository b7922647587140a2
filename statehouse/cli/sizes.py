"""`statehouse size`: how large a fleet a load takes, by what was measured (docs/sizing.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from statehouse.cli import output, sizing
from statehouse.cli.output import Column, OutputFormat, OutputOption
from statehouse.cli.sizing import AskedHosts, AskedLoad, Coefficients, FleetNeeds, Way

_GIB: Final = 1024
_MEGABIT: Final = 1e6 / 8


@dataclass(frozen=True, slots=True)
class SizedFigure:
    """A figure of one node, of one router (None if it has none), and of all; `because`: how it is derived."""

    figure: str
    each_node: float | None
    each_router: float | None
    total: float
    unit: str
    because: str


_COLUMNS: Final[Sequence[Column[SizedFigure]]] = (
    Column("WHAT", lambda each: each.figure),
    Column("EACH NODE", lambda each: _shown(each.each_node)),
    Column("EACH ROUTER", lambda each: _shown(each.each_router)),
    Column("ALL", lambda each: _shown(each.total)),
    Column("UNIT", lambda each: each.unit),
    Column("DERIVED FROM", lambda each: each.because),
)


def size(
    keys: Annotated[int, typer.Option(min=0, help="Entries of all stores together.", show_default=False)],
    value_bytes: Annotated[float, typer.Option(min=0, help="Bytes of a serialized value.", show_default=False)],
    lookups: Annotated[float, typer.Option(min=0, help="Lookups a second.", show_default=False)],
    key_bytes: Annotated[float, typer.Option(min=0, help="Bytes of a serialized key.")] = 16,
    updates: Annotated[float, typer.Option(min=0, help="Changed entries a second.")] = 0,
    standbys: Annotated[int, typer.Option(min=0, help="Copies in addition to the active.")] = 1,
    partitions: Annotated[
        int,
        typer.Option(
            min=0,
            help=rf"Partitions of all stores together.  \[default: {sizing.PARTITIONS_PER_NODE} for each node]",
            show_default=False,
        ),
    ] = 0,
    via: Annotated[Way, typer.Option(help="How lookups reach nodes.")] = Way.ROUTER,
    cores: Annotated[float, typer.Option(min=0.1, help="Cores for each node, and for each router.")] = 2,
    busiest: Annotated[float, typer.Option(min=0.01, max=1, help="Share of them that may be in use.")] = 0.6,
    memory_gib: Annotated[
        float | None, typer.Option(min=0.1, help="Memory for each node.", show_default=r"any")
    ] = None,
    disk_gib: Annotated[float | None, typer.Option(min=0.1, help="Disk for each node.", show_default=r"any")] = None,
    block_cache_mib: Annotated[float, typer.Option(min=8, help="The nodes' block_cache_bytes.")] = 256,
    empty_call_us: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Processor time of an empty grpcio handler's call on your machine, as `python -m bench.sizing "
            "--speed` measures it.",
            show_default="the measured machine's",
        ),
    ] = None,
    no_spare: Annotated[bool, typer.Option("--no-spare", help="Don't leave room for the loss of one of each.")] = False,
    fmt: OutputOption = OutputFormat.TABLE,
) -> None:
    """Say how many nodes and routers a load takes, and how many cores, and how much memory, disk and network.

    Example: statehouse size --keys 10000000 --value-bytes 200 --lookups 5000
    """
    known = Coefficients()
    hosts = AskedHosts(
        cores,
        busiest,
        None if memory_gib is None else memory_gib * _GIB,
        None if disk_gib is None else disk_gib * _GIB,
        1 if empty_call_us is None else empty_call_us / known.empty_call_us,
        block_cache_mib * 2**20,
        not no_spare,
    )
    load = AskedLoad(keys, value_bytes, lookups, key_bytes, updates, standbys, partitions, via)
    found = sizing.size(load, known, hosts)
    output.show_items(fmt, _COLUMNS, _figures(load, hosts, known, found), lambda each: each.figure)
    output.note(f"measured: {known.measured}")


def _figures(load: AskedLoad, hosts: AskedHosts, known: Coefficients, found: sizing.FleetSize) -> list[SizedFigure]:
    needs: FleetNeeds = found.needs
    held = load.keys * load.copies / needs.nodes
    routed = load.way is Way.ROUTER
    return [
        SizedFigure("nodes", None, None, needs.nodes, "", f"one less: {found.nodes_because}"),
        SizedFigure("routers", None, None, needs.routers, "", f"one less: {found.routers_because}"),
        SizedFigure(
            "cores in use",
            needs.node_cores,
            needs.router_cores,
            needs.all_cores,
            "cores",
            f"{load.lookups / needs.nodes:.0f} lookups/s at a node, "
            f"{load.lookups / needs.routers if routed else 0:.0f} at a router; "
            f"this machine takes {hosts.speed:.2f} x the measured one's time",
        ),
        SizedFigure(
            "memory",
            needs.node_memory_mib / _GIB,
            needs.router_memory_mib / _GIB,
            needs.all_memory_mib / _GIB,
            "GiB",
            f"{known.node_mib:.0f} MiB, and {held * load.entry_bytes / 2**20:.0f} MiB of entries at a node, of which "
            f"the caches hold up to {hosts.block_cache_bytes / 2**20:.0f} MiB",
        ),
        SizedFigure(
            "disk",
            needs.node_disk_mib / _GIB,
            None,
            needs.all_disk_mib / _GIB,
            "GiB",
            f"{held:.0f} entries at a node, {known.on_disk:.2f} bytes on disk for a byte",
        ),
        SizedFigure(
            "network",
            needs.node_bytes / _MEGABIT,
            needs.router_bytes / _MEGABIT,
            needs.all_bytes / _MEGABIT,
            "Mbit/s",
            "what each receives and sends, without TCP's headers",
        ),
    ]


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() or value >= 100 else f"{value:.3g}"
