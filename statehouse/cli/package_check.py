"""Makes sure that packages of ours are ours: their names are common words, which others may use, too.

Another distribution may install a package of the same name, over ours or next to it; and a folder that comes earlier
on the import path, as the working directory does, may have one. Python would then run another's code, or a mixture.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from statehouse.errors import ConfigurationError

DISTRIBUTION: Final = "statehouse"
_OURS: Final = ("statehouse", "processor", "query_service", "router")
_ROOT: Final = Path(__file__).parents[2]
_REMEDY: Final = (
    "Install Statehouse into a virtual environment without the other one; a file or folder of your own has to be "
    "renamed, or not be in the working directory"
)


class ForeignPackage(ConfigurationError):
    """A package of ours is hidden, or overwritten, by another's."""


def ensure_own(package: str, root: Path = _ROOT) -> None:
    """Return if importing the package brings ours, which is next to this one, in `root`.

    Raises:
        ForeignPackage: it brings another one's; the text has its file, and the distribution that has installed it.

    """
    spec = find_spec(package)
    if spec is None:
        return  # it isn't installed, which an import says well
    found = _file_of(spec)
    ours = root / package / "__init__.py"
    if Path(found).resolve() != ours.resolve():
        names = _owners(Path(found))
        whose = f"which {names} installed" if names else "which no installed distribution has brought"
        raise ForeignPackage(
            f"`import {package}` brings {found}, {whose}, and not Statehouse's own package at {ours.parent}. {_REMEDY}"
        )
    if _is_changed(ours):
        names = _owners(ours)
        cause = f"{names} has a file of this name, too" if names else "it was changed by hand"
        raise ForeignPackage(f"{ours} is not as Statehouse has installed it: {cause}. {_REMEDY}")


def import_from_here() -> None:
    """Let modules of the working directory be imported, before all others.

    Raises:
        ForeignPackage: one of them would be imported in place of ours.

    """
    ensure_none_in(Path.cwd())
    sys.path.insert(0, str(Path.cwd()))


def ensure_none_in(folder: Path, root: Path = _ROOT) -> None:
    """Return if a folder has no package or module by a name of ours, but for our own.

    Processes that are started in it with `python -m`, and Spark's workers, would import that one. A folder without
    `__init__.py` is none: Python looks on for a package.

    Raises:
        ForeignPackage: it has one; the text has its file.

    """
    if folder.resolve() == root.resolve():
        return
    for package in _OURS:
        spec = PathFinder.find_spec(package, [str(folder)])
        if spec is not None and spec.origin is not None:
            raise ForeignPackage(
                f"{spec.origin} hides Statehouse's own package `{package}` from the processes that are started in "
                "this folder: rename it, or run this in another folder"
            )


def _file_of(spec: ModuleSpec) -> str:
    """Return the file that a package is imported from; its folder, if it has no such file."""
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "")


def _is_changed(file: Path) -> bool:
    """Whether a file differs from the record of our distribution. An editable install has none of it."""
    try:
        files = distribution(DISTRIBUTION).files or ()
    except PackageNotFoundError:
        return False
    for recorded in files:
        if recorded.parts == file.parts[-2:] and recorded.hash is not None:
            digest = hashlib.new(recorded.hash.mode, file.read_bytes()).digest()
            return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != recorded.hash.value
    return False


def _owners(file: Path) -> str:
    """Return the distributions that say that they have installed a file, ours aside; empty if none does."""
    wanted = file.resolve()
    owners = {
        each.name
        for each in distributions()
        for recorded in each.files or ()
        if recorded.name == file.name and Path(str(each.locate_file(recorded))).resolve() == wanted
    }
    return " and ".join(sorted(owners - {DISTRIBUTION}))
