"""Where settings come from: flags, environment, a TOML file; each value has its source.

Flag beats variable beats file beats default. Keys of the file are flat and mean the same in every process, so that one
file can configure a whole fleet: a process takes those that are its own.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from statehouse.errors import ConfigurationError
from statehouse.runtime.file_reads import TEXT_BYTES_MAX, read
from statehouse.settings.declaration import (
    ENV_PREFIX,
    DeclaredSettings,
    InvalidSettings,
    Setting,
    problems_of,
    unknown,
)
from statehouse.settings.node import NodeSettings
from statehouse.settings.processor import ControllerSettings, ProcessorSettings
from statehouse.settings.removed import REMOVED
from statehouse.settings.router import RouterSettings
from statehouse.settings.web import WebSettings

CONFIG_ENV: Final = f"{ENV_PREFIX}CONFIG"
PROCESSES: Final[Mapping[str, type[DeclaredSettings]]] = MappingProxyType(
    {
        "process": ProcessorSettings,
        "controller": ControllerSettings,
        "node": NodeSettings,
        "router": RouterSettings,
        "web": WebSettings,
    }
)
"""The settings of each process, by its name: its command's name, except for the web process."""
UP_TABLE: Final = "up"
"""The table of a file that is no process's: `statehouse up` reads it (statehouse/local/application_file.py)."""
# Settings that a file for many processes may lack, because each process can have its own.
_GIVEN_ELSEWHERE: Final = MappingProxyType({"application_id": "given elsewhere", "advertised_host": "given-elsewhere"})

Settings = TypeVar("Settings", bound=DeclaredSettings)


class SettingSource(StrEnum):
    """Where a value came from."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class LoadedSettings(Generic[Settings]):
    """Settings, and where each value came from."""

    settings: Settings
    sources: Mapping[str, str]
    """By the setting's name. If the entries of a mapping came from several sources: all, the strongest first."""


def load(cls: type[Settings], flags: Mapping[str, Any], file: Path | None = None) -> Settings:
    """Return the settings; flags that are None were not given.

    `file` is the TOML file; by default the one that STATEHOUSE_CONFIG names, if any.

    Raises:
        ConfigurationError: a value is missing or wrong, or the file can't be read; a message about a value names the
            setting, its flag and its variable.

    """
    return load_with_sources(cls, flags, file).settings


def load_with_sources(
    cls: type[Settings], flags: Mapping[str, Any], file: Path | None = None
) -> LoadedSettings[Settings]:
    """Return the settings as `load` does, and where each value came from."""
    if file is None and os.environ.get(CONFIG_ENV):
        file = Path(os.environ[CONFIG_ENV])
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, value, source in _given(cls, flags, file):
        if name in values and isinstance(value, dict):
            values[name], sources[name] = {**values[name], **value}, f"{source}, {sources[name]}"
        else:
            values[name], sources[name] = value, source
    try:
        settings = cls.model_validate(values)
    except InvalidSettings as error:
        if isinstance(error.__cause__, ValidationError):
            raise InvalidSettings(problems_of(cls, error.__cause__, sources)) from error
        raise
    return LoadedSettings(
        settings, MappingProxyType({name: sources.get(name, SettingSource.DEFAULT) for name in cls.declared()})
    )


def check_file(path: Path) -> list[str]:
    """Check a TOML file against the settings of all processes; return one sentence for each problem.

    A setting that is not in the file has its default. A missing application id or advertised address is no problem:
    each process can have its own.

    Raises:
        ConfigurationError: the file can't be read.

    """
    given = _read(path)
    found: dict[str, list[str]] = {problem: [] for problem in _unknown(given)}
    for process, cls in PROCESSES.items():
        own = {name: value for name, value in given.items() if name in cls.declared()}
        problems = list(_mistyped(cls, own))
        if not problems:
            elsewhere = {name: value for name, value in _GIVEN_ELSEWHERE.items() if name in cls.declared()}
            try:
                cls(**(elsewhere | own))
            except InvalidSettings as error:
                problems += error.problems
        for problem in problems:
            found.setdefault(problem, []).append(process)
    return [f"{', '.join(processes)}: {message}" if processes else message for message, processes in found.items()]


def _given(cls: type[DeclaredSettings], flags: Mapping[str, Any], file: Path | None) -> Iterator[tuple[str, Any, str]]:
    """Yield each value that was given, those of the weakest sources first."""
    declared = cls.declared()
    if file is not None:
        content = _read(file)
        for name in REMOVED.keys() & content.keys():
            _tell_of_removed(name, str(file))
        own = {name: value for name, value in content.items() if name in declared}
        problems = [*_unknown(content), *_mistyped(cls, own)]
        if problems:
            raise InvalidSettings(problems)
        yield from ((name, value, SettingSource.FILE) for name, value in own.items())
    for name in REMOVED:
        if f"{ENV_PREFIX}{name.upper()}" in os.environ:
            _tell_of_removed(name, f"the variable {ENV_PREFIX}{name.upper()}")
    for setting in declared.values():
        if setting.variable in os.environ:
            yield setting.name, _plain(setting, os.environ[setting.variable]), SettingSource.ENVIRONMENT
    for name, value in flags.items():
        if value is not None:
            yield name, _plain(declared[name], value), SettingSource.FLAG


def _tell_of_removed(name: str, where: str) -> None:
    sys.stderr.write(f"warning: the setting {name} is gone ({REMOVED[name]}): take it out of {where}\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read(path, TEXT_BYTES_MAX).decode())
    except (OSError, ValueError) as error:  # a TOMLDecodeError and a UnicodeDecodeError are ValueErrors
        raise ConfigurationError(f"{path} can't be read: {error}") from error


def _unknown(content: Mapping[str, Any]) -> list[str]:
    """Return a problem for each key that no process has: otherwise a typing error would silently leave a default."""
    known = {name for cls in PROCESSES.values() for name in cls.declared()}
    known |= {UP_TABLE, *REMOVED}
    return [unknown(name, known) for name in content if name not in known]


def _mistyped(cls: type[DeclaredSettings], content: Mapping[str, Any]) -> Iterator[str]:
    """Check a file's values against types and bounds. TOML has types: neither "5" nor true is an integer."""
    for name, value in content.items():
        adapter: TypeAdapter[Any] = TypeAdapter(cls.model_fields[name].rebuild_annotation())
        try:
            # Strict in JSON's sense: there, too, a path is text.
            adapter.validate_json(json.dumps(value, default=str), strict=True)
        except ValidationError as error:
            yield from problems_of(cls, error, {name: SettingSource.FILE}, name)


def _plain(setting: Setting, given: Any) -> Any:  # noqa: ANN401 - as it was given
    """Return the value of a variable or a flag; a mapping's value as a dict."""
    if not setting.is_mapping or isinstance(given, dict):
        return given
    if isinstance(given, str):
        try:
            found = json.loads(given)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise InvalidSettings([f"{setting.variable} must be a JSON object, not {given!r}"])
        return found
    wrong = [pair for pair in given if "=" not in pair]
    if wrong:
        raise InvalidSettings([f"{setting.flag} {wrong[0]!r} is not NAME=VALUE"])
    return dict(pair.split("=", 1) for pair in given)
