"""How many nodes, routers, cores, and how much memory, disk and network a load takes, from measured figures. Pure.

The model is small on purpose, and each term is one that was measured (docs/sizing.md):

- A process takes some processor time whatever it is asked, and some for each lookup. A lookup that comes alone costs
  the most, because others share wake-ups and system calls: `full + (alone - full) / (1 + rate / half_rate)`.
- A node holds its copies of the entries on disk, and the blocks and memtables of them in memory up to a bound.
- A lookup's bytes go from the caller to a router and from there to a node, or straight to a node.

Lookups are taken as spread evenly over keys, and actives evenly over nodes. `tests/property/statehouse` has what must
hold; `python -m bench.sizing` measures the coefficients, and how far fleets are from what this says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, Self

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
    """Microseconds of processor time that a lookup takes in one process and its proxy.

    Attributes:
        alone_us: of a lookup that comes alone.
        full_us: of one among very many.
        half_rate: lookups a second at which it is halfway between both.

    """

    alone_us: float
    full_us: float
    half_rate: float

    def at(self, rate: float) -> float:
        """Return the microseconds of a lookup at this many a second."""
        return self.full_us + (self.alone_us - self.full_us) / (1 + rate / self.half_rate)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What was measured, on one machine. Sizes are in bytes unless their names say MiB.

    Attributes:
        measured: commit, date and machine, for people.
        empty_call_us: processor time of an empty grpcio handler's call on that machine, microseconds: its speed.
        node_idle_cores: what a node takes when nothing is asked and nothing changes; cores.
        router_idle_cores: likewise of a router.
        node_routed: a lookup's cost at a node when a router sends it.
        node_straight: at a node when a client sends it.
        router_lookup: at a router.
        update_us: processor time to apply a record to a copy.
        node_mib: memory of a node without entries, its proxy and its heartbeat process included.
        router_mib: of a router with one worker, and its proxy.
        partition_mib: memory of an open store partition.
        resident: bytes of memory for each byte of a node's entries, until the caches are full.
        entry_overhead: bytes on disk of an entry beside key and value.
        on_disk: bytes on disk for each byte of entries; values of hexadecimal digits.
        partition_disk: bytes on disk of an empty store partition.
        caller_bytes: of a lookup between a caller and what it asks, beside key and value.
        inner_bytes: of a lookup between a router and a node, beside key and value.
        update_bytes: of a record between Kafka and a node, beside key and value.
        heartbeat_bytes: that a node exchanges with Kafka and the others in a second, for each node of the fleet.

    """

    measured: str
    empty_call_us: float
    node_idle_cores: float
    router_idle_cores: float
    node_routed: LookupCost
    node_straight: LookupCost
    router_lookup: LookupCost
    update_us: float
    node_mib: float
    router_mib: float
    partition_mib: float
    resident: float
    entry_overhead: float
    on_disk: float
    partition_disk: float
    caller_bytes: float
    inner_bytes: float
    update_bytes: float
    heartbeat_bytes: float

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Take the content of a file of coefficients.

        Raises:
            ConfigurationError: one is missing, unknown, not a number, negative, or 0 where something is divided by it.

        """
        known = {each.name: each.type for each in fields(cls)}
        if document.keys() != known.keys():
            wrong = ", ".join(sorted(document.keys() ^ known.keys()))
            raise ConfigurationError(f"coefficients are missing or unknown: {wrong}")
        values: dict[str, Any] = {}
        for name, value in document.items():
            if known[name] == "str":
                values[name] = str(value)
            elif known[name] == "LookupCost":
                values[name] = _cost(name, value)
            else:
                values[name] = _positive(name, value)
        if not values["empty_call_us"]:
            raise ConfigurationError("the coefficient empty_call_us must be above 0")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class AskedLoad:
    """What a fleet is to hold and to answer.

    Attributes:
        keys: entries of all stores together.
        key_bytes: of a serialized key, on average.
        value_bytes: of a serialized value, on average.
        lookups: a second.
        updates: records a second that change entries.
        standbys: copies of each partition beside the active.
        partitions: store partitions; 0: as many as are usual for the nodes.
        way: how lookups reach nodes.

    """

    keys: int
    value_bytes: float
    lookups: float
    key_bytes: float = 16
    updates: float = 0
    standbys: int = 1
    partitions: int = 0
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
    """What a node or a router runs on.

    Attributes:
        cores: that a process may use.
        busiest: the share of them that it may use, at most.
        memory_mib: most memory of a node; None: any.
        disk_mib: most disk of a node; None: any.
        speed: what the host's time for a piece of work is, divided by the measured machine's.
        block_cache_bytes: the nodes' setting.
        survives_loss: the load must also fit when one node, or one router, is away.

    """

    cores: float = 2
    busiest: float = 0.6
    memory_mib: float | None = None
    disk_mib: float | None = None
    speed: float = 1
    block_cache_bytes: float = 256 * _MIB
    survives_loss: bool = True


@dataclass(frozen=True, slots=True)
class FleetNeeds:
    """What a fleet of so many nodes and routers needs. Per process, unless it says all; bytes are a second's."""

    nodes: int
    routers: int
    partitions: int
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
        partitions,
        node_cores=speed
        * (known.node_idle_cores + rate * at_node.at(rate * speed) / _US + updates * known.update_us / _US),
        router_cores=speed * (known.router_idle_cores + routed * known.router_lookup.at(routed * speed) / _US),
        node_memory_mib=known.node_mib
        + known.partition_mib * stores
        + min(hosts.block_cache_bytes, known.resident * held) / _MIB,
        router_memory_mib=known.router_mib,
        node_disk_mib=(
            known.on_disk * (held + known.entry_overhead * load.keys * load.copies / nodes)
            + known.partition_disk * stores
        )
        / _MIB,
        node_bytes=rate * hop
        + updates * (load.entry_bytes + known.update_bytes)
        + known.heartbeat_bytes * (nodes + routers),
        router_bytes=routed * (2 * load.entry_bytes + known.caller_bytes + known.inner_bytes)
        + known.heartbeat_bytes * (nodes + routers),
    )


