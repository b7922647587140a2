"""A fleet whose processor time, memory, disk and network are measured at steady rates of lookups."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.data import VALUE_LENGTH, key_of
from bench.failure import BenchFailure
from bench.generator import running
from bench.records import create_topic, produce
from bench.reporting import say
from bench.shape import Shape, Side
from bench.sides.floor import EmptyHandlers
from bench.sides.ours import Fleet
from bench.sizing.traffic import bytes_at, bytes_with
from bench.usage import Memory, cpu_seconds
from bench.waiting import wait_for
from statehouse.cli.sizing import AskedLoad, Way
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.process import descendants

KEY_BYTES: Final = len(key_of(0))
_MIB: Final = 2**20
_WARM_UP_S: Final = 5.0
# A node that was just started takes half as much again for a lookup: its blocks aren't in the cache yet.
_FIRST_WARM_UP_S: Final = 20.0
_FIRST_WARM_UP_CONCURRENCY: Final = 64
# The load generator ends a little later than what is measured, so that its connections are still there.
_AFTER_S: Final = 2.0
_TIMEOUT_MS: Final = 5_000
_POOL_BYTES: Final = 4 * _MIB


@dataclass(frozen=True, slots=True)
class MeasuredFleet:
    """A fleet that is run: how much is in it, and how large it is. It has one router, of one worker."""

    keys: int
    value_bytes: int
    nodes: int
    partitions: int

    def load(self, lookups: float, way: Way) -> AskedLoad:
        """Return what is asked of it, as `statehouse size` takes it."""
        return AskedLoad(
            self.keys,
            self.value_bytes,
            lookups,
            KEY_BYTES,
            standbys=min(1, self.nodes - 1),
            partitions=self.partitions,
            way=way,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one steady time: of all nodes together, and of the router. Bytes are a second's.

    Attributes:
        router_port_bytes: of connections to the router.
        node_port_bytes: of connections to nodes, whoever made them.
        kafka_bytes: of nodes and router with the broker.

    """

    lookups: float
    node_cores: float
    router_cores: float
    node_memory_mib: float
    router_memory_mib: float
    node_disk_mib: float
    router_port_bytes: float
    node_port_bytes: float
    kafka_bytes: float


class RunningFleet:
    """A fleet that holds its entries."""

    def __init__(self, fleet: Fleet, shape: MeasuredFleet, broker_port: int) -> None:
        self.shape = shape
        self._fleet, self._broker_port = fleet, broker_port
        pids = fleet.pids
        self._nodes = [pids[name] for name in fleet.node_names]
        self._router = [pids["router"]]

    def idle(self, seconds: float) -> Measured:
        """Measure a time without lookups."""
        return self._measured(0.0, seconds)

    def asked(self, lookups: float, way: Way, seconds: float) -> Measured:
        """Measure a time with this many lookups a second.

        Raises:
            BenchFailure: a lookup failed, or fewer were answered.

        """
        where = self._fleet.anywhere() if way is Way.ROUTER else self._fleet.straight
        options = {
            **where,
            "rate": lookups,
            "keys": self.shape.keys,
            "tail": self.shape.value_bytes > VALUE_LENGTH,
            "duration_s": _WARM_UP_S + seconds + _AFTER_S,
            "timeout_ms": _TIMEOUT_MS,
        }
        with running(options) as under_load:
            _pause(_WARM_UP_S)
            found = self._measured(lookups, seconds)
            report = under_load.report()
        _require_passed(report)
        return found

    def warm(self) -> None:
        """Fill the caches: each way is taken by as many lookups as there can be for a time, of any keys.

        Raises:
            BenchFailure: a lookup failed.

        """
        for where in (self._fleet.straight, self._fleet.anywhere()):
            options = {
                **where,
                "concurrency": _FIRST_WARM_UP_CONCURRENCY,
                "keys": self.shape.keys,
                "tail": self.shape.value_bytes > VALUE_LENGTH,
                "duration_s": _FIRST_WARM_UP_S,
                "timeout_ms": _TIMEOUT_MS,
            }
            with running(options) as under_load:
                _require_passed(under_load.report())

    def _measured(self, lookups: float, seconds: float) -> Measured:
        before, began_at = self._counts(), time.monotonic()
        _pause(seconds)
        after, took_s = self._counts(), time.monotonic() - began_at
        grown = {name: (after[name] - before[name]) / took_s for name in before}
        return Measured(
            lookups,
            grown["node_cores"],
            grown["router_cores"],
            Memory.of(self._nodes).pss / _MIB,
            Memory.of(self._router).pss / _MIB,
            sum(_disk_bytes(self._fleet.state_dir(name)) for name in self._fleet.node_names) / _MIB,
            grown["router_port"],
            grown["node_port"],
            grown["kafka"],
        )

    def _counts(self) -> Mapping[str, float]:
        family = {
            each for pid in (*self._nodes, *self._router) for each in (pid, *(child.pid for child in descendants(pid)))
        }
        router_port = int(self._fleet.router_target.rpartition(":")[2])
        return {
            "node_cores": cpu_seconds(self._nodes),
            "router_cores": cpu_seconds(self._router),
            "router_port": bytes_at([router_port]),
            "node_port": bytes_at(self._fleet.ports.values()),
            "kafka": bytes_with(self._broker_port, family),
        }


