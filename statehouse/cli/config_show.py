"""`statehouse config show PROCESS`: takes the options that the process takes, and shows what it would start with."""

from __future__ import annotations

from functools import cache
from typing import Any

import typer

from statehouse.cli.declared import takes_settings
from statehouse.cli.output import Column, OutputFormat, OutputOption, print_columns, show
from statehouse.settings import PROCESSES, DeclaredSettings, LoadedSettings, Setting


@cache  # tests ask for it hundreds of times in one process
def show_command(process: str) -> Any:  # noqa: ANN401 - typer vendors click, whose types it doesn't export
    """Return the command that shows a process' settings."""

    def command(loaded: LoadedSettings[DeclaredSettings], output: OutputOption = OutputFormat.TABLE) -> None:
        _print(loaded, output)

    command.__doc__ = (
        f"Print each setting that `statehouse {process}` would start with, and where its value comes from."
    )
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(process)(takes_settings(PROCESSES[process])(command))
    return typer.main.get_command(app)


def _print(loaded: LoadedSettings[DeclaredSettings], output: OutputFormat) -> None:
    declared = type(loaded.settings).declared()
    values = loaded.settings.model_dump(mode="json")
    document = {name: {"value": values[name], "source": loaded.sources[name]} for name in declared}
    columns = (
        Column[Setting]("SETTING", lambda each: each.name),
        Column[Setting]("VALUE", lambda each: each.shown(getattr(loaded.settings, each.name))),
        Column[Setting]("SOURCE", lambda each: loaded.sources[each.name]),
        Column[Setting]("VARIABLE", lambda each: each.variable, is_wide=True),
        Column[Setting]("DEFAULT", lambda each: each.default, is_wide=True),
    )
    show(output, document, declared, lambda is_wide: print_columns(columns, declared.values(), is_wide=is_wide))
