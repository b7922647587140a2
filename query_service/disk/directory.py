"""The state directory: `<state_dir>/<application_id>/<task>/{.lock,.checkpoint,<store>/}`."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import structlog

from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault, TaskFault
from statehouse.contract.topology import GLOBAL_FOLDER, AnyTaskId, GlobalId, StoreSpec, TaskId
from statehouse.errors import ContractError

log = structlog.get_logger(__name__)

LOCK_FILE = ".lock"
_CHECKPOINT = ".checkpoint"
_CONDEMNED = ".restore"


def store_folder(spec: StoreSpec, partition: int) -> str:
    """Return the name of a store partition's folder, within the folder of its task or its global store.

    A task has one partition of each of its stores, so the store's name is enough. A global store has all its
    partitions, so their folders have the partitions' numbers.
    """
    return str(partition) if spec.is_global else spec.name


GIVEN_FOLDER = "given"
"""Within a store's folder: checkpoints that other nodes read. They are no part of the store."""
FETCHED_FOLDER = "fetched"
"""Within a store's folder: files of another node's, as long as they aren't all there."""


def remove_given(path: Path) -> None:
    """Remove what a store's folder has for other nodes. If that fails, the next start tries again."""
    shutil.rmtree(path / GIVEN_FOLDER, ignore_errors=True)


class TaskLocked(TaskFault):
    """Another process uses the task's folder; the message names the path and the process id."""

    fault = Fault.LOCK_HELD


class CheckpointUnreadable(TaskFault):
    """The readable copy of the checkpoints is damaged; the valid checkpoints are in the stores."""

    fault = Fault.CHECKPOINT_UNREADABLE


class TaskDirectory:
    """A task's folder, locked for this process from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writing = threading.RLock()
        """Held by a thread that reads and writes the checkpoints, so that an older copy never replaces a newer one."""
        self._lock_fd: int | None = None

    def acquire(self) -> None:
        """Create the folder and lock it.

        Raises:
            TaskLocked: another process has locked it.
            OSError: the folder can't be written.

        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock_fd).st_ino != (self.path / LOCK_FILE).stat().st_ino:
                raise FileNotFoundError(errno.ENOENT, "the folder was removed meanwhile")
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            owner = os.pread(lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock_fd)
            raise TaskLocked(
                f"{self.path} is in use by process {owner}: stop it, or give this node another state_dir"
            ) from error
        except OSError as error:
            os.close(lock_fd)  # otherwise the next attempt would find the folder locked by this same process
            raise OSError(error.errno, error.strerror, str(self.path / LOCK_FILE)) from error
        self._lock_fd = lock_fd

    def release(self) -> None:
        """Unlock the folder. Its content stays."""
        with self.writing:
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def remove(self) -> None:
        """Remove the folder, unless another process uses it.

        Raises:
            TaskLocked: another process uses it.
            OSError: something can't be removed.

        """
        self.acquire()
        try:
            (self.path / _CHECKPOINT).unlink(missing_ok=True)  # first, as half a folder must not be reported
            shutil.rmtree(self.path)
        finally:
            self.release()

    def store_path(self, store: str) -> Path:
        """Return the path of a store's database."""
        return self.path / store

    def wipe_store(self, store: str) -> None:
        """Remove a store's database and the readable copy of the checkpoints.

        Raises:
            OSError: something can't be removed. The rest must not be opened as an empty store.

        """
        (self.path / _CHECKPOINT).unlink(missing_ok=True)
        path = self.store_path(store)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def condemn_store(self, store: str) -> None:
        """Mark a store's database as one that is not to be opened any more. What removes it removes the mark.

        Raises:
            OSError: it can't be marked.

        """
        (self.store_path(store) / _CONDEMNED).touch()

    def is_condemned(self, store: str) -> bool:
        """Whether a store's database is marked so."""
        return (self.store_path(store) / _CONDEMNED).exists()

    def remove_others(self, stores: Collection[str]) -> None:
        """Remove the databases of stores that the task no longer has. If one can't be removed, log it and leave it."""
        for folder in self.path.glob("*/"):
            if folder.name not in stores:
                try:
                    self.wipe_store(folder.name)
                    log.info("removed a store that the task no longer has", path=str(folder))
                except OSError as error:
                    log.warning("store can't be removed", path=str(folder), error=str(error))

    def write_checkpoints(self, checkpoints: Mapping[str, Checkpoint]) -> None:
        """Replace the readable copy of the checkpoints atomically. `checkpoints`: by folder of the store.

        Raises:
            TaskFault: this process has not locked the folder, so another process may use it.
            OSError: the copy can't be written.

        """
        content = {store: json.loads(checkpoint.to_json()) for store, checkpoint in sorted(checkpoints.items())}
        fresh = self.path / f"{_CHECKPOINT}.tmp"
        with self.writing:
            if self._lock_fd is None:
                raise TaskFault(f"{self.path} is not locked for this task")
            try:
                fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
                fresh.replace(self.path / _CHECKPOINT)
            except OSError as error:  # the error of a full disk does not name the path
                raise OSError(error.errno, error.strerror, str(self.path / _CHECKPOINT)) from error

    def read_checkpoints(self) -> dict[str, Checkpoint]:
        """Return the readable copy of the checkpoints, by folder of the store; empty if there is none.

        Raises:
            CheckpointUnreadable: the copy is damaged. It only ever saves work, so nothing is lost.

        """
        try:
            content = json.loads((self.path / _CHECKPOINT).read_text(encoding="utf-8"))
            return {store: Checkpoint.from_json(json.dumps(fields)) for store, fields in content.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise CheckpointUnreadable(f"{self.path / _CHECKPOINT}: {error}") from error


class StateDirectory:
    """All task folders of an application on this node."""

    def __init__(self, state_dir: Path, application_id: str) -> None:
        self.path = state_dir.expanduser() / application_id
        self.path.mkdir(parents=True, exist_ok=True)
        if self.path.resolve().is_relative_to("/tmp"):  # noqa: S108 - warned about, not used by us
            log.warning("state_dir is under /tmp: a reboot costs a full restore; set state_dir", path=str(self.path))

    def task(self, task: AnyTaskId) -> TaskDirectory:
        """Return the folder of a task or of a copy of a global store."""
        return TaskDirectory(self.path / str(task))

    def on_disk(self) -> list[AnyTaskId]:
        """Return the tasks and global stores that have a folder."""
        stores = (self.path / GLOBAL_FOLDER).glob("*/")
        return [*self._tasks(), *(GlobalId(folder.name) for folder in stores)]

    def dormant(self, on_fault: Callable[[Fault], None]) -> dict[TaskId, dict[str, Checkpoint]]:
        """Return the checkpoints of every task folder on disk. Calls `on_fault` for each copy that can't be read."""
        found = {}
        for task in self._tasks():
            try:
                checkpoints = self.task(task).read_checkpoints()
            except CheckpointUnreadable as error:
                log.warning("checkpoint file can't be read", task=str(task), error=str(error))
                on_fault(error.fault)
                continue
            if checkpoints:
                found[task] = checkpoints
        return found

    def _tasks(self) -> Iterator[TaskId]:
        for folder in self.path.glob("*/"):
            try:
                yield TaskId.parse(folder.name)
            except ContractError:
                continue
