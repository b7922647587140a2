"""`statehouse logs`: what the parts of the local cluster write."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from statehouse.cli.options import RUN_DIR, RunDirOption
from statehouse.cli.output import note

if TYPE_CHECKING:
    from statehouse.local.log_lines import FollowedLog

_LOOK_S: Final = 0.2


def logs(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART]...", help="As `statehouse status` names them.  [default: all]", show_default=False
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines; Ctrl-C ends it.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines to begin with, of each log.")] = 20,
    run_dir: RunDirOption = RUN_DIR,
) -> None:
    """Show the last lines of the local cluster's logs, of parts that have ended, too; each line has its part's name."""
    from statehouse.local.log_lines import FollowedLog, chosen_logs  # noqa: PLC0415 - lookups need none of it

    chosen = chosen_logs(run_dir, parts or [])
    width = max(map(len, chosen))
    followed = [
        ("" if len(chosen) == 1 else f"{part:<{width}} | ", FollowedLog(path, lines))
        for part, paths in chosen.items()
        for path in paths
    ]
    _print(followed)
    while follow:
        if not _any_exists(path for paths in chosen.values() for path in paths):
            note("the logs were deleted")
            return
        time.sleep(_LOOK_S)
        _print(followed)


def _print(followed: Iterable[tuple[str, FollowedLog]]) -> None:
    for prefix, log in followed:
        for line in log.lines():
            print(f"{prefix}{line}", flush=True)


def _any_exists(paths: Iterable[Path]) -> bool:
    return any(path.exists() for path in paths)
