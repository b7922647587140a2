"""Sub-topology numbers: assigned when (query name, partition count) first appears, and kept for ever.

The number is in the name of every task directory on every node. Kafka Streams numbers by position in the topology, so
a new query can renumber the others and orphan their state on disk. Here a number never changes its meaning.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Final

from processor.ownership.declarations import StoreDeclaration
from statehouse.contract.topology import StoreSpec, SubTopology
from statehouse.errors import ConfigurationError
from statehouse.errors.checked import PARTITIONS_OF_ALL_MAX, STORES_MAX, SUB_TOPOLOGIES_MAX

# What a declaration and a specification both have.
_SHARED: Final = [field.name for field in fields(StoreDeclaration) if field.name != "query"]


def numbered(
    declared: Iterable[StoreDeclaration], stores: Mapping[str, StoreSpec], sub_topologies: Mapping[int, SubTopology]
) -> tuple[dict[str, StoreSpec], dict[int, SubTopology]]:
    """Return the specs of the declared stores, and all sub-topologies; known ones keep their numbers.

    A sub-topology without stores stays, to keep its number; it has no tasks.

    Raises:
        ConfigurationError: a store is declared twice, without partitions, with a partition count that differs from
            the published one, or with another store's topic. Also if a query has ephemeral and other stores, or if
            they are more than an assignment can have.

    """
    numbers = {(sub.query, sub.partition_count): number for number, sub in sub_topologies.items()}
    known = dict(sub_topologies)
    specs: dict[str, StoreSpec] = {}
    topics: dict[str, str] = {}
    for store in sorted(declared, key=lambda store: (store.query, store.partition_count, store.name)):
        _check(store, specs, stores)
        _check_topic(store, topics)
        group = (store.query, store.partition_count)
        if not store.is_global and group not in numbers:
            numbers[group] = _unused(known)
            known[numbers[group]] = SubTopology(numbers[group], *group)
        shared = {name: getattr(store, name) for name in _SHARED}
        specs[store.name] = StoreSpec(**shared, sub_topology=0 if store.is_global else numbers[group])
    _check_ephemeral(specs, known)
    _check_size(specs, known)
    return specs, known


def _unused(known: Mapping[int, SubTopology]) -> int:
    """Return a number that no sub-topology has had, as far as is known."""
    following = max(known, default=-1) + 1
    if following <= SUB_TOPOLOGIES_MAX:
        return following
    return next(number for number in itertools.count() if number not in known)


def _check_size(specs: Mapping[str, StoreSpec], known: Mapping[int, SubTopology]) -> None:
    """Refuse more than readers of the assignment take."""
    of_stores = sum(spec.partition_count for spec in specs.values())
    of_sub_topologies = sum(sub.partition_count for sub in known.values())
    if len(specs) > STORES_MAX or max(of_stores, of_sub_topologies) > PARTITIONS_OF_ALL_MAX:
        raise ConfigurationError(
            f"{len(specs)} stores with {max(of_stores, of_sub_topologies)} partitions are declared: an application has "
            f"at most {STORES_MAX} stores and {PARTITIONS_OF_ALL_MAX} partitions. Divide it into several applications"
        )


def _check(store: StoreDeclaration, specs: Mapping[str, StoreSpec], published: Mapping[str, StoreSpec]) -> None:
    if store.name in specs:
        raise ConfigurationError(f"store {store.name} is declared twice; give one of them another name")
    if store.partition_count < 1:
        raise ConfigurationError(f"store {store.name} must have at least one partition, not {store.partition_count}")
    old = published.get(store.name)
    if old is None or (old.is_global and store.is_global):
        return  # lookups in a global store search every partition, so its topic may grow
    if old.partition_count != store.partition_count:
        raise ConfigurationError(
            f"store {store.name} is published with {old.partition_count} partitions and now declared with "
            f"{store.partition_count}. The number is fixed for a store's life, as keys are placed by it: declare "
            f"partitions={old.partition_count}, or give the store a new name, or reset the application to begin anew"
        )


def _check_topic(store: StoreDeclaration, topics: dict[str, str]) -> None:
    """Refuse two stores with the same topic, because a node reads a partition for one store only."""
    other = topics.setdefault(store.changelog_topic, store.name)
    if other != store.name:
        raise ConfigurationError(
            f"stores {other} and {store.name} both have the topic {store.changelog_topic}: one store is enough to read "
            "it, or give one of them a topic of its own"
        )


def _check_ephemeral(specs: Mapping[str, StoreSpec], sub_topologies: Mapping[int, SubTopology]) -> None:
    """Refuse tasks with both kinds of stores: a task with a changelog has standbys and warm-ups, others have none."""
    tasked = [spec for spec in specs.values() if not spec.is_global]
    logged = {spec.sub_topology: spec.name for spec in tasked if not spec.ephemeral}
    for spec in tasked:
        if spec.ephemeral and spec.sub_topology in logged:
            raise ConfigurationError(
                f"store {spec.name} is ephemeral and {logged[spec.sub_topology]} is not, and both are of query "
                f"{sub_topologies[spec.sub_topology].query}: write one of them in a query of its own"
            )
