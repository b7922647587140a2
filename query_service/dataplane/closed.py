"""Reads a store of the data plane that no process has open."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from query_service.dataplane.holding import FOLDER
from query_service.states.checkpoint import Checkpoint
from query_service.stores.engine import StoreUnusable
from statehouse.link.proxy import AUTO, PROGRAM, find_program

_READ_S: Final = 60.0


def is_of_data_plane(path: Path) -> bool:
    """Whether the data plane wrote the store in a directory."""
    return (path / FOLDER).is_dir()


def read_closed_in_data_plane(path: Path) -> tuple[Checkpoint | None, int | None]:
    """Return the checkpoint and the number of entries of a store; None of what nobody has written.

    Raises:
        StoreUnusable: the directory holds no intact database of the data plane's, or there is no program to read it.

    """
    program = find_program(AUTO)
    if program is None:
        raise StoreUnusable(f"{path}: only {PROGRAM} reads it, which is not there")
    # It needs nothing of our environment, in which there may be secrets.
    command = [program, f"-show-store={path / FOLDER}"]
    ran = subprocess.run(command, capture_output=True, timeout=_READ_S, check=False, env={})
    if ran.returncode != 0:
        raise StoreUnusable(f"{path}: {ran.stderr.decode(errors='replace').strip()}")
    if not ran.stdout:
        return None, None
    try:
        return Checkpoint.from_json(ran.stdout), json.loads(ran.stdout).get("entries")
    except ValueError as error:
        raise StoreUnusable(f"{path}: {error}") from error
