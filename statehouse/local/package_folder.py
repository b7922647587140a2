"""The examples as an installed package has them: data in a folder of its own, which a checkout doesn't have.

They are the package `examples`, as in a checkout. It isn't installed as such, because its name is anybody's: the folder
is put on the import path of the processes that run one of them, and of no others.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).with_name("packaged")

_DISTRIBUTION: Final = "statehouse"


def import_folder(entry_point: EntryPoint, folder: Path = FOLDER) -> str:
    """Return the folder that an application must be imported from, and put it on this process's path.

    It is empty for those of other packages, and in a checkout: they are on the path.
    """
    is_ours = entry_point.dist is not None and entry_point.dist.name == _DISTRIBUTION
    if not is_ours or not folder.is_dir():
        return ""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return str(folder)


def hidden_by(module: str, working_directory: Path) -> Path | None:
    """Return the file in the working directory that would be imported in place of a module's package; None if none is.

    The parts of a cluster import from their working directory first, as Python does.
    """
    top = module.partition(".")[0]
    found = PathFinder.find_spec(top, [str(working_directory)])
    imported = sys.modules.get(top)
    if found is None or found.origin is None or imported is None or imported.__file__ is None:
        return None
    is_same = Path(found.origin).resolve() == Path(imported.__file__).resolve()
    return None if is_same else Path(found.origin)
