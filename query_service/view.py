"""What a node knows of the fleet, compiled before any request asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from statehouse.assignment import Assignment
from statehouse.errors import ConfigurationError
from statehouse.membership import Member
from statehouse.serdes import Serde, serde
from statehouse.topology import HeldId, StoreSpec


@dataclass(frozen=True, slots=True)
class ServedStore:
    """A store with its serdes looked up once, and what each of its partitions is held as."""

    spec: StoreSpec
    key_serde: Serde
    value_serde: Serde
    held_as: tuple[HeldId, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "held_as", tuple(map(self.spec.held_as, range(self.spec.partition_count))))


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the node knows, as one immutable value that is swapped whole."""

    assignment: Assignment | None = None
    stores: Mapping[str, ServedStore] = field(default_factory=lambda: MappingProxyType({}))
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))
    unusable: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Stores this version can't serve, and why."""


def view_of(assignment: Assignment | None, members: Mapping[str, Member]) -> NodeView:
    """Compile a view. What this version can't serve is left out: the stores of a newer processor stop no others."""
    if assignment is None:
        return NodeView(members=MappingProxyType(dict(members)))
    stores: dict[str, ServedStore] = {}
    unusable: dict[str, str] = {}
    for name, spec in assignment.stores.items():
        try:
            stores[name] = ServedStore(spec, serde(spec.key_serde), serde(spec.value_serde))
        except ConfigurationError as error:
            unusable[name] = str(error)
    return NodeView(assignment, MappingProxyType(stores), MappingProxyType(dict(members)), MappingProxyType(unusable))
