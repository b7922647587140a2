"""The `statehouse` command: reads through a router, a local cluster, and the commands of installed packages."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from statehouse.cli import (
    certs,
    config,
    context,
    exports,
    fleet,
    local,
    lookups,
    nodes,
    plugins,
    reasons,
    restore,
    sizes,
    stores,
    top,
    verify,
    watches,
)
from statehouse.cli.exits import ExitCode, run_reporting
from statehouse.cli.reads import KeyCommand

_EPILOG = (
    "Exit codes: 0 done, 1 error, 2 usage, 3 key not found, 4 unavailable or too stale, 130 and 143 by signal. "
    "Results go to stdout, progress and errors to stderr; NO_COLOR is heeded."
)


class _Group(TyperGroup):
    """Adds the commands of installed packages, and shows failures in one place."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer vendors click, whose types it doesn't export
        self._add_plugins()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - as above
        if cmd_name not in self.commands:
            self._add_plugins()
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> None:  # noqa: ANN401 - as above
        call = super().invoke
        try:
            code = run_reporting(lambda: call(ctx))
            sys.stdout.flush()
        except BrokenPipeError:  # `statehouse scan ... | head`: they have what they wanted
            _write_nowhere()
            code = ExitCode.DONE
        if code:
            raise typer.Exit(code)

    def _add_plugins(self) -> None:
        for name, command in plugins.commands().items():
            self.commands.setdefault(name, command)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Queryable state for Spark: look keys up, see the fleet, run its parts.",
    epilog=_EPILOG,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"statehouse {version('statehouse')}")
        raise typer.Exit


@app.callback()
def _shared(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


_READ, _OPERATE, _LOCAL = "Reading", "Operating", "Local cluster"
app.command(rich_help_panel=_READ, cls=KeyCommand)(lookups.get)
app.command(rich_help_panel=_READ, cls=KeyCommand)(lookups.batch)
app.command(rich_help_panel=_READ)(lookups.scan)
app.command(rich_help_panel=_READ)(lookups.scan_windows)
app.command(rich_help_panel=_READ)(lookups.scan_sessions)
app.command(rich_help_panel=_READ, cls=KeyCommand)(lookups.windows)
app.command(rich_help_panel=_READ, cls=KeyCommand)(lookups.sessions)
app.command(rich_help_panel=_READ, cls=KeyCommand)(lookups.history)
app.command(rich_help_panel=_READ, cls=KeyCommand)(lookups.query)
app.command(rich_help_panel=_READ)(lookups.count)
app.command(rich_help_panel=_READ)(exports.export)
app.command(rich_help_panel=_READ, cls=KeyCommand)(watches.watch)
app.command(rich_help_panel=_READ, cls=KeyCommand)(lookups.locate)
app.add_typer(stores.stores_app, name="stores", rich_help_panel=_READ)
app.command(rich_help_panel=_READ)(fleet.status)
app.command(rich_help_panel=_OPERATE)(top.top)
app.command(rich_help_panel=_OPERATE)(restore.restore)
app.command(rich_help_panel=_OPERATE)(verify.verify)
app.add_typer(stores.partitions_app, name="partitions", rich_help_panel=_OPERATE)
app.add_typer(nodes.app, name="nodes", rich_help_panel=_OPERATE)
app.add_typer(context.app, name="context", rich_help_panel=_OPERATE)
app.add_typer(config.app, name="config", rich_help_panel=_OPERATE)
app.add_typer(certs.app, name="certs", rich_help_panel=_OPERATE)
app.command(rich_help_panel=_OPERATE)(sizes.size)
app.add_typer(reasons.app, name="errors", rich_help_panel=_OPERATE)
app.command(rich_help_panel=_LOCAL)(local.new)
app.command(rich_help_panel=_LOCAL)(local.up)
app.command(rich_help_panel=_LOCAL)(local.logs)
app.command(rich_help_panel=_LOCAL)(local.restart)
app.command(rich_help_panel=_LOCAL)(local.down)


def _write_nowhere() -> None:
    """Drop what is yet to be written: Python would complain of it at its end."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def main() -> None:
    """Run the command line."""
    app(prog_name="statehouse")
