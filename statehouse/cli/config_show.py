"""`statehouse config show PROCESS`: takes the options that the process takes, and shows what it would start with."""

from __future__ import annotations

from typing import Any

import typer

from statehouse.cli.declared import takes_settings
from statehouse.cli.options import OutputOption
from statehouse.cli.output import OutputFormat, print_json, print_table
from statehouse.settings import PROCESSES, DeclaredSettings, LoadedSettings


def show_command(process: str) -> Any:  # noqa: ANN401 - typer vendors click, whose types it doesn't export
    """Return the command that shows a process' settings."""

    def show(loaded: LoadedSettings[DeclaredSettings], output: OutputOption = OutputFormat.TABLE) -> None:
        _print(loaded, output)

    show.__doc__ = f"Print each setting that `statehouse {process}` would start with, and where its value comes from."
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(process)(takes_settings(PROCESSES[process])(show))
    return typer.main.get_command(app)


def _print(loaded: LoadedSettings[DeclaredSettings], output: OutputFormat) -> None:
    declared = type(loaded.settings).declared()
    if output is OutputFormat.JSON:
        values = loaded.settings.model_dump(mode="json")
        print_json({name: {"value": values[name], "source": loaded.sources[name]} for name in declared})
        return
    rows = [(name, each.shown(getattr(loaded.settings, name)), loaded.sources[name]) for name, each in declared.items()]
    print_table(("SETTING", "VALUE", "SOURCE"), rows)