@contextmanager
def running_fleet(bootstrap: str, shape: MeasuredFleet, name: str) -> Iterator[RunningFleet]:
    """Make a fleet's records and run it in the context, with warm caches."""
    servers = Shape(keys=shape.keys, partitions=shape.partitions, nodes=shape.nodes)
    say(f"{name}: writing {shape.keys} records with values of {shape.value_bytes} bytes")
    create_topic(bootstrap, name, shape.partitions, {"cleanup.policy": "compact"})
    produce(bootstrap, name, shape.partitions, range(shape.keys), tail_of=_tails(shape.value_bytes - VALUE_LENGTH))
    with tempfile.TemporaryDirectory(prefix="bench-sizing-") as directory:
        fleet = Fleet(Side.OURS, bootstrap, servers, Path(directory), name)
        try:
            say(f"{name}: restoring them")
            fleet.start()
            measured = RunningFleet(fleet, shape, int(bootstrap.rpartition(":")[2]))
            say(f"{name}: filling the caches")
            measured.warm()
            yield measured
        finally:
            fleet.stop()


def empty_call_us(seconds: float) -> float:
    """Return the processor time of a call of an empty grpcio handler, 64 at once, in microseconds."""
    with tempfile.TemporaryDirectory(prefix="bench-sizing-") as directory:
        servers = EmptyHandlers("", Shape(keys=0, partitions=2, nodes=2), Path(directory), "speed")
        try:
            servers.start()
            options = {**servers.straight, "concurrency": 64, "duration_s": _WARM_UP_S + seconds + _AFTER_S}
            with running(options) as under_load:
                _pause(_WARM_UP_S)
                before, began_at = cpu_seconds(servers.pids.values()), time.monotonic()
                _pause(seconds)
                spent, took_s = cpu_seconds(servers.pids.values()) - before, time.monotonic() - began_at
                report = under_load.report()
        finally:
            servers.stop()
    return 1e6 * spent / (took_s * float(report["lookups_per_s"]))


@contextmanager
def broker() -> Iterator[str]:
    """Run a broker in the context."""
    with tempfile.TemporaryDirectory(prefix="bench-sizing-") as directory, EmbeddedKafka(Path(directory)) as kafka:
        yield kafka.bootstrap


def _require_passed(report: Mapping[str, Any]) -> None:
    if not report["passed"]:
        raise BenchFailure(f"requests failed: {report['requests']['by_outcome']}, {report['errors'][:3]}")


def _tails(size: int) -> Callable[[int], bytes]:
    """Return what values go on with: digits that compress as those before them."""
    source = random.Random(1)  # noqa: S311 - data
    pool = source.randbytes(_POOL_BYTES // 2).hex().encode()

    def tail_of(_number: int) -> bytes:
        begin = source.randrange(len(pool) - size) if size else 0
        return pool[begin : begin + size]

    return tail_of


def _pause(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() >= until, seconds + 10, f"{seconds:g} s to pass")


def _disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
