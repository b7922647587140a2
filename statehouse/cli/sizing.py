"""How many nodes, routers, cores, and how much memory, disk and network a load takes, from measured figures. Pure.

A process takes some processor time whatever it is asked, and some for each lookup. A lookup that comes alone costs the
most, because others share wake-ups and system calls: `full + (alone - full) / (1 + rate / half_rate)`.

Lookups are taken as spread evenly over keys, and actives evenly over nodes. `tests/property/statehouse` has what must
hold; `python -m bench.sizing` measures how far fleets are from what this says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from statehouse.errors import ConfigurationError

_MIB: Final = 2**20
_US: Final = 1e6
COUNT_MAX: Final = 10_000
"""Most nodes, or routers, of a fleet that is calculated."""
PARTITIONS_PER_NODE: Final = 4
"""Actives for each node if nobody says how many partitions there are: few enough to hold, and enough to share out."""


class Way(StrEnum):
    """How lookups reach nodes."""

    ROUTER = "router"
    """Through routers, which pass them on."""
    STRAIGHT = "straight"
    """Clients ask the key's active themselves (docs/client.md)."""


@dataclass(frozen=True, slots=True)
class LookupCost:
    """Processor time of a lookup in one process and its proxy: alone, among very many, and the rate halfway between."""

    alone_us: float
    full_us: float
    half_rate: float

    def at(self, rate: float) -> float:
        """Return the microseconds of a lookup at this many a second."""
        return self.full_us + (self.alone_us - self.full_us) / (1 + rate / self.half_rate)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What was measured on one machine, as docs/sizing.md says."""

    measured: str = "commit bc0bd24, 2026-11-27, 2 cores (AMD EPYC), Python 3.11.7"
    empty_call_us: float = 316.3  # processor time of an empty grpcio handler's call: the machine's speed
    node_idle_cores: float = 0.0235
    router_idle_cores: float = 0.0139
    node_routed: LookupCost = LookupCost(810.3, 84.25, 505.4)  # at a node, from a router
    node_straight: LookupCost = LookupCost(1156, 182.9, 110)  # at a node, from a client
    router_lookup: LookupCost = LookupCost(559.3, 56.26, 814)
    update_us: float = 6  # processor time to apply a record to a copy
    node_mib: float = 139.4  # a node without entries, with its proxy and heartbeat process
    router_mib: float = 78.75  # a router with one worker and its proxy
    partition_mib: float = 0.4  # an open store partition
    resident: float = 0.5229  # bytes of memory for each byte of a node's entries, until the caches are full
    entry_overhead: float = 20  # bytes on disk of an entry, in addition to key and value
    on_disk: float = 1.044  # bytes on disk for each byte of entries
    caller_bytes: float = 134  # network of a lookup from its caller, in addition to key and value
    inner_bytes: float = 185.7  # the same between a router and a node
    update_bytes: float = 30  # the same of a record between Kafka and a node
    heartbeat_bytes: float = 2408  # a second, of a node with Kafka and the others, for each node of the fleet


@dataclass(frozen=True, slots=True)
class AskedLoad:
    """What a fleet is to hold and to answer; sizes on average."""

    keys: int  # entries of all stores
    value_bytes: float
    lookups: float  # a second
    key_bytes: float = 16
    updates: float = 0  # changed entries a second
    standbys: int = 1  # copies in addition to the active
    partitions: int = 0  # 0: as many as are usual for the nodes
    way: Way = Way.ROUTER

    @property
    def entry_bytes(self) -> float:
        """Bytes of a key and its value."""
        return self.key_bytes + self.value_bytes

    @property
    def copies(self) -> int:
        """Copies of each partition."""
        return 1 + self.standbys


@dataclass(frozen=True, slots=True)
class AskedHosts:
    """What a node or a router runs on."""

    cores: float = 2
    busiest: float = 0.6  # the share of the cores that may be in use
    memory_mib: float | None = None  # of a node; None: any
    disk_mib: float | None = None  # of a node; None: any
    speed: float = 1  # the host's time for a piece of work, divided by the measured machine's
    block_cache_bytes: float = 256 * _MIB
    survives_loss: bool = True  # the load must fit when one node, or one router, is away


@dataclass(frozen=True, slots=True)
class FleetNeeds:
    """What a fleet of so many nodes and routers needs. Per process, unless it says all; bytes are a second's."""

    nodes: int
    routers: int
    node_cores: float
    router_cores: float
    node_memory_mib: float
    router_memory_mib: float
    node_disk_mib: float
    node_bytes: float
    router_bytes: float

    @property
    def all_cores(self) -> float:
        """Cores of all nodes and routers, as much of them as they use."""
        return self.nodes * self.node_cores + self.routers * self.router_cores

    @property
    def all_memory_mib(self) -> float:
        """Memory of all nodes and routers."""
        return self.nodes * self.node_memory_mib + self.routers * self.router_memory_mib

    @property
    def all_disk_mib(self) -> float:
        """Disk of all nodes."""
        return self.nodes * self.node_disk_mib

    @property
    def all_bytes(self) -> float:
        """What all nodes and routers receive and send in a second; what goes between two of them counts twice."""
        return self.nodes * self.node_bytes + self.routers * self.router_bytes


