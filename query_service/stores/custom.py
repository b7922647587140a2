"""Custom stores: packages add kinds of stores by entry points of the group `statehouse.stores`.

The name of an entry point is the kind. The object of an entry point is a `StoreSupplier`; the simplest one is a class
whose constructor takes a specification and an engine. The node makes the engine that the specification asks for. So a
custom store is as persistent as a built-in one, and writes its checkpoint as atomically. An exception in a plug-in
stops its task or fails its call, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from query_service.states.faults import TaskFault
from query_service.stores.base import StateStore
from query_service.stores.engine import Engine
from query_service.stores.key_value import KeyValueStore
from query_service.stores.windows import TimedStore
from statehouse.contract.topology import KEY_VALUE, SESSION, STORE_KINDS, WINDOW, StoreSpec
from statehouse.errors import ConfigurationError
from statehouse.serdes import JsonValue

GROUP = "statehouse.stores"

_DECLARED = {
    KEY_VALUE: "declare it with app.store(..., kind=...), or without a layout",
    WINDOW: 'declare it with app.window_store(..., kind=...), or with layout = "window"',
    SESSION: 'declare it with app.session_store(..., kind=...), or with layout = "session"',
}


class StoreSupplier(Protocol):
    """Makes the stores of one kind (Kafka Streams' StoreSupplier)."""

    def __call__(self, spec: StoreSpec, engine: Engine, /) -> StateStore:
        """Return the store of one partition.

        Args:
            spec: the store's specification.
            engine: where this partition keeps its entries. The store owns it: the store's `close` must close it. If
                this call raises, the node closes the engine.

        """


@runtime_checkable
class CustomQueries(Protocol):
    """A custom store that answers queries of its own has these beside the methods of `StateStore`."""

    query_names: Collection[str]
    """The queries that clients may name."""

    def query(self, name: str, key: bytes, arguments: Mapping[str, JsonValue]) -> JsonValue:
        """Answer a query. Several threads may call this at once, while another thread writes.

        Args:
            name: one of `query_names`.
            key: the key that the caller asks about, serialized.
            arguments: the caller's arguments by name, as JSON values.

        Returns:
            The answer, as a JSON value.

        Raises:
            LookupFailure: INVALID_REQUEST if the arguments are wrong. The caller sees any other exception as a defect.

        """


class PluginFailed(TaskFault):
    """A plug-in raised an exception, or returned an object that is no store, or none of the declared layout."""


def custom_supplier(spec: StoreSpec) -> StoreSupplier:
    """Return the supplier of a custom kind. The supplier raises PluginFailed if the plug-in fails or returns no store.

    Raises:
        ConfigurationError: no installed package has this kind, or several have.
        PluginFailed: the supplier can't be imported.

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
    """Calls a plug-in's supplier. An error names the kind, and the result is checked to be a store."""

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
        built_on = store.built_on if isinstance(store, TimedStore) else KEY_VALUE
        if isinstance(store, TimedStore | KeyValueStore) and built_on != spec.built_on:
            raise PluginFailed(
                f"store {spec.name}: kind {spec.kind!r} builds on {built_on} stores, and is declared to build "
                f"on {spec.built_on} stores: {_DECLARED[built_on]}"
            )
        return store
