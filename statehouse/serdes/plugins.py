"""Serdes that packages add, by entry points of the group `statehouse.serdes`.

The name of an entry point is the serde's name. Its object is a `SerdeSupplier`; the simplest one is a class whose
constructor takes the options. A serde whose package isn't installed is a `MissingSerde`: it stops no store, because raw
reads and routing by raw keys need none.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from statehouse.errors import ConfigurationError
from statehouse.serdes import PLUGIN_GROUP, SERDES, MissingSerde, Serde


@dataclass(frozen=True, slots=True)
class SerdeOptions:
    """What a process tells its serdes: where the schema registry is, and how to reach it."""

    registry_url: str = ""
    """URLs, separated by commas; empty if the process has no registry."""
    credentials_file: str = ""
    """A file with `user:password`."""
    ca_file: str = ""
    """Certificates that the registry's is checked with; empty for those that the client brings."""
    timeout_s: float = 2.0
    """Longest time that the registry may take to answer."""


class SerdeSupplier(Protocol):
    """Makes a serde."""

    def __call__(self, options: SerdeOptions, /) -> Serde:
        """Return the serde. Each process makes one of each name; several threads may use it at the same time."""


class Serdes:
    """The serdes of this process: those of ours, and those of installed packages, each made once."""

    def __init__(self, options: SerdeOptions | None = None) -> None:
        self._options = options or SerdeOptions()
        self._made: dict[str, Serde] = dict(SERDES)
        self._refused: dict[str, str] = {}

    def __call__(self, name: str) -> Serde:
        """Return a serde; a MissingSerde if no package has it.

        Raises:
            ConfigurationError: several packages have it, or the plug-in fails.

        """
        if name in self._refused:
            raise ConfigurationError(self._refused[name])
        if name not in self._made:
            try:
                self._made[name] = self._make(name)
            except ConfigurationError as error:
                self._refused[name] = str(error)  # packages don't change, and views are made all the time
                raise
        return self._made[name]

    def _make(self, name: str) -> Serde:
        found = tuple(entry_points(group=PLUGIN_GROUP, name=name))
        if not found:
            return MissingSerde(name)
        if len(found) > 1:
            packages = ", ".join(sorted(point.dist.name for point in found if point.dist is not None))
            raise ConfigurationError(f"several packages have a serde {name!r}: {packages}; keep one")
        try:
            supplier: SerdeSupplier = found[0].load()
        except ModuleNotFoundError as error:
            return MissingSerde(
                name, f"the serde {name!r} needs {error.name}, which is not installed{_advice(found[0])}"
            )
        except Exception as error:
            raise _failed(name, found[0], "can't be imported", error) from error
        try:
            made = supplier(self._options)
        except Exception as error:
            raise _failed(name, found[0], "failed", error) from error
        if not isinstance(made, Serde):
            raise ConfigurationError(f"the plug-in of serde {name!r} ({found[0].value}) made a {type(made).__name__}")
        return made


def _advice(point: EntryPoint) -> str:
    is_ours = point.value.startswith("statehouse.")
    return ": pip install 'statehouse[registry]'" if is_ours else ""


def _failed(name: str, point: EntryPoint, what: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"the plug-in of serde {name!r} ({point.value}) {what}: {type(error).__name__}: {error}")