def needs(load: AskedLoad, known: Coefficients, hosts: AskedHosts, nodes: int, routers: int) -> FleetNeeds:
    """Return what a fleet with these numbers of nodes and routers needs.

    `nodes` must be at least one more than the standbys, and there must be a router if lookups go through routers.

    Raises:
        ConfigurationError: there are too few.

    """
    if nodes < load.copies:
        raise ConfigurationError(f"{load.copies} copies need as many nodes, and there are {nodes}")
    if load.way is Way.ROUTER and routers < 1:
        raise ConfigurationError("lookups through routers need at least one")
    speed = hosts.speed
    partitions = load.partitions or PARTITIONS_PER_NODE * nodes
    held = load.keys * load.copies / nodes * load.entry_bytes
    stores = partitions * load.copies / nodes
    rate, updates = load.lookups / nodes, load.updates * load.copies / nodes
    at_node = known.node_straight if load.way is Way.STRAIGHT else known.node_routed
    hop = load.entry_bytes + (known.caller_bytes if load.way is Way.STRAIGHT else known.inner_bytes)
    routed = load.lookups / routers if routers and load.way is Way.ROUTER else 0.0
    return FleetNeeds(
        nodes,
        routers,
        node_cores=speed
        * (known.node_idle_cores + rate * at_node.at(rate * speed) / _US + updates * known.update_us / _US),
        router_cores=speed * (known.router_idle_cores + routed * known.router_lookup.at(routed * speed) / _US),
        node_memory_mib=known.node_mib
        + known.partition_mib * stores
        + min(hosts.block_cache_bytes, known.resident * held) / _MIB,
        router_memory_mib=known.router_mib,
        node_disk_mib=known.on_disk * (held + known.entry_overhead * load.keys * load.copies / nodes) / _MIB,
        node_bytes=rate * hop
        + updates * (load.entry_bytes + known.update_bytes)
        + known.heartbeat_bytes * (nodes + routers),
        router_bytes=routed * (2 * load.entry_bytes + known.caller_bytes + known.inner_bytes)
        + known.heartbeat_bytes * (nodes + routers),
    )


@dataclass(frozen=True, slots=True)
class FleetSize:
    """The smallest fleet that is large enough, and what a node, or a router, less would break."""

    needs: FleetNeeds
    nodes_because: str
    routers_because: str


def size(load: AskedLoad, known: Coefficients, hosts: AskedHosts | None = None) -> FleetSize:
    """Return the smallest fleet for a load.

    Raises:
        ConfigurationError: a figure can't be, or no fleet of at most COUNT_MAX nodes and routers is large enough.

    """
    hosts = AskedHosts() if hosts is None else hosts
    _check(load, hosts)
    spare = 1 if hosts.survives_loss else 0

    def node_limit(nodes: int) -> str:
        """Return what is too small about this many nodes; empty if nothing is."""
        serving = nodes - spare
        if serving < load.copies:
            return _FEWEST.format(load.copies, " after a loss" if spare else "")
        found = needs(load, known, hosts, serving, 1)
        if found.node_cores > hosts.busiest * hosts.cores:
            return f"processor time: {found.node_cores:.2f} of {hosts.cores:g} cores with {serving} serving"
        if hosts.memory_mib is not None and found.node_memory_mib > hosts.memory_mib:
            return f"memory: {found.node_memory_mib:.0f} MiB of {hosts.memory_mib:.0f} with {serving} serving"
        if hosts.disk_mib is not None and found.node_disk_mib > hosts.disk_mib:
            return f"disk: {found.node_disk_mib:.0f} MiB of {hosts.disk_mib:.0f} with {serving} serving"
        return ""

    nodes, nodes_because = _smallest("nodes", node_limit)

    def router_limit(routers: int) -> str:
        serving = routers - spare
        if serving < 1:
            return _FEWEST.format(1, " after a loss" if spare else "")
        cores = needs(load, known, hosts, nodes, serving).router_cores
        allowed = hosts.busiest * hosts.cores
        return f"processor time: {cores:.2f} of {hosts.cores:g} cores with {serving} serving" if cores > allowed else ""

    routers, routers_because = _smallest("routers", router_limit)
    return FleetSize(needs(load, known, hosts, nodes, routers), nodes_because, routers_because)


_FEWEST: Final = "{} must be left{}"


def _smallest(what: str, limit: Callable[[int], str]) -> tuple[int, str]:
    """Return the smallest count that has no limit, and the limit of one less."""
    because = "one is the fewest"
    for count in range(1, COUNT_MAX + 1):
        reason = limit(count)
        if not reason:
            return count, because
        because = reason
    raise ConfigurationError(f"not even {COUNT_MAX} {what} are enough: {because}")


def _check(load: AskedLoad, hosts: AskedHosts) -> None:
    for what in ("keys", "key_bytes", "value_bytes", "lookups", "updates", "standbys", "partitions"):
        if not 0 <= (value := getattr(load, what)) < math.inf:
            raise ConfigurationError(f"{what.replace('_', ' ')} must be 0 or more, and not {value}")
    if not 0 < hosts.busiest <= 1:
        raise ConfigurationError(f"the busiest share must be above 0 and at most 1, and not {hosts.busiest}")
    for what in ("cores", "speed", "memory_mib", "disk_mib", "block_cache_bytes"):
        amount = getattr(hosts, what)
        if amount is not None and not 0 < amount < math.inf:
            raise ConfigurationError(f"{what.partition('_')[0]} must be above 0, and not {amount}")
