"""Shows the stores in a state directory. Reads only the disk, needs no broker, and does not disturb a running node."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from query_service.dataplane.closed import is_of_data_plane, read_closed_in_data_plane
from query_service.disk.directory import LOCK_FILE, CheckpointUnreadable, TaskDirectory
from query_service.states.checkpoint import Checkpoint
from query_service.stores.engine import StoreUnusable
from query_service.stores.rocksdb_engine import read_closed_store
from statehouse.contract.topology import GLOBAL_FOLDER, AnyTaskId, GlobalId, TaskId
from statehouse.errors import ConfigurationError, ContractError

# A state directory has applications' directories, these have tasks' directories; global stores' are one level deeper.
# So a store's directory is at most this many levels below the named one.
_MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class StoreOnDisk:
    """A store's partition as it is on disk; None means unknown.

    Attributes:
        path: the store's directory.
        task: the task that it belongs to, or "global/<store>".
        store: the store's name.
        partition: the changelog partition.
        topic: the changelog topic.
        topic_id: the broker's id of the topic.
        position: the next offset that the store needs.
        at_end: when the state was last known to hold everything in the log, ISO 8601 in UTC.
        format_version: format of the checkpoint.
        size_bytes: size of the files.
        keys: number of entries; RocksDB's is an estimate.
        locked_by: process id of the node that has the store open.
        note: the source of the facts if it is not the store itself, or why there are no facts.

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
    """Return every store under a directory: a state directory, or an application's, a task's or a global store's.

    Raises:
        ConfigurationError: the directory does not exist.

    """
    if not directory.is_dir():
        raise ConfigurationError(f"{directory} is not a directory: name a node's state_dir or a folder in it")
    return [store for task, path in _tasks_in(directory.resolve(), _MAX_DEPTH) for store in _stores_of(task, path)]


def _tasks_in(directory: Path, depth: int) -> Iterator[tuple[AnyTaskId, Path]]:
    task = _task_at(directory)
    if task is not None:
        yield task, directory
    elif depth > 0:
        for child in sorted(directory.iterdir()):
            if child.is_dir():
                yield from _tasks_in(child, depth - 1)


def _task_at(directory: Path) -> AnyTaskId | None:
    """Return the task or global store that a folder belongs to, None if it belongs to neither."""
    try:
        return TaskId.parse(directory.name)
    except ContractError:
        # An application may have the same name as that folder, but only a global store's folder has a lock in it.
        is_global = directory.parent.name == GLOBAL_FOLDER and (directory / LOCK_FILE).exists()
        return GlobalId(directory.name) if is_global else None


def _stores_of(task: AnyTaskId, path: Path) -> Iterator[StoreOnDisk]:
    try:
        copies = TaskDirectory(path).read_checkpoints()
    except CheckpointUnreadable:
        copies = {}
    names = {child.name for child in path.iterdir() if child.is_dir()} | copies.keys()
    if isinstance(task, GlobalId):
        names = {name for name in names if name.isdecimal()}  # its folders are named after the partitions
    with _borrowed(path) as owner:
        for name in sorted(names):
            if owner is None:
                yield _from_store(task, path, name)
            else:
                note = f"open in process {owner}: from .checkpoint" if name in copies else f"open in process {owner}"
                yield _described(task, path, name, copies.get(name), None, owner, note)


@contextmanager
def _borrowed(path: Path) -> Iterator[str | None]:
    """Keep nodes from opening a task's folder while it is read. Yield the process id of a node that has it open."""
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


def _from_store(task: AnyTaskId, path: Path, name: str) -> StoreOnDisk:
    read = read_closed_in_data_plane if is_of_data_plane(path / name) else read_closed_store
    try:
        checkpoint, keys = read(path / name)
    except StoreUnusable as error:
        return _described(task, path, name, None, None, None, f"can't be read: {error}")
    return _described(
        task, path, name, checkpoint, keys, None, "" if checkpoint else "no checkpoint: restored from the start"
    )


def _described(
    task: AnyTaskId,
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
        str(task),
        task.store if isinstance(task, GlobalId) else name,
        int(name) if isinstance(task, GlobalId) else task.partition,
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
    """Return the sum of the files' sizes, in bytes. A running node may remove files meanwhile."""
    size = 0
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                size += (Path(folder) / file).stat().st_size
            except FileNotFoundError:
                continue
    return size
