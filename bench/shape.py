"""How much there is of everything: the data, the servers, and the load."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum


class Side(StrEnum):
    """What is measured."""

    OURS = "ours"
    OURS_GRPCIO = "ours-grpcio"
    """The same without its proxy: served by grpcio."""
    OURS_TLS = "ours-tls"
    """The same with TLS, mutual, and rules on every hop."""
    OURS_BEFORE = "ours-before"
    """An earlier commit of ours."""
    OURS_FOLLOWING = "ours-following"
    """A store that follows its source itself, without Spark."""
    PEER = "peer"
    """Kafka Streams with gRPC-Java's default executor: what people run."""
    PEER_DIRECT = "peer-direct"
    """The same with directExecutor: what an expert runs."""
    PEER_UNCACHED = "peer-uncached"
    """The same without record caches, which costs throughput and makes standbys follow at once."""
    REDIS = "redis"
    """Redis, filled by Spark's foreachBatch, with a log of its writes that is synced once a second."""
    REDIS_SNAPSHOTS = "redis-snapshots"
    """The same with snapshots alone, as its package has it."""
    FLOOR = "empty-handler"
    """grpcio with a handler that only hands out answers made beforehand."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Data and servers, the same for both sides.

    Attributes:
        nodes: query nodes, and instances of the peer.
        router_workers: processes of our router, by default as many as it has by default; any instance of the peer is a
            router.
        session_timeout_ms: after this time a silent node or instance loses its tasks.
        commit_interval_ms: the peer's; the default is Kafka Streams'.
        java: options of the peer's Java.

    """

    keys: int
    partitions: int = 8
    nodes: int = 2
    router_workers: int = 1
    session_timeout_ms: int = 10_000
    commit_interval_ms: int = 30_000
    java: tuple[str, ...] = ("-Xmx512m",)

    @property
    def name(self) -> str:
        """A name that tells shapes apart."""
        return f"{self.keys}-{self.partitions}-{self.nodes}"


@dataclass(frozen=True, slots=True)
class Load:
    """How much load there is.

    Attributes:
        seconds: how long each measurement takes.
        warm_up_s: how long load or events come before the first measurement after a start, mainly for Java's compiler.
        batches: keys per BatchGet.
        rate: lookups a second while nodes are killed and restarted.
        span: keys per scan.
        freshness_s: how long events are produced and looked for, at `events_per_s`.

    """

    seconds: float
    warm_up_s: float
    concurrencies: tuple[int, ...] = (1, 16, 64)
    batches: tuple[int, ...] = (1, 10, 100, 1000)
    span: int = 100
    rate: int = 300
    freshness_s: float = 10.0
    events_per_s: int = 50


@dataclass(frozen=True, slots=True)
class Plan:
    """A shape, and the work of each side in each round.

    Attributes:
        work: names of workloads (`bench.workloads`), in their order, by side.
        processor: whether our side runs its Spark application, which makes the changelog from the source; else our
            nodes follow the source itself.
        last_round: further workloads, in the last round only.
        together: whether all sides run from the beginning to the end, warmed up, and only their work takes turns: what
            disturbs the machine for a while meets all of them.

    """

    name: str
    shape: Shape
    load: Load
    rounds: int
    work: dict[Side, tuple[str, ...]]
    last_round: dict[Side, tuple[str, ...]] = field(default_factory=dict)
    processor: bool = False
    together: bool = False

    @property
    def slug(self) -> str:
        """Its name in the names of topics and directories."""
        return slug(self.name)


def slug(name: str) -> str:
    """Return a plan's name as names of topics, directories and files have it."""
    return re.sub("[^a-z0-9]+", "-", name.lower())
