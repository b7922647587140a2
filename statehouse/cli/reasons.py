"""`statehouse errors`: what a failure's reason means, and what to do; the same words as in docs/errors.md."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from statehouse.cli import output
from statehouse.cli.exits import code_of
from statehouse.cli.output import Column, OutputFormat, OutputOption
from statehouse.errors import REASONS, LookupFailure, Reason, wire_name

app = typer.Typer(no_args_is_help=True, help="See what the reasons of failures mean, and what to do.")


def _explained(reason: Reason) -> dict[str, Any]:
    """Return what is known of a reason."""
    spec = REASONS[reason]
    return {
        "reason": reason.name,
        "wire_name": wire_name(reason),
        "grpc_status": spec.status,
        "exit_code": code_of(LookupFailure(reason, "")).value,
        "elsewhere": spec.elsewhere,
        "meaning": spec.meaning,
        "remedy": spec.remedy,
    }


_COLUMNS: Final[Sequence[Column[dict[str, Any]]]] = (
    Column("REASON", lambda each: each["reason"]),
    Column("GRPC STATUS", lambda each: each["grpc_status"]),
    Column("EXIT CODE", lambda each: each["exit_code"]),
    Column("ELSEWHERE", lambda each: each["elsewhere"]),
    Column("MEANING", lambda each: each["meaning"]),
    Column("WHAT TO DO", lambda each: each["remedy"], is_wide=True),
)


def complete_reason(incomplete: str) -> list[str]:
    """Return the reasons that begin so."""
    return [reason.name for reason in REASONS if reason.name.startswith(incomplete)]


@app.command("list")
def list_reasons(fmt: OutputOption = OutputFormat.TABLE) -> None:
    """List all reasons."""
    output.show_items(fmt, _COLUMNS, [_explained(reason) for reason in REASONS], lambda each: each["reason"])


@app.command()
def explain(
    reason: Annotated[
        str,
        typer.Argument(
            metavar="REASON",
            help="As a command, a log or a status detail has it: LAG_EXCEEDS_BOUND.",
            show_default=False,
            autocompletion=complete_reason,
        ),
    ],
    fmt: OutputOption = OutputFormat.TABLE,
) -> None:
    """Say what a reason means, and what to do.

    Example: statehouse errors explain LAG_EXCEEDS_BOUND
    """
    found = _explained(_read(reason))

    def tables(_is_wide: bool) -> None:
        output.print_facts(
            [
                ("reason", found["reason"]),
                ("meaning", found["meaning"]),
                ("what to do", found["remedy"]),
                ("gRPC status", found["grpc_status"]),
                ("exit code", found["exit_code"]),
                ("elsewhere", "another replica may succeed" if found["elsewhere"] else "another replica fails, too"),
                ("in ErrorInfo", found["wire_name"]),
            ]
        )

    output.show(fmt, found, [found["reason"]], tables)


def _read(text: str) -> Reason:
    """Read a reason in any case, with or without the prefix that it has on the wire.

    Raises:
        typer.BadParameter: there is none of that name.

    """
    name = text.strip().upper().replace("-", "_").removeprefix("ERROR_REASON_")
    names = [reason.name for reason in REASONS]
    if name in names:
        return Reason[name]
    near = [each for each in names if name and name in each] or difflib.get_close_matches(name, names, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`statehouse errors list` has them all"
    raise typer.BadParameter(f"there is no reason {text!r}; {hint}", param_hint="REASON")
