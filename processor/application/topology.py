"""The module in which people declare an application."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from processor.application.declared import Application
from processor.spark.mistakes import TopologyError, mistake_of
from statehouse.contract.version_names import application_of
from statehouse.contract.versions import VersionRefused, checked_version
from statehouse.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Topology:
    """A topology module: its application id, and the function that fills an application."""

    application_id: str
    build: Callable[[Application], None]

    @classmethod
    def load(cls, module_name: str) -> Topology:
        """Import a topology module.

        Raises:
            ConfigurationError: the module doesn't exist, or lacks `application_id` or `build`.
            TopologyError: its code raises.

        """
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise TopologyError(mistake_of(error)) from error
            raise ConfigurationError(
                f"module {error.name!r} not found: name a module that can be imported from here, as in "
                "examples.leaderboard.topology"
            ) from error
        except Exception as error:
            raise TopologyError(mistake_of(error)) from error
        found = [getattr(module, name, None) for name in ("application_id", "build")]
        if not isinstance(found[0], str) or not callable(found[1]):
            raise ConfigurationError(f"module {module_name} must define application_id (a string) and build(app)")
        return cls(found[0], found[1])

    def of_version(self, version: str) -> Topology:
        """Return it as a version of its application.

        Raises:
            ConfigurationError: this can't name a version.

        """
        try:
            return replace(self, application_id=application_of(self.application_id, checked_version(version)))
        except VersionRefused as error:
            raise ConfigurationError(str(error)) from error

    def declare(self, app: Application) -> None:
        """Fill an application, and check it as a whole.

        Raises:
            TopologyError: `build` raises, or what it declares can't work; the text has file, line and remedy.

        """
        try:
            self.build(app)
            app.check()
        except Exception as error:
            raise TopologyError(mistake_of(error)) from error
