"""How tables show stores, and replicas of their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from statehouse.cli.output import Column
from statehouse.client import Fleet, Partition, Store


def kind(store: Store) -> str:
    """Return a store's kind, and what else there is to say of it."""
    words = (("global", store.is_global), ("ephemeral", store.ephemeral), ("not built yet", store.not_built))
    further = [word for word, holds in words if holds]
    return ", ".join([store.kind, *further])


def warnings_of(stores: Iterable[Store]) -> list[tuple[str, str]]:
    """Return what is wrong with stores' topics: the store, and what it is."""
    return [(store.name, f"warning: {warning}") for store in stores for warning in store.warnings]


STORE_COLUMNS: Final[Sequence[Column[Store]]] = (
    Column("STORE", lambda store: store.name),
    Column("KIND", kind),
    Column("KEY", lambda store: store.key_serde),
    Column("VALUE", lambda store: store.value_serde),
    Column("PARTITIONS", lambda store: store.partition_count),
    Column("CHANGELOG", lambda store: store.changelog_topic),
    Column("SUB-TOPOLOGY", lambda store: "-" if store.sub_topology is None else store.sub_topology, is_wide=True),
    Column("PARTITIONER", lambda store: store.partitioner or "-", is_wide=True),
)


@dataclass(frozen=True, slots=True)
class PartitionReplica:
    """A replica of a store's partition as its node last reported it; without a node: nobody holds the partition.

    Attributes:
        task: the task that the partition belongs to; of a global store "global/<store>".
        epoch: of the assignment.
        node: the node's instance id.
        address: where the node takes calls, host:port; None if the router doesn't know.
        position: the next changelog offset that it needs; None if unknown.
        lag: at most so many records are not applied yet; None if unknown.

    """

    store: str
    partition: int
    task: str
    epoch: int
    role: str | None = None
    state: str | None = None
    node: str | None = None
    address: str | None = None
    position: int | None = None
    lag: int | None = None


REPLICA_COLUMNS: Final[Sequence[Column[PartitionReplica]]] = (
    Column("STORE", lambda each: each.store),
    Column("PARTITION", lambda each: each.partition),
    Column("ROLE", lambda each: each.role or "-"),
    Column("STATE", lambda each: each.state or ("no replica" if each.node is None else "not reported")),
    Column("NODE", lambda each: each.node or "-"),
    Column("ADDRESS", lambda each: each.address or "-"),
    Column("POSITION", lambda each: "-" if each.node is None else each.position),
    Column("LAG", lambda each: "-" if each.node is None else each.lag),
    Column("TASK", lambda each: each.task, is_wide=True),
    Column("EPOCH", lambda each: each.epoch, is_wide=True),
)


def replicas_of(fleet: Fleet, partitions: Iterable[Partition]) -> Iterator[PartitionReplica]:
    """Yield each replica, in the order in which lookups prefer them; one without a node for a partition without any."""
    hosts = {node.host.instance_id: node.host for node in fleet.nodes}
    for each in partitions:
        if not each.replicas:
            yield PartitionReplica(each.store, each.partition, each.task, each.epoch)
        for replica in each.replicas:
            host = hosts.get(replica.instance_id)
            yield PartitionReplica(
                each.store,
                each.partition,
                each.task,
                each.epoch,
                replica.role,
                replica.state or None,
                replica.instance_id,
                None if host is None else f"{host.host}:{host.port}",
                replica.position,
                replica.lag,
            )
