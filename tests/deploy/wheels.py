"""What tests install: our wheels, the versions that are locked, and jars."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from hatch_build import PLATFORMS
from statehouse.local.jars import default_cache_dir, resolve_jars
from tests.deploy.files import ROOT
from tools.dist import build_wheel


def build_platform_wheel(folder: Path) -> Path:
    """Build this machine's wheel, with the proxy, into a folder."""
    name = next(name for name, each in PLATFORMS.items() if each.machine == platform.machine())
    return build_wheel(ROOT, folder, name, {})


def pinned(names: Collection[str] = ()) -> list[str]:
    """Return the requirements that are locked for development, or only these, as name==version, without hashes."""
    locked = re.findall(r"^([\w.-]+)(==\S+)", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE)
    found = [name + version for name, version in locked if not names or name in names]
    assert len(found) >= len(names)
    return found


def copy_jars(cache: Path) -> None:
    """Put the jars that a first start downloads into a cache folder."""
    for kind in ("broker", "spark"):
        resolve_jars(kind)
    shutil.copytree(default_cache_dir() / "jars", cache / "jars")
