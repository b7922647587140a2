"""Versions of the code to upgrade from and to: the last release, and this tree with changed numbers.

All run in the virtual environment of the tests: the release's lock files name the same versions of all packages that
its nodes, routers and controllers import.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.trees import build_program, program_of
from tests.support.fleet import THIS, Build
from tests.support.proxy import PROXY

_PACKAGES: Final = ("statehouse", "processor", "query_service", "router")
_FORMATS: Final = "statehouse/contract/formats.py"
_STORE_FORMAT: Final = "query_service/states/checkpoint.py"


def last_release(directory: Path) -> Build:
    """Return the newest version of RELEASES.toml: its commit's files in `directory`, with its proxy, built by Go."""
    newest = tomllib.loads((THIS.root / "RELEASES.toml").read_text())["release"][0]
    root = directory / f"release-{newest['version']}"
    archive = subprocess.run(
        ["git", "-C", str(THIS.root), "archive", newest["commit"], *_PACKAGES, "proxy"], capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(root, filter="data")
    build_program(root)
    return _build(newest["version"], root, program_of(root))


def changed(name: str, directory: Path, changes: Mapping[str, Mapping[str, str]]) -> Build:
    """Return a copy of this tree in which texts of files are replaced; each text must be there."""
    root = directory / name
    for package in _PACKAGES:
        shutil.copytree(THIS.root / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path, texts in changes.items():
        content = (root / path).read_text()
        for before, after in texts.items():
            assert before in content, f"{path} has no {before!r}"
            content = content.replace(before, after)
        (root / path).write_text(content)
    return _build(name, root, PROXY)


def reads_the_next_format(directory: Path) -> Build:
    """Return a version that reads the next format of all records, and writes the present one."""
    return changed("reads-next", directory, {_FORMATS: {"written=0, read=0": "written=0, read=1"}})


def writes_the_next_format(directory: Path) -> Build:
    """Return the version after that one, which writes the next format."""
    return changed("writes-next", directory, {_FORMATS: {"written=0, read=0": "written=1, read=1"}})


def has_another_store_format(directory: Path) -> Build:
    """Return a version whose nodes can't use the stores that this one has written."""
    return changed("other-stores", directory, {_STORE_FORMAT: {"FORMAT_VERSION = 2": "FORMAT_VERSION = 3"}})


def _build(name: str, root: Path, proxy: Path) -> Build:
    return Build(name, root, {"PYTHONPATH": str(root), "STATEHOUSE_PROXY": str(proxy)})
