"""Commands that are imported only when they run: those that other packages add, and our own that need Kafka's client.

Packages add them by the entry points of the group `statehouse.commands`. One needs pyspark, whose import takes seconds,
too long for `statehouse get`. Even the list of commands in --help imports nothing; it reads a command's first line from
its source.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from statehouse.cli.package_check import DISTRIBUTION, ensure_own
from statehouse.errors import ConfigurationError

GROUP = "statehouse.commands"
_OWN = {
    "Topics": ("dead-letters=statehouse.cli.dead_letters:dead_letters", "send=statehouse.cli.send:send"),
    "Versions": (
        "versions=statehouse.cli.versions:versions",
        "deploy=statehouse.cli.deploy:deploy",
        "compare=statehouse.cli.compare:compare",
        "promote=statehouse.cli.versions:promote",
        "rollback=statehouse.cli.versions:rollback",
        "retire=processor.run.retire:retire",
    ),
}
"""By the panel of the help in which they stand: name and place."""


class LazyCommand(TyperCommand):
    """Stands for a command until it is run."""

    def __init__(self, entry_point: EntryPoint, panel: str = "Processes") -> None:
        super().__init__(entry_point.name, help=summary(entry_point), rich_help_panel=panel)
        self._entry_point = entry_point

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:  # noqa: ANN401 - typer vendors click, whose types it doesn't export
        """Let the real command make its context."""
        return self._command.make_context(info_name, args, parent, **extra)

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401 - as above
        """Return the real command's parameters, for shell completion."""
        return self._command.get_params(ctx)

    @cached_property
    def _command(self) -> Any:  # noqa: ANN401 - as above
        if self._entry_point.dist is not None and self._entry_point.dist.name == DISTRIBUTION:
            ensure_own(self._entry_point.module.partition(".")[0])
        try:
            function = self._entry_point.load()
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"`statehouse {self.name}` needs {error.name}, which is not installed: pip install "
                "'statehouse[service]' for nodes and routers, 'statehouse[processor]' for Spark applications"
            ) from error
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command(self.name)(function)
        return typer.main.get_command(app)


def commands() -> dict[str, LazyCommand]:
    """Return our own, and those of installed packages, by name."""
    own = {
        name: LazyCommand(EntryPoint(name, place, GROUP), panel)
        for panel, commands in _OWN.items()
        for name, _, place in (each.partition("=") for each in commands)
    }
    return own | {entry_point.name: LazyCommand(entry_point) for entry_point in sorted(entry_points(group=GROUP))}


def summary(entry_point: EntryPoint) -> str:
    """Return the first line of a command's docstring, read without importing anything of it; empty if there is none."""
    package, *rest = entry_point.module.split(".")
    try:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            return ""
        (folder, *_) = spec.submodule_search_locations
        tree = ast.parse(Path(folder, *rest).with_suffix(".py").read_bytes())
    except (ImportError, OSError, SyntaxError, ValueError):
        return ""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == entry_point.attr:
            return (ast.get_docstring(statement) or "").partition("\n")[0]
    return ""
