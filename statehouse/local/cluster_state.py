"""The files in a run directory that let later commands find a local cluster: `state.json`, and a lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from statehouse.local.errors import LocalError
from statehouse.local.process import ProcessIdentity

_VERSION: Final = 2
_FILE: Final = "state.json"
_LOCK: Final = "lock"


class RunDirectoryBusy(LocalError):
    """Another command is starting or stopping the cluster of this directory."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(f"another command is starting or stopping the cluster in {run_dir}; wait until it is done.")


@dataclass(slots=True)
class ClusterState:
    """The name of the cluster's application, its ports by part, and the processes that were started, by part.

    `tls`: its parts call each other over TLS.
    """

    application: str
    ports: dict[str, int]
    processes: dict[str, ProcessIdentity] = field(default_factory=dict)
    tls: bool = False

    @property
    def nodes(self) -> list[str]:
        """The nodes' names, in order."""
        return sorted(name for name in self.ports if name.startswith("node-"))

    def save(self, run_dir: Path) -> None:
        """Write the state, whole or not at all."""
        document = {
            "version": _VERSION,
            "application": self.application,
            "ports": self.ports,
            "tls": self.tls,
            "processes": {
                name: {"pid": identity.pid, "started": identity.started} for name, identity in self.processes.items()
            },
        }
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
            return cls(str(document["application"]), ports, processes, document.get("tls") is True)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LocalError(f"{path} is damaged ({error!r}); stop its processes by hand and delete it.") from error

    @staticmethod
    def forget(run_dir: Path) -> None:
        """Remove the state: nothing runs any more."""
        (run_dir / _FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Lock the run directory for a start or a stop; make the directory if needed.

    Raises:
        RunDirectoryBusy: another command has locked it.

    """
    run_dir.mkdir(parents=True, exist_ok=True)
    # So that a checkout does not show it as new files, whatever its own ignore list says.
    (run_dir / ".gitignore").write_text("*\n")
    with (run_dir / _LOCK).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirectoryBusy(run_dir) from None
        yield
