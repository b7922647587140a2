"""What stands in a state directory: read from the disk alone, without a broker, and without getting in a node's way."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from query_service.checkpoint import Checkpoint
from query_service.disk import LOCK_FILE, CheckpointUnreadable, TaskDirectory
from query_service.stores.engine import StoreUnusable
from query_service.stores.rocksdb_engine import read_closed_store
from statehouse.errors import ConfigurationError, ContractError
from statehouse.topology import GLOBAL_FOLDER, GlobalId, HeldId, TaskId

# A state directory, an application's in it, a task's in that, a global store's one deeper: what is looked for is at
# most this far below what is named.
_MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class StoreOnDisk:
    """A store's partition as it is on disk; None is unknown.

    Attributes:
        path: the store's directory.
        task: the task it is of, or "global/<store>".
        store: the store's name.
        partition: the changelog partition.
        topic: changelog topic.
        topic_id: the broker's id of it.
        position: next offset needed.
        at_end: when the state was last known to hold all that the log held, ISO 8601 in UTC.
        format_version: of the checkpoint.
        size_bytes: bytes of the files.
        keys: RocksDB's estimate of the number of entries.
        locked_by: process id of the node that has it open.
        note: where the facts are from if not from the store itself, or why there are none.

    """

    path: str
    task: str
    store: str
    partition: int
    topic: str | None
    topic_id: str | None
    position: int | None
    at_end: str | None
    format_version: int | None
    size_bytes: int
    keys: int | None
    locked_by: str | None
    note: str


def stores_in(directory: Path) -> list[StoreOnDisk]:
    """Return every store under a state directory, an application's directory, a task's or a global store's.

    Raises:
        ConfigurationError: there is no such directory.

    """
    if not directory.is_dir():
        raise ConfigurationError(f"{directory} is no directory: name a node's state_dir or a folder in it")
    return [store for held, path in _held_in(directory.resolve(), _MAX_DEPTH) for store in _stores_of(held, path)]


def _held_in(directory: Path, depth: int) -> Iterator[tuple[HeldId, Path]]:
    held = _held_as(directory)
    if held is not None:
        yield held, directory
    elif depth > 0:
        for child in sorted(directory.iterdir()):
            if child.is_dir():
                yield from _held_in(child, depth - 1)


def _held_as(directory: Path) -> HeldId | None:
    """Return what a folder is of, None if it is neither a task's nor a global store's."""
    try:
        return TaskId.parse(directory.name)
    except ContractError:
        # An application may be named as that folder is: only a store's has a lock in it.
        is_global = directory.parent.name == GLOBAL_FOLDER and (directory / LOCK_FILE).exists()
        return GlobalId(directory.name) if is_global else None


def _stores_of(held: HeldId, path: Path) -> Iterator[StoreOnDisk]:
    try:
        copies = TaskDirectory(path).read_checkpoints()
    except CheckpointUnreadable:
        copies = {}
    names = {child.name for child in path.iterdir() if child.is_dir()} | copies.keys()
    if isinstance(held, GlobalId):
        names = {name for name in names if name.isdecimal()}  # its stores' folders are named by their partitions
    with _borrowed(path) as holder:
        for name in sorted(names):
            if holder is None:
                yield _from_store(held, path, name)
            else:
                note = f"open in process {holder}: from .checkpoint" if name in copies else f"open in process {holder}"
                yield _described(held, path, name, copies.get(name), None, holder, note)


@contextmanager
def _borrowed(path: Path) -> Iterator[str | None]:
    """Keep nodes out of a task's folder for the moment it is read; give the process id of one that is in it."""
    try:
        lock_fd = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield os.pread(lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
        else:
            yield None
    finally:
        os.close(lock_fd)


def _from_store(held: HeldId, path: Path, name: str) -> StoreOnDisk:
    try:
        checkpoint, keys = read_closed_store(path / name)
    except StoreUnusable as error:
        return _described(held, path, name, None, None, None, f"can't be read: {error}")
    return _described(
        held, path, name, checkpoint, keys, None, "" if checkpoint else "no checkpoint: restored from the start"
    )


def _described(
    held: HeldId,
    path: Path,
    name: str,
    checkpoint: Checkpoint | None,
    keys: int | None,
    locked_by: str | None,
    note: str,
) -> StoreOnDisk:
    at_end = None if checkpoint is None else datetime.fromtimestamp(checkpoint.at_end_ms / 1000, UTC)
    return StoreOnDisk(
        str(path / name),
        str(held),
        held.store if isinstance(held, GlobalId) else name,
        int(name) if isinstance(held, GlobalId) else held.partition,
        None if checkpoint is None else checkpoint.topic,
        None if checkpoint is None else checkpoint.topic_id,
        None if checkpoint is None else checkpoint.position,
        None if at_end is None else at_end.isoformat(timespec="milliseconds"),
        None if checkpoint is None else checkpoint.format_version,
        _size_of(path / name),
        keys,
        locked_by,
        note,
    )


def _size_of(path: Path) -> int:
    """Sum the files' sizes; a running node may remove some meanwhile."""
    size = 0
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                size += (Path(folder) / file).stat().st_size
            except FileNotFoundError:
                continue
    return size
