"""What the data plane holds: which stores, and how they are opened."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from query_service.dataplane.engine import DataPlaneEngine
from query_service.dataplane.orders import DataPlane
from query_service.stores.engine import StoreUnusable
from query_service.stores.key_value import KeyValueStore
from statehouse.contract.topology import KEY_VALUE, StoreSpec
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
    """Whether the data plane holds a store: a key-value store on disk, so far."""
    return spec.kind == KEY_VALUE and spec.is_persistent


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
    )
    if security.has_login:
        credentials = read_credentials(security.credentials)
        start.mechanism = str(security.mechanism)
        start.user, start.password = credentials.user, credentials.password
        start.token_url, start.scope = security.oauth_token_url, security.oauth_scope
    return engine_pb2.EngineOrder(start=start)


class DataPlaneStore(KeyValueStore):
    """A key-value store whose entries are in the data plane."""

    def __init__(self, engine: DataPlaneEngine) -> None:
        super().__init__(engine)
        self.engine = engine


def open_in_data_plane(plane: DataPlane, path: Path, *, stores: int, tail_bytes: int) -> DataPlaneStore:
    """Open one partition of a store in a directory.

    `stores`: how many the node has, or is about to have. `tail_bytes`: what the latest records of the changelog may
    take.

    Raises:
        StoreUnusable: the directory holds no intact database of the data plane's.
        TaskFault: the disk is full, or can't be read or written.

    """
    if (path / "CURRENT").exists():
        raise StoreUnusable(f"{path}: another engine wrote it")
    path.mkdir(parents=True, exist_ok=True)
    opening = engine_pb2.EngineOpen(
        store=plane.new_store(),
        path=str(path / FOLDER),
        kind=engine_pb2.ENGINE_KIND_KEY_VALUE,
        stores=stores,
        tail_bytes=tail_bytes,
    )
    return DataPlaneStore(DataPlaneEngine(plane, opening))
