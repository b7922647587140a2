"""How far Spark is, read from the checkpoint of its query."""

from __future__ import annotations

from pathlib import Path

from processor.spark.checkpoint import Offsets, parse_offsets


def committed(checkpoints: Path) -> Offsets:
    """Return where the newest committed batch ends in the source; nothing before the first one."""
    return _ends(checkpoints, _newest(checkpoints, "commits"))


def planned(checkpoints: Path) -> Offsets:
    """Return where the newest batch ends, committed or not."""
    return _ends(checkpoints, _newest(checkpoints, "offsets"))


def _newest(checkpoints: Path, log: str) -> Path | None:
    """Return the newest file of one of the logs; the directory has one query."""
    files = [file for file in checkpoints.glob(f"**/{log}/*") if file.name.isdigit()]
    return max(files, key=lambda file: int(file.name), default=None)


def _ends(checkpoints: Path, newest: Path | None) -> Offsets:
    if newest is None:
        return {}
    (file,) = checkpoints.glob(f"**/offsets/{newest.name}")
    return parse_offsets(file.read_text(encoding="utf-8"))
