"""Opens stores: chooses the class and the engine that a specification asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from query_service.stores.base import StateStore
from query_service.stores.custom import StoreSupplier, custom_supplier
from query_service.stores.engine import Engine
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.resources import StoreResources
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.stores.versioned import VersionedStore
from query_service.stores.windows import SESSIONS, WINDOWS, TimedStore
from statehouse.contract.topology import KEY_VALUE, SESSION, VERSIONED, WINDOW, StoreSpec
from statehouse.errors import ConfigurationError

_BUILT_IN: Mapping[str, StoreSupplier] = MappingProxyType(
    {
        KEY_VALUE: lambda _spec, engine: KeyValueStore(engine),
        WINDOW: lambda spec, engine: TimedStore(
            engine, WINDOWS, spec.retention_ms, retain_duplicates=spec.retain_duplicates
        ),
        SESSION: lambda spec, engine: TimedStore(engine, SESSIONS, spec.retention_ms),
        VERSIONED: lambda spec, engine: VersionedStore(engine, spec.retention_ms),
    }
)


def layout_of(spec: StoreSpec, store: StateStore | None) -> str:
    """Return what a store's content depends on, as a text. `store`: the open one; of a built-in kind it may be None.

    If the layout changes, the state on disk is useless. The retention is part of the layout: it decides how time is cut
    into segments and which entries have been dropped. So is `retain_duplicates`: it decides whether a None value
    deletes. So is whether a custom kind keeps timestamps: a new version of its package may begin to, or stop.
    """
    kind = f"{spec.kind}:{spec.layout}" if spec.layout else spec.kind
    layout = f"{kind}/{spec.retention_ms}" if spec.retention_ms else kind
    if spec.retain_duplicates:
        layout += "/duplicates"
    is_plain = isinstance(store, KeyValueStore) and not store.keeps_timestamps
    return f"{layout}/no-timestamps" if is_plain else layout


def refuse_impossible(spec: StoreSpec) -> None:
    """Refuse a specification that no engine can serve.

    Raises:
        ConfigurationError: it lacks a retention, or is global and has times.

    """
    if spec.built_on in {WINDOW, SESSION, VERSIONED} and spec.retention_ms <= 0:
        raise ConfigurationError(f"store {spec.name} is a {spec.kind} store without a retention")
    if spec.is_global and spec.kind != KEY_VALUE:
        raise ConfigurationError(f"store {spec.name} is a global {spec.kind} store; a global store is a key-value one")


def open_store(spec: StoreSpec, path: Path, resources: StoreResources) -> StateStore:
    """Open one partition of a store: under the directory `path` if the store is persistent, otherwise in memory.

    Raises:
        StoreUnusable: the directory holds no intact store of ours.
        DiskRefused: the disk is full, or can't be read or written.
        PluginFailed: the plug-in of a custom kind failed.
        ConfigurationError: this node can't serve the specification.

    """
    refuse_impossible(spec)
    supply = _BUILT_IN.get(spec.kind) or custom_supplier(spec)
    engine: Engine = (
        RocksDBEngine(path, resources) if spec.is_persistent else MemoryEngine(resources.memory_store_max_bytes)
    )
    try:
        return supply(spec, engine)
    except BaseException:
        engine.close()  # an open engine would keep the database locked when the task is opened again
        raise
