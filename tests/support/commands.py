"""The `statehouse` command as a tree: its commands, with those of installed packages, and their flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import typer

from statehouse.cli.main import app


@cache
def flags_of_commands() -> Mapping[str, frozenset[str]]:
    """Return the long flags of each command, by its words: "nodes drain"."""
    root: Any = typer.main.get_command(app)
    return MappingProxyType(dict(_walk(root, root.make_context("statehouse", ["status"], resilient_parsing=True), "")))


def _walk(command: Any, context: Any, words: str) -> Iterator[tuple[str, frozenset[str]]]:
    flags = {flag for param in command.get_params(context) for flag in (*param.opts, *param.secondary_opts)}
    yield words, frozenset(flag for flag in flags if flag.startswith("--"))
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from _walk(command.get_command(context, name), context, f"{words} {name}".strip())
