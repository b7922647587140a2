"""Custom stores: kinds that packages add by entry points of the group `statehouse.stores`.

An entry point's name is the kind; what it names is a `StoreSupplier`, most simply a class that takes a specification
and an engine. The node gives it the engine that the specification asks for, so that a custom store is as persistent,
and as atomic with its checkpoint, as a built-in one. What a plug-in raises stops its task or fails its call, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from query_service.faults import TaskFault
from query_service.stores.base import StateStore
from query_service.stores.engine import Engine
from statehouse.errors import ConfigurationError
from statehouse.serdes import JsonValue
from statehouse.topology import STORE_KINDS, StoreSpec

GROUP = "statehouse.stores"


class StoreSupplier(Protocol):
    """Makes the stores of a kind."""

    def __call__(self, spec: StoreSpec, engine: Engine, /) -> StateStore:
        """Return the store of one partition. It owns the engine from then on: its `close` closes it."""


@runtime_checkable
class CustomQueries(Protocol):
    """What a custom store has beside `StateStore` if it answers queries of its own."""

    query_names: Collection[str]

    def query(self, name: str, key: bytes, arguments: Mapping[str, JsonValue]) -> JsonValue:
        """Answer a query of `query_names` about a key. Runs beside the one writer, in any of several threads.

        Raises:
            LookupFailure: INVALID_REQUEST for wrong arguments; whatever else it raises is shown as a defect.

        """


class PluginFailed(TaskFault):
    """A plug-in raised, or returned what is no store."""


def custom_supplier(spec: StoreSpec) -> StoreSupplier:
    """Return the supplier of a custom kind.

    Raises:
        ConfigurationError: no package has one, or several have.
        PluginFailed: it can't be imported.

    """
    found = tuple(entry_points(group=GROUP, name=spec.kind))
    if not found:
        raise ConfigurationError(
            f"store {spec.name} is of kind {spec.kind!r}, which is none of {', '.join(STORE_KINDS)}, and no package "
            f"installed here has it: install one with an entry point {spec.kind!r} in the group {GROUP!r}"
        )
    if len(found) > 1:
        packages = ", ".join(sorted(point.dist.name for point in found if point.dist is not None))
        raise ConfigurationError(f"store {spec.name}: several packages have kind {spec.kind!r}: {packages}; keep one")
    try:
        supplier: StoreSupplier = found[0].load()
    except Exception as error:
        raise PluginFailed(
            f"store {spec.name}: the plug-in of kind {spec.kind!r} ({found[0].value}) can't be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    return _Checked(supplier)


class _Checked:
    """A supplier whose failures name the kind, and whose stores are stores."""

    def __init__(self, supplier: StoreSupplier) -> None:
        self._supplier = supplier

    def __call__(self, spec: StoreSpec, engine: Engine) -> StateStore:
        try:
            store = self._supplier(spec, engine)
        except TaskFault:
            raise
        except Exception as error:
            raise PluginFailed(
                f"store {spec.name}: the supplier of kind {spec.kind!r} failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(store, StateStore):
            raise PluginFailed(
                f"store {spec.name}: the supplier of kind {spec.kind!r} returned a {type(store).__name__}, which lacks "
                "methods of StateStore"
            )
        return store
