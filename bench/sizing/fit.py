"""Coefficients from measured fleets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Final

from bench.sizing.fleets import KEY_BYTES, Measured, MeasuredFleet
from statehouse.cli.sizing import Coefficients, LookupCost

_MIB: Final = 2**20
# A lookup never becomes free: among very many it costs a quarter of the least that was measured, or more.
_LEAST_FULL: Final = 13
# Half rates that are tried: from one lookup in ten milliseconds to far beyond what one process takes.
_HALF_RATES: Final = [100 * 1.1**nth for nth in range(60)]
# docs/memory.md: an open key-value store.
_PARTITION_MIB: Final = 0.4
# The record's timestamp, and what RocksDB keeps with a key.
_ENTRY_OVERHEAD: Final = 20.0
# A restore takes 4 to 7 microseconds for a record (docs/adr/0010-timestamps-before-values.md); it isn't measured here.
_UPDATE_US: Final = 6.0
_UPDATE_BYTES: Final = 30.0


def lookup_cost(rates: Sequence[float], cores: Sequence[float]) -> LookupCost:
    """Return the cost that fits best to the cores, beyond those at rest, that lookups took at these rates.

    Least squares of the relative errors, for each half rate that is tried.
    """
    best, error = LookupCost(0, 0, 1), float("inf")
    costs = [1e6 * each / rate for rate, each in zip(rates, cores, strict=True)]
    for half_rate in _HALF_RATES:
        shares = [1 / (1 + rate / half_rate) for rate in rates]
        for full in [min(costs) * nth / 50 for nth in range(_LEAST_FULL, 51)]:
            weights = [share / cost for share, cost in zip(shares, costs, strict=True)]
            wanted = [(cost - full) / cost for cost in costs]
            beyond = sum(w * s for w, s in zip(wanted, weights, strict=True)) / sum(s * s for s in weights)
            off = sum((w - beyond * s) ** 2 for w, s in zip(wanted, weights, strict=True))
            if beyond >= 0 and off < error:
                best, error = LookupCost(full + beyond, full, half_rate), off
    return best


def coefficients(
    measured: str,
    empty_call_us: float,
    small: tuple[MeasuredFleet, Measured, Sequence[Measured], Sequence[Measured]],
    large: tuple[MeasuredFleet, Measured],
) -> Coefficients:
    """Return what fits to two fleets, of which the larger one has more bytes.

    `small`: at rest, with lookups through its router, and straight; `large`: at rest.
    """
    shape, idle, routed, straight = small
    processes = shape.nodes + 1
    entry = KEY_BYTES + shape.value_bytes
    held, more_held = _held(shape), _held(large[0])
    resident = _slope(held, idle.node_memory_mib, more_held, large[1].node_memory_mib) * _MIB
    stores = 2 * shape.partitions
    on_disk = (
        _slope(
            held + _ENTRY_OVERHEAD * 2 * shape.keys,
            idle.node_disk_mib,
            more_held + _ENTRY_OVERHEAD * 2 * large[0].keys,
            large[1].node_disk_mib,
        )
        * _MIB
    )
    disk = idle.node_disk_mib * _MIB - on_disk * (held + _ENTRY_OVERHEAD * 2 * shape.keys)

    def node_costs(found: Sequence[Measured]) -> LookupCost:
        return lookup_cost(
            [each.lookups / shape.nodes for each in found],
            [(each.node_cores - idle.node_cores) / shape.nodes for each in found],
        )

    fastest = routed[-1]
    return Coefficients(
        measured,
        empty_call_us,
        node_idle_cores=idle.node_cores / shape.nodes,
        router_idle_cores=idle.router_cores,
        node_routed=node_costs(routed),
        node_straight=node_costs(straight),
        router_lookup=lookup_cost(
            [each.lookups for each in routed], [each.router_cores - idle.router_cores for each in routed]
        ),
        update_us=_UPDATE_US,
        node_mib=idle.node_memory_mib / shape.nodes
        - _PARTITION_MIB * stores / shape.nodes
        - resident * held / shape.nodes / _MIB,
        router_mib=routed[-1].router_memory_mib,
        partition_mib=_PARTITION_MIB,
        resident=resident,
        entry_overhead=_ENTRY_OVERHEAD,
        on_disk=on_disk,
        partition_disk=max(0.0, disk / stores),
        caller_bytes=fastest.router_port_bytes / fastest.lookups - entry,
        inner_bytes=fastest.node_port_bytes / fastest.lookups - entry,
        update_bytes=_UPDATE_BYTES,
        heartbeat_bytes=idle.kafka_bytes / processes**2,
    )


def as_toml(found: Coefficients) -> str:
    """Return the file of coefficients."""
    rounded = {
        each.name: value if isinstance(value := getattr(found, each.name), str | LookupCost) else float(f"{value:.4g}")
        for each in fields(found)
    }
    plain = [
        f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
        for name, value in rounded.items()
        if not isinstance(value, LookupCost)
    ]
    for name, value in rounded.items():
        if isinstance(value, LookupCost):
            plain += ["", f"[{name}]", *(f"{part} = {each:.4g}" for part, each in asdict(value).items())]
    return "\n".join([*_HEAD, *plain, ""])


_HEAD: Final = (
    "# What `statehouse size` calculates with. Written by `python -m bench.sizing --measure`; what each",
    "# means is in statehouse/cli/sizing.py, and how it was measured in docs/sizing.md.",
)


def _held(shape: MeasuredFleet) -> float:
    """Return the bytes of keys and values on all nodes."""
    return 2.0 * shape.keys * (KEY_BYTES + shape.value_bytes)


def _slope(low: float, at_low: float, high: float, at_high: float) -> float:
    return max(0.0, (at_high - at_low) / (high - low))
