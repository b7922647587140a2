"""What commands print: results on stdout as a table for people or JSON for programs, everything else on stderr."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from statehouse.errors import LookupFailure
from statehouse.positions import Token

_UNKNOWN: Final = "unknown"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
# Piped output has no width of its own: wide enough that no cell is cut.
_PIPED_WIDTH: Final = 10_000


class OutputFormat(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


def console() -> Console:
    """Return the console for results; rich itself heeds NO_COLOR and whether this is a terminal."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPED_WIDTH if piped else None, highlight=False, soft_wrap=piped)


def print_json(document: object) -> None:
    """Print a result as one JSON document."""
    print(json.dumps(jsonable(document), ensure_ascii=False, indent=2))


def print_json_line(document: object, *, is_live: bool = False) -> None:
    """Print one of many results as a line of JSON; `is_live`: flush it, so that its reader gets it at once."""
    print(json.dumps(jsonable(document), ensure_ascii=False), flush=is_live)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print rows under their headers; None is shown as unknown."""
    table = Table(box=None, title=title, title_justify="left", title_style="bold", header_style="bold", pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    _print(table)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print one result, a fact a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(cell(value)))
    _print(table)


def _print(table: Table) -> None:
    out = console()
    with out.capture() as captured:
        out.print(table, crop=False)
    # rich pads cells to their column's width, which is useless in the last column.
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def note(message: str) -> None:
    """Print something that is not the result."""
    print(message, file=sys.stderr, flush=True)


def cell(value: object) -> str:  # noqa: PLR0911 - a table of types
    """Return a value as a table shows it."""
    match value:
        case None:
            return _UNKNOWN
        case str():
            return value
        case bool():
            return "yes" if value else "no"
        case list() | dict():
            return json.dumps(value, ensure_ascii=False)
        case tuple():
            return ", ".join(cell(item) for item in value) or "-"
        case bytes():
            return _bytes_text(value)
        case _:
            return str(value)


def jsonable(value: Any) -> Any:  # noqa: ANN401, PLR0911 - JSON of anything, a table of types
    """Return a form that json.dumps accepts. Bytes become {"hex": ...}, to differ from text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    match value:
        case bytes():
            return {"hex": value.hex()}
        case dict():
            return {name: jsonable(item) for name, item in value.items()}
        case list() | tuple():
            return [jsonable(item) for item in value]
        case Token():
            return str(value)
        case LookupFailure():
            return {"reason": value.reason.name, "message": value.message, "metadata": value.metadata}
        case _:
            return value


def wall_clock(epoch_ms: int) -> str:
    """Return a time as people read it, in UTC; as a number if it is in no year that people write."""
    try:
        return (_EPOCH + timedelta(milliseconds=epoch_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{epoch_ms} ms"


def _bytes_text(data: bytes) -> str:
    """Show bytes as text if they are printable text, so that raw reads stay readable."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else f"0x{data.hex()}"
