"""`statehouse config`: shows the settings that a process would start with, and checks a file of settings.

Settings are imported only when these commands run: the other commands don't need them, and start sooner.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from statehouse.cli.output import OutputFormat, OutputOption, show
from statehouse.errors import ConfigurationError

_PROCESSES: Final = ("process", "controller", "node", "router", "web")


class _ShowGroup(TyperGroup):
    """A command for each process, with that process' options; made when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer vendors click, whose types it doesn't export
        return list(_PROCESSES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002 - as above
        if cmd_name not in _PROCESSES:
            return None
        from statehouse.cli.config_show import show_command  # noqa: PLC0415 - as the module says

        return show_command(cmd_name)


app = typer.Typer(no_args_is_help=True, help="See and check settings.", pretty_exceptions_enable=False)
show_app = typer.Typer(
    cls=_ShowGroup,
    no_args_is_help=True,
    help="Print each setting that a process would start with, and where its value comes from.",
    pretty_exceptions_enable=False,
)
app.add_typer(show_app, name="show")


@show_app.callback()
def _show() -> None:
    pass


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file of settings.", show_default=False)],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check a TOML file for all processes: its keys, types and bounds, and that its settings fit together.

    Flags and variables don't count. The application id and the advertised address may be missing: each process can
    have its own.
    """
    from statehouse.settings import check_file  # noqa: PLC0415 - as the module says

    problems = check_file(file)

    def tables(_is_wide: bool) -> None:
        if not problems:
            print(f"{file} can be used by {', '.join(_PROCESSES)}")

    show(output, {"file": str(file), "problems": problems}, [] if problems else _PROCESSES, tables)
    if problems:
        raise ConfigurationError("\n  ".join([f"{file} can't work:", *problems]))
