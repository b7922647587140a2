"""The files in a run directory: those that let later commands find a local cluster, and all that it leaves there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from statehouse.local.applications import LocalApplication
from statehouse.local.errors import LocalError
from statehouse.local.log_lines import LOGS
from statehouse.local.process import ProcessIdentity
from statehouse.local.tls_files import DEFAULT_RUN_DIR, TLS_FOLDER

_VERSION: Final = 3
_FILE: Final = "state.json"
_LOCK: Final = "lock"
FED_MARKER: Final = "sample-data.fed"
"""Names the samples that the broker has."""
# A stop without keep_data deletes only these: a run directory may hold other people's files.
_OWN_FILES: Final = ("kafka", "nodes", "checkpoints", "spark", LOGS, TLS_FOLDER)
_IGNORES: Final = ".gitignore"
# The lock is the last: without it another command may begin.
_OWN_SMALL_FILES: Final = ("kafka.ready", FED_MARKER, _FILE, f"{_FILE}.new", _IGNORES, _LOCK)


class RunDirectoryBusy(LocalError):
    """Another command is starting or stopping the cluster of this directory."""


class ForeignDirectory(LocalError):
    """A directory that has never been a cluster's has files that a cluster there would write or delete."""


class ClusterStopped(LocalError):
    """Another command has stopped the cluster."""


@dataclass(frozen=True, slots=True)
class DeployedVersion:
    """A version of the cluster's application beside the first one. `partitions`: of its stores; 0: as it says."""

    name: str
    topology: str
    partitions: int = 0
    nodes: tuple[str, ...] = ()

    @property
    def processor(self) -> str:
        """The name of its processor."""
        return f"processor-{self.name}"

    @property
    def controller(self) -> str:
        """The name of its standby controller."""
        return f"controller-{self.name}"


@dataclass(slots=True)
class ClusterState:
    """The cluster's application, its ports by part, and the processes that were started, by part.

    `folder`: the parts' working directory, from which the application is imported. `tls`: they call each other over
    TLS. `deployed`: versions beside the first one. `is_first_retired`: that one is deleted.
    """

    application: LocalApplication
    folder: Path
    ports: dict[str, int]
    processes: dict[str, ProcessIdentity] = field(default_factory=dict)
    tls: bool = False
    deployed: list[DeployedVersion] = field(default_factory=list)
    is_first_retired: bool = False

    @property
    def nodes(self) -> list[str]:
        """The names of the first version's nodes, in order."""
        others = {name for version in self.deployed for name in version.nodes}
        return sorted(name for name in self.ports if name.startswith("node-") and name not in others)

    @property
    def is_alive(self) -> bool:
        """Whether one of its processes runs."""
        return any(process.is_alive for process in self.processes.values())

    def topology_of(self, version: str) -> str:
        """Return the topology's module of a version."""
        return next((each.topology for each in self.deployed if each.name == version), self.application.topology)

    def save(self, run_dir: Path) -> None:
        """Write the state, whole or not at all."""
        document = {"version": _VERSION, **asdict(self), "folder": str(self.folder)}
        scratch = run_dir / f"{_FILE}.new"
        scratch.write_text(json.dumps(document, indent=2) + "\n")
        scratch.replace(run_dir / _FILE)

    @classmethod
    def load(cls, run_dir: Path) -> ClusterState | None:
        """Read the state; None if no cluster was started there.

        Raises:
            LocalError: the file is damaged, or another version wrote it.

        """
        path = run_dir / _FILE
        try:
            document: Mapping[str, Any] = json.loads(path.read_text())
            if document["version"] != _VERSION:
                raise LocalError(f"{path} was written by another version; stop its processes by the pids in it.")
            processes = {
                name: ProcessIdentity(int(entry["pid"]), str(entry["started"]))
                for name, entry in document["processes"].items()
            }
            ports = {name: int(port) for name, port in document["ports"].items()}
            application = LocalApplication(**{name: str(value) for name, value in document["application"].items()})
            deployed = [
                DeployedVersion(
                    str(each["name"]), str(each["topology"]), int(each["partitions"]), tuple(map(str, each["nodes"]))
                )
                for each in document.get("deployed", ())
            ]
            flags = (document.get(name) is True for name in ("tls", "is_first_retired"))
            is_tls, is_first_retired = flags
            return cls(application, Path(document["folder"]), ports, processes, is_tls, deployed, is_first_retired)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LocalError(f"{path} is damaged ({error!r}); stop its processes by hand and delete it.") from error

    @staticmethod
    def forget(run_dir: Path) -> None:
        """Remove the state: nothing runs any more."""
        (run_dir / _FILE).unlink(missing_ok=True)


def is_run_directory(run_dir: Path) -> bool:
    """Whether a directory is a cluster's: it has the default's name, or a cluster was started there and left data."""
    return run_dir.name == DEFAULT_RUN_DIR.name or (run_dir / _LOCK).exists() or (run_dir / _FILE).exists()


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Lock the run directory for a start or a stop; make the directory if needed.

    Raises:
        RunDirectoryBusy: another command has locked it.
        ForeignDirectory: it is somebody else's.

    """
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if run_dir.name == DEFAULT_RUN_DIR.name:  # an earlier version let others read it
        with contextlib.suppress(PermissionError):
            run_dir.chmod(0o700)
    if not is_run_directory(run_dir):
        for name in (*_OWN_FILES, _IGNORES):
            if (run_dir / name).exists():
                raise ForeignDirectory(
                    f"{run_dir} has never been a local cluster's, and has {name}, which a cluster there would "
                    "overwrite and delete; give another --run-dir."
                )
    with contextlib.ExitStack() as held:
        try:
            lock = held.enter_context((run_dir / _LOCK).open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its holder may have deleted it meanwhile; then others have, or will have, another one.
            is_in_place = os.path.samestat(os.fstat(lock.fileno()), (run_dir / _LOCK).stat())
        except (BlockingIOError, FileNotFoundError):
            is_in_place = False
        if not is_in_place:
            raise RunDirectoryBusy(
                f"another command is starting or stopping the cluster in {run_dir}; wait until it is done."
            )
        # So that a checkout does not show it as new files, whatever its own ignore list says.
        (run_dir / _IGNORES).write_text("*\n")
        yield


def delete_data(run_dir: Path) -> None:
    """Delete what a cluster that is stopped has left in a run directory, and the directory if nothing else is in it.

    It must be locked, and isn't any more afterwards: another command may have begun there.
    """
    for name in _OWN_FILES:
        shutil.rmtree(run_dir / name, ignore_errors=True)
    for name in _OWN_SMALL_FILES:
        (run_dir / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else is in it
        run_dir.rmdir()
