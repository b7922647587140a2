"""The node's view of the stores and the fleet, compiled before requests need it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from statehouse.contract.assignment import Assignment
from statehouse.contract.membership import Member
from statehouse.contract.placement import NO_PLACEMENTS, StorePlacement
from statehouse.contract.topology import AnyTaskId, StoreSpec
from statehouse.errors import ConfigurationError
from statehouse.serdes import Serde, exact_json, known_serde


@dataclass(frozen=True, slots=True)
class ServedStore:
    """A store with its serdes, looked up once, and for each partition the task or global store that holds it."""

    spec: StoreSpec
    key_serde: Serde
    value_serde: Serde
    task_ids: tuple[AnyTaskId, ...] = field(init=False)
    _exact: ServedStore = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "task_ids", tuple(map(self.spec.task_id, range(self.spec.partition_count))))
        serde = exact_json(self.value_serde)
        is_exact = serde is self.value_serde
        object.__setattr__(self, "_exact", self if is_exact else ServedStore(self.spec, self.key_serde, serde))

    def asked(self, *, exact: bool) -> ServedStore:
        """Return the store as a request asks for it: `exact`, if documents are to be shown as text."""
        return self._exact if exact else self


@dataclass(frozen=True, slots=True)
class FleetView:
    """The assignment, stores and members that reads use: one immutable value, swapped as a whole."""

    assignment: Assignment | None = None
    stores: Mapping[str, ServedStore] = field(default_factory=lambda: MappingProxyType({}))
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))
    unusable: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The stores that this version can't serve, each with the reason."""
    placements: Mapping[str, StorePlacement] = field(default_factory=lambda: NO_PLACEMENTS)
    """The stores of which one partition can't say everything."""


def view_of(
    assignment: Assignment | None,
    members: Mapping[str, Member],
    serde: Callable[[str], Serde] = known_serde,
    placements: Mapping[str, StorePlacement] = NO_PLACEMENTS,
) -> FleetView:
    """Compile a view. Stores that this version can't serve go to `unusable`, so that they don't stop the others."""
    if assignment is None:
        return FleetView(members=MappingProxyType(dict(members)))
    stores: dict[str, ServedStore] = {}
    unusable: dict[str, str] = {}
    for name, spec in assignment.stores.items():
        try:
            stores[name] = ServedStore(spec, serde(spec.key_serde), serde(spec.value_serde))
        except ConfigurationError as error:
            unusable[name] = str(error)
    return FleetView(
        assignment,
        MappingProxyType(stores),
        MappingProxyType(dict(members)),
        MappingProxyType(unusable),
        placements,
    )
