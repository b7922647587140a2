"""The applications that a local cluster can run: those that installed packages name by entry points, and any module.

An application is its topology's module, as `statehouse process` takes it. Its sample data is the module `sample` of the
same package (statehouse/local/samples.py), if there is one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Final

from statehouse.contract.topology import checked_name
from statehouse.errors import ContractError
from statehouse.local.errors import LocalError
from statehouse.local.package_folder import hidden_by, import_folder

GROUP: Final = "statehouse.applications"
"""Entry points of this group name a topology's module, or a `LocalApplication`."""

_LINES_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class LocalApplication:
    """What a local cluster has to know about an application.

    `name` is what its user calls it. `topology` is the module for `statehouse process`, `sample` the one of its sample
    data; empty if it has none. `http_api` is a module that `python -m` runs, empty if it has none; `http_page` is a
    path of it to show people, `http_probe` one that answers once it works. `import_from` is a folder that must be on
    the import path for it, empty if none must.
    """

    name: str
    application_id: str
    topology: str
    sample: str = ""
    http_api: str = ""
    http_page: str = "/"
    http_probe: str = "/"
    import_from: str = ""


class NoApplication(LocalError):
    """Nothing of this name is an application, or it can't be imported."""


class ApplicationError(NoApplication):
    """A module is there, and its code doesn't make an application; `module` is its name."""

    def __init__(self, module: str, said: str) -> None:
        super().__init__(said)
        self.module = module


def find_application(name: str) -> LocalApplication:
    """Return the application that an installed package offers under this name, or that the module of this name is.

    A package stands for its module `topology`. Modules are looked for in the working directory, too.

    Raises:
        NoApplication: there is none, or importing it fails; the text has the error.

    """
    offered = {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}
    if name in offered:
        return _offered(offered[name])
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _imported(name)
    if module is None:
        meant = get_close_matches(name, offered, 1)
        hint = f"did you mean {meant[0]}? " if meant else ""
        raise NoApplication(
            f"there is no application {name!r}: {hint}give a topology's module that can be imported from here, as in "
            f"hello.topology, or one of the installed: {', '.join(sorted(offered)) or 'none'}. `statehouse new` makes "
            "an application."
        )
    if hasattr(module, "__path__") and not hasattr(module, "build"):
        module = _imported(f"{name}.topology") or module
    return _of_module(name, module)


def _offered(entry_point: EntryPoint) -> LocalApplication:
    folder = import_folder(entry_point)
    try:
        found = entry_point.load()
    except ModuleNotFoundError as error:
        raise NoApplication(
            f"application {entry_point.name!r} can't be imported from here ({error}). Install the package that offers "
            "it again, or give another one with --app; `statehouse new` makes one."
        ) from error
    except Exception as error:
        raise _broken(entry_point.module, error) from error
    hiding = hidden_by(entry_point.module, Path.cwd())
    if hiding is not None:
        raise NoApplication(
            f"application {entry_point.name!r} can't be run here: {hiding} would be imported in place of its package. "
            "Run this in another folder."
        )
    if isinstance(found, ModuleType):
        found = _of_module(entry_point.name, found)
    if not isinstance(found, LocalApplication):
        raise NoApplication(f"{entry_point.value} must be a topology's module or a LocalApplication.")
    return replace(found, import_from=folder) if folder else found


def _imported(name: str) -> ModuleType | None:
    """Import a module; return None if it isn't there."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Another module that it imports is an error of its own.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(module: str, error: Exception) -> ApplicationError:
    said = "".join(traceback.format_exception(error)).splitlines()
    lines = "\n".join(f"    {line}" for line in said[-_LINES_SHOWN:])
    return ApplicationError(module, f"{module} can't be imported. Correct it, and try again:\n{lines}")


def _of_module(name: str, module: ModuleType) -> LocalApplication:
    application_id = getattr(module, "application_id", None)
    if not isinstance(application_id, str) or not callable(getattr(module, "build", None)):
        raise ApplicationError(
            module.__name__,
            f"{module.__name__} is no application: it must define application_id (a string) and build(app). See "
            "docs/applications.md, or begin with `statehouse new`.",
        )
    try:
        checked_name("application id", application_id)
    except ContractError as error:
        raise ApplicationError(module.__name__, f"{module.__name__}: {error}.") from error
    sample = f"{module.__package__}.sample".lstrip(".")
    has_sample = importlib.util.find_spec(sample) is not None
    return LocalApplication(name, application_id, module.__name__, sample if has_sample else "")
