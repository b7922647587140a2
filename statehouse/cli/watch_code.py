"""What `statehouse up` does while it stays: looks after the parts, and starts the processor again when code changes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

from statehouse.cli.output import note
from statehouse.cli.start_display import shown_progress
from statehouse.local.applications import ApplicationError
from statehouse.local.cluster import LocalCluster
from statehouse.local.errors import LocalError
from statehouse.local.process import ProcessFailed

_LOOK_S: Final = 0.5


class WatchedCode:
    """The Python files of a module's folder, whose changes are noticed from now on; those in `but` aside.

    Raises:
        LocalError: the module has no file.

    """

    def __init__(self, module: str, folder: Path, but: Path) -> None:
        # Loaded only here: nobody else needs the library.
        from statehouse.local.code_changes import code_changes, code_folder  # noqa: PLC0415

        self._folder = code_folder(module, folder)
        self._changes = code_changes(self._folder, but.resolve())
        next(self._changes)
        note(f"watching the Python files in {self._folder}")

    def changed(self) -> bool:
        """Whether files have changed since the last call, and say so. It takes half a second at the most."""
        changed = next(self._changes)
        if changed:
            note(f"changed: {', '.join(str(path.relative_to(self._folder)) for path in changed)}")
        return bool(changed)

    def await_change(self) -> None:
        """Return once a file changes."""
        note("waiting for the next change of the code")
        while not self.changed():
            pass


def begin_anew(broken: ApplicationError, run_dir: Path) -> NoReturn:
    """Say why an application can't be imported, wait for a change of its code, and run this command again.

    In a new program: what Python has imported can't be imported anew reliably.
    """
    code = WatchedCode(broken.module, Path.cwd(), run_dir)
    note(f"error: {broken}")
    code.await_change()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - it is this very command


def start_watched(cluster: LocalCluster, code: WatchedCode) -> None:
    """Start the cluster. When the application's code fails, say why, and try again once it has changed.

    Raises:
        LocalError: something else has failed. All is stopped then, and its data kept.

    """
    try:
        while not _starts(cluster):
            code.await_change()
    except LocalError:
        cluster.stop(keep_data=True)
        raise
    except BaseException:
        cluster.stop()
        raise


def stay(cluster: LocalCluster, code: WatchedCode | None) -> None:
    """Look after the cluster's parts until one fails.

    `code`: the application's, if it is watched. A processor that fails is then reported, and started again at the next
    change.

    Raises:
        ProcessFailed: a part has ended.
        ClusterStopped: another command has stopped the cluster.

    """
    note("in the foreground; Ctrl-C stops everything")
    if code is None:
        while True:
            cluster.check()
            time.sleep(_LOOK_S)
    is_broken = False
    while True:
        is_changed = code.changed()
        cluster.check(but=[cluster.processor])
        if is_changed and cluster.processor in cluster.parts:
            is_broken = not _starts_again(cluster)
        elif not is_broken:
            try:
                cluster.check()
            except ProcessFailed as failure:
                is_broken = True
                _tell_broken(failure)


def _starts(cluster: LocalCluster) -> bool:
    try:
        cluster.start(spare=True, check=True)
    except ProcessFailed as failure:
        if not cluster.is_of_code(failure):
            raise
        note(f"error: {failure}")
        return False
    return True


def _starts_again(cluster: LocalCluster) -> bool:
    note("the processor starts again")
    try:
        with shown_progress() as cluster.progress:
            cluster.restart(cluster.processor)
    except ProcessFailed as failure:
        _tell_broken(failure)
        return False
    return True


def _tell_broken(failure: ProcessFailed) -> None:
    note(f"error: {failure}")
    note("lookups are still answered; waiting for the next change of the code")
