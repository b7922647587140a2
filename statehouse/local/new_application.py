"""Makes the folder of a new application: one that runs, with a store, sample data and tests; of one of four kinds."""

from __future__ import annotations

import keyword
import re
import string
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

from statehouse.errors import ConfigurationError
from statehouse.local.errors import LocalError

_NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_NAME_CHARACTERS_MAX: Final = 60
_TEMPLATES: Final = files("statehouse.local") / "templates"
# The files that are made, each with its template, which all kinds of applications share or each has in a folder of its
# own. ${package} is the name as a package has it.
_FILES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "${package}/__init__.py": "init.py",
        "${package}/topology.py": "topology.py",
        "${package}/sample.py": "sample.py",
        "tests/test_topology.py": "test_topology.py",
        "conftest.py": "conftest.py",
        "statehouse.toml": "statehouse.toml",
        "README.md": "README.md",
        ".gitignore": "gitignore",
    }
)


class Template(StrEnum):
    """What kind of application to begin with."""

    COUNTER = "counter"
    CDC = "cdc"
    WINDOWS = "windows"
    FEATURES = "features"


@dataclass(frozen=True, slots=True)
class _Words:
    """What the README says of a kind of application: what it does, what to try, and the sample's dead letter."""

    does: str
    lookup: str
    scan: str
    refused: str


_WORDS: Final[Mapping[Template, _Words]] = MappingProxyType(
    {
        Template.COUNTER: _Words(
            "it counts and adds up the orders of each customer",
            "statehouse get customers ann",
            "statehouse scan customers",
            "One order of the sample has no amount.",
        ),
        Template.CDC: _Words(
            "it keeps a database's table of customers as Debezium tells its changes, and counts them by city",
            "statehouse get customers 3",
            "statehouse scan customers-per-city",
            "One row of the sample has no city.",
        ),
        Template.WINDOWS: _Words(
            "it counts the views of each page by the minute",
            "statehouse windows views-per-minute home",
            "statehouse scan-windows views-per-minute",
            "One view of the sample has no number of milliseconds.",
        ),
        Template.FEATURES: _Words(
            "it joins sums of each user's orders with their profile, and keeps their last order",
            "statehouse get features ann",
            "statehouse scan last-orders",
            "One order of the sample has no time.",
        ),
    }
)


class FolderInUse(LocalError):
    """The folder of a new application has something in it already."""


def checked_application_name(name: str) -> str:
    """Return the name, if a folder, a package and the prefix of topics can have it.

    Raises:
        ConfigurationError: they can't; the text says why.

    """
    if _NAME.fullmatch(name) is None or len(name) > _NAME_CHARACTERS_MAX:
        raise ConfigurationError(
            f"{name!r} can't be an application's name: use at most {_NAME_CHARACTERS_MAX} small letters, digits, and "
            "single '-' or '_' between them, the first a letter, as in hello or page-views"
        )
    package = package_of(name)
    if keyword.iskeyword(package) or package in sys.stdlib_module_names:
        raise ConfigurationError(f"{name!r} can't be an application's name: Python itself has {package}")
    if package in {"test", "tests", "conftest"} or _is_installed(package):
        raise ConfigurationError(
            f"{name!r} can't be an application's name: there is a package {package} already, and the application's own "
            "would hide it"
        )
    return name


def package_of(name: str) -> str:
    """Return the name of the application's package."""
    return name.replace("-", "_")


def rendered_files(name: str, template: Template) -> dict[str, str]:
    """Return the text of each file of a new application, by its path in the folder."""
    words = {"name": name, "package": package_of(name), **asdict(_WORDS[template])}
    return {
        string.Template(path).substitute(words): string.Template(_text(file, template)).substitute(words)
        for path, file in _FILES.items()
    }


def make_application(parent: Path, name: str, template: Template = Template.COUNTER) -> tuple[Path, list[str]]:
    """Make the folder of an application in another one; return it, and the paths of the files in it.

    Raises:
        ConfigurationError: nothing can have this name.
        LocalError: the folder is there and not empty, or can't be written.

    """
    rendered = rendered_files(checked_application_name(name), template)
    folder = parent / name
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FolderInUse(f"{folder} is there already, and not an empty folder: give another name, or remove it.")
        for path, text in rendered.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LocalError(f"{folder} can't be written ({error}): make the application in another folder.") from error
    return folder, [*rendered]


def _text(file: str, template: Template) -> str:
    """Return the file that this kind of application has of its own, or else the one that all share."""
    own = _TEMPLATES / template / f"{file}.template"
    return (own if own.is_file() else _TEMPLATES / f"{file}.template").read_text(encoding="utf-8")


def _is_installed(package: str) -> bool:
    """Whether a module of this name can be imported; a folder of this name alone is none."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None
