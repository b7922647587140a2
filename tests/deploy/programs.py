"""Command lines of our programs, parsed as the programs would parse them, without running anything."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import typer

from statehouse.cli.main import app


def parse(arguments: Sequence[str]) -> str:
    """Return the command of `statehouse` that these arguments are for; a module that it names must exist."""
    group: Any = typer.main.get_command(app)
    parent = group.make_context("statehouse", list(arguments))
    name, command, rest = group.resolve_command(parent, list(arguments))
    context = command.make_context(name, rest, parent=parent)
    if name == "process":
        importlib.import_module(context.params["app"])
    return str(name)
