"""What the data plane holds: which stores, and how they are opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from query_service.dataplane.engine import DataPlaneEngine
from query_service.dataplane.orders import DataPlane
from query_service.stores.catalog import refuse_impossible
from query_service.stores.engine import StoreUnusable
from query_service.stores.engine_store import EngineStore
from query_service.stores.kept_moments import moment_bytes
from query_service.stores.key_value import KeyValueStore
from query_service.stores.summed import Summing, WantedSums
from query_service.stores.versioned import VersionedStore
from query_service.stores.windows import SESSIONS, WINDOWS, K, TimedStore
from statehouse.contract.topology import KEY_VALUE, SESSION, VERSIONED, WINDOW, StoreSpec
from statehouse.control.v1 import engine_pb2
from statehouse.kafka.security import read_credentials
from statehouse.link.proxy import find_program
from statehouse.settings import NodeSettings

FOLDER: Final = "pebble"
"""Within a store's folder: so neither engine takes the other's files for its own."""


def is_wanted(settings: NodeSettings) -> bool:
    """Whether a node has a data plane: the settings ask for it, or leave it open and there is a program.

    Raises:
        ConfigurationError: they name a program that does not exist.

    """
    return settings.engine == "go" or (settings.engine == "auto" and find_program(settings.proxy) is not None)


def holds(spec: StoreSpec) -> bool:
    """Whether the data plane holds a store: one of a built-in kind."""
    return spec.kind in _KINDS


def kind_of(spec: StoreSpec) -> engine_pb2.EngineKind.ValueType:
    """Return what a store is built on, as the data plane has it; unspecified if that is no built-in kind."""
    kind = _KINDS.get(spec.kind)
    return engine_pb2.ENGINE_KIND_UNSPECIFIED if kind is None else kind.number


def start_order(settings: NodeSettings, client_id: str) -> engine_pb2.EngineOrder:
    """Return the order that comes before all others, with what brokers ask for to log in.

    Raises:
        ConfigurationError: the file with it can't be read.

    """
    security = settings.brokers.security
    start = engine_pb2.EngineStart(
        bootstrap=[each.strip() for each in settings.brokers.bootstrap.split(",")],
        client_id=client_id,
        is_encrypted=security.is_encrypted,
        ca=security.ca,
        certificate=security.certificate,
        key=security.key,
        block_cache_bytes=settings.block_cache_bytes - settings.write_buffer_bytes,
        write_buffer_bytes=settings.write_buffer_bytes,
        transfer_bytes_per_s=settings.peer_bytes_per_s,
    )
    if security.has_login:
        credentials = read_credentials(security.credentials)
        start.mechanism = str(security.mechanism)
        start.user, start.password = credentials.user, credentials.password
        start.token_url, start.scope = security.oauth_token_url, security.oauth_scope
    return engine_pb2.EngineOrder(start=start)


class DataPlaneStore(EngineStore):
    """A store whose entries are in the data plane. It reads them as others do; nothing is written from here."""

    @property
    def engine(self) -> DataPlaneEngine:
        """The engine."""
        return cast("DataPlaneEngine", self._engine)


class DataPlaneKeyValue(DataPlaneStore, KeyValueStore):
    """A key-value store of the data plane."""

    def summing(self, wanted: WantedSums) -> AbstractContextManager[Summing]:
        """Begin a sum of all entries, which the data plane makes."""
        return self.engine.summing(wanted)


class DataPlaneTimed(DataPlaneStore, TimedStore[K]):
    """A window or session store of the data plane."""

    def summing(self, wanted: WantedSums) -> AbstractContextManager[Summing]:
        """Begin a sum of the entries that count, which the data plane makes."""
        return self.engine.summing(wanted, self.first_counted_ms(wanted))


class DataPlaneVersioned(DataPlaneStore, VersionedStore):
    """A versioned store of the data plane."""


_AnyStore = DataPlaneKeyValue | DataPlaneTimed[Any] | DataPlaneVersioned


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a kind is called in the data plane, and who reads a store of it."""

    number: engine_pb2.EngineKind.ValueType
    reader: Callable[[StoreSpec, DataPlaneEngine], _AnyStore]


_KINDS: Final[Mapping[str, _Kind]] = MappingProxyType(
    {
        KEY_VALUE: _Kind(engine_pb2.ENGINE_KIND_KEY_VALUE, lambda _spec, engine: DataPlaneKeyValue(engine)),
        WINDOW: _Kind(
            engine_pb2.ENGINE_KIND_WINDOW, lambda spec, engine: DataPlaneTimed(engine, WINDOWS, spec.retention_ms)
        ),
        SESSION: _Kind(
            engine_pb2.ENGINE_KIND_SESSION, lambda spec, engine: DataPlaneTimed(engine, SESSIONS, spec.retention_ms)
        ),
        VERSIONED: _Kind(
            engine_pb2.ENGINE_KIND_VERSIONED, lambda spec, engine: DataPlaneVersioned(engine, spec.retention_ms)
        ),
    }
)


def open_in_data_plane(
    plane: DataPlane, spec: StoreSpec, path: Path, *, stores: int, tail_bytes: int, memory_bytes: int
) -> _AnyStore:
    """Open one partition of a store: in a directory if the store is persistent, otherwise in memory.

    `stores`: how many the node has, or is about to have. `tail_bytes`: what the latest records of the changelog may
    take. `memory_bytes`: what the entries of a store in memory may take.

    Raises:
        StoreUnusable: the directory holds no intact database of the data plane's.
        TaskFault: the disk is full, or can't be read or written.
        ConfigurationError: no node can serve the specification.

    """
    refuse_impossible(spec)
    if spec.is_persistent:
        if (path / "CURRENT").exists():
            raise StoreUnusable(f"{path}: another engine wrote it")
        path.mkdir(parents=True, exist_ok=True)
    opening = engine_pb2.EngineOpen(
        store=plane.new_store(),
        path=str(path / FOLDER),
        kind=_KINDS[spec.kind].number,
        retention_ms=spec.retention_ms,
        retain_duplicates=spec.retain_duplicates,
        stores=stores,
        tail_bytes=tail_bytes,
        memory_bytes=0 if spec.is_persistent else memory_bytes,
        moment_bytes=moment_bytes(spec, memory_bytes),
    )
    engine = DataPlaneEngine(plane, opening)
    store = _KINDS[spec.kind].reader(spec, engine)
    engine.on_stream_time = store.see_stream_time
    return store
