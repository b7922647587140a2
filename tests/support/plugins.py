"""Packages with entry points that tests make up: laid out as pip installs them, in their own folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, name: str, group: str, entry_points: Mapping[str, str], module: str) -> None:
    """Write a package whose one module is named like it; `folder` must be on the import path."""
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{kind} = {value}" for kind, value in entry_points.items()]
    (information / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    (folder / f"{name}.py").write_text(module)
