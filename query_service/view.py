"""What a node knows of the fleet, compiled before any request asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from statehouse.assignment import Assignment
from statehouse.membership import Member
from statehouse.serdes import Serde, serde
from statehouse.topology import StoreSpec


@dataclass(frozen=True, slots=True)
class ServedStore:
    """A store with its serdes looked up once."""

    spec: StoreSpec
    key_serde: Serde
    value_serde: Serde


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the node knows, as one immutable value that is swapped whole."""

    assignment: Assignment | None = None
    stores: Mapping[str, ServedStore] = field(default_factory=lambda: MappingProxyType({}))
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))


def view_of(assignment: Assignment | None, members: Mapping[str, Member]) -> NodeView:
    """Compile a view."""
    if assignment is None:
        return NodeView(members=MappingProxyType(dict(members)))
    stores = {
        name: ServedStore(spec, serde(spec.key_serde), serde(spec.value_serde))
        for name, spec in assignment.stores.items()
    }
    return NodeView(assignment, MappingProxyType(stores), MappingProxyType(dict(members)))
