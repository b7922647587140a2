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

from query_service.checkpoint import Checkpoint
from query_service.faults import Fault, TaskFault
from statehouse.errors import ContractError
from statehouse.topology import GLOBAL_FOLDER, GlobalId, HeldId, StoreSpec, TaskId

log = structlog.get_logger(__name__)

LOCK_FILE = ".lock"
_CHECKPOINT = ".checkpoint"


def store_folder(spec: StoreSpec, partition: int) -> str:
    """Name a store partition's folder: a task has one of each of its stores, a global store has all its partitions."""
    return str(partition) if spec.is_global else spec.name


class TaskLocked(TaskFault):
    """Another process has the task directory; the message names its path and pid."""

    fault = Fault.LOCK_HELD


class CheckpointUnreadable(TaskFault):
    """The readable copy of the stores' places is damaged; the stores themselves have the truth."""

    fault = Fault.CHECKPOINT_UNREADABLE


class TaskDirectory:
    """A task's folder, locked for this process from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writing = threading.RLock()
        """Held by whoever takes the stores' places and writes them, so that an older copy never follows a newer one."""
        self._lock_fd: int | None = None

    def acquire(self) -> None:
        """Create the folder and lock it.

        Raises:
            TaskLocked: another process holds it.
            OSError: the folder can't be written.

        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock_fd)
            raise TaskLocked(
                f"{self.path} is in use by process {holder}: stop it, or give this node another state_dir"
            ) from error
        try:
            if os.fstat(lock_fd).st_ino != (self.path / LOCK_FILE).stat().st_ino:
                raise FileNotFoundError(errno.ENOENT, "the folder was removed meanwhile")
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(lock_fd)  # else the next attempt would find the folder locked by this very process
            raise OSError(error.errno, error.strerror, str(self.path / LOCK_FILE)) from error
        self._lock_fd = lock_fd

    def release(self) -> None:
        """Unlock the folder; its content stays."""
        with self.writing:
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def remove(self) -> None:
        """Remove the folder, unless another process has it.

        Raises:
            TaskLocked: one has.
            OSError: something can't be removed.

        """
        self.acquire()
        try:
            (self.path / _CHECKPOINT).unlink(missing_ok=True)  # first: half a folder must not be reported
            shutil.rmtree(self.path)
        finally:
            self.release()

    def store_path(self, store: str) -> Path:
        """Return where a store's database is."""
        return self.path / store

    def wipe_store(self, store: str) -> None:
        """Remove a store's database and the checkpoints' readable copy.

        Raises:
            OSError: something can't be removed; what is left must not be opened as an empty store.

        """
        (self.path / _CHECKPOINT).unlink(missing_ok=True)
        path = self.store_path(store)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def remove_others(self, stores: Collection[str]) -> None:
        """Remove the databases of stores that the task no longer has; what can't be removed stays, and is logged."""
        for folder in self.path.glob("*/"):
            if folder.name not in stores:
                try:
                    self.wipe_store(folder.name)
                    log.info("store removed that the task no longer has", path=str(folder))
                except OSError as error:
                    log.warning("store can't be removed", path=str(folder), error=str(error))

    def write_checkpoints(self, checkpoints: Mapping[str, Checkpoint]) -> None:
        """Replace the readable copy atomically.

        Raises:
            TaskFault: the folder isn't locked, or no longer: it may be another's by now.
            OSError: it can't be written.

        """
        with self.writing:
            self._write_checkpoints(checkpoints)

    def _write_checkpoints(self, checkpoints: Mapping[str, Checkpoint]) -> None:
        if self._lock_fd is None:
            raise TaskFault(f"{self.path} is not locked for this task")
        content = {store: json.loads(checkpoint.to_json()) for store, checkpoint in sorted(checkpoints.items())}
        fresh = self.path / f"{_CHECKPOINT}.tmp"
        try:
            fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            fresh.replace(self.path / _CHECKPOINT)
        except OSError as error:  # a full disk doesn't say where by itself
            raise OSError(error.errno, error.strerror, str(self.path / _CHECKPOINT)) from error

    def read_checkpoints(self) -> dict[str, Checkpoint]:
        """Return the readable copy, empty if there is none.

        Raises:
            CheckpointUnreadable: it is damaged. It only ever saves work, so nothing is lost.

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

    def task(self, task: HeldId) -> TaskDirectory:
        """Return the folder of a task or of a copy of a global store."""
        return TaskDirectory(self.path / str(task))

    def on_disk(self) -> list[HeldId]:
        """Return the tasks and global stores that have a folder."""
        stores = (self.path / GLOBAL_FOLDER).glob("*/")
        return [*self._tasks(), *(GlobalId(folder.name) for folder in stores)]

    def dormant(self, on_fault: Callable[[Fault], None]) -> dict[TaskId, dict[str, Checkpoint]]:
        """Return the checkpoints of every task folder on disk; those that can't be read are told to `on_fault`."""
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