@dataclass(frozen=True, slots=True)
class FleetSize:
    """The smallest fleet that is large enough, and why it is no smaller.

    Attributes:
        needs: of the whole fleet.
        nodes_because: what a node less would break.
        routers_because: what a router less would break.

    """

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

    nodes, nodes_because = _smallest("nodes", 1, node_limit)

    def router_limit(routers: int) -> str:
        serving = routers - spare
        if serving < 1:
            return _FEWEST.format(1, " after a loss" if spare else "")
        cores = needs(load, known, hosts, nodes, serving).router_cores
        allowed = hosts.busiest * hosts.cores
        return f"processor time: {cores:.2f} of {hosts.cores:g} cores with {serving} serving" if cores > allowed else ""

    routers, routers_because = _smallest("routers", 1, router_limit)
    return FleetSize(needs(load, known, hosts, nodes, routers), nodes_because, routers_because)


_FEWEST: Final = "{} must be left{}"


def _smallest(what: str, first: int, limit: Callable[[int], str]) -> tuple[int, str]:
    """Return the smallest count that has no limit, and the limit of one less."""
    low, high, because = first - 1, first, "one is the fewest"
    # A larger fleet is never too small where a smaller one is not.
    while reason := limit(high):
        low, high, because = high, min(2 * high, COUNT_MAX), reason
        if low >= COUNT_MAX:
            raise ConfigurationError(f"not even {low} {what} are enough: {reason}")
    while high - low > 1:
        middle = (low + high) // 2
        if reason := limit(middle):
            low, because = middle, reason
        else:
            high = middle
    return high, because


def _check(load: AskedLoad, hosts: AskedHosts) -> None:
    for what, value, least in (
        ("keys", load.keys, 0),
        ("key bytes", load.key_bytes, 0),
        ("value bytes", load.value_bytes, 0),
        ("lookups", load.lookups, 0),
        ("updates", load.updates, 0),
        ("standbys", load.standbys, 0),
        ("partitions", load.partitions, 0),
    ):
        if not least <= value < math.inf:
            raise ConfigurationError(f"{what} must be {least} or more, and not {value}")
    if not 0 < hosts.busiest <= 1:
        raise ConfigurationError(f"the busiest share must be above 0 and at most 1, and not {hosts.busiest}")
    for what, amount in (
        ("cores", hosts.cores),
        ("speed", hosts.speed),
        ("memory", hosts.memory_mib),
        ("disk", hosts.disk_mib),
        ("the block cache", hosts.block_cache_bytes),
    ):
        if amount is not None and not 0 < amount < math.inf:
            raise ConfigurationError(f"{what} must be above 0, and not {amount}")


def _cost(name: str, value: object) -> LookupCost:
    parts = {each.name for each in fields(LookupCost)}
    if not isinstance(value, Mapping) or value.keys() != parts:
        raise ConfigurationError(f"the coefficient {name} must be a table with {', '.join(sorted(parts))}")
    cost = LookupCost(**{part: _positive(f"{name}.{part}", each) for part, each in value.items()})
    if not cost.half_rate:
        raise ConfigurationError(f"the coefficient {name}.half_rate must be above 0")
    return cost


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigurationError(f"the coefficient {name} must be a number from 0, and not {value!r}")
    return float(value)
