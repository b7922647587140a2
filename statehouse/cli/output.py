"""What commands print: results on stdout, as tables for people or documents for programs; all else on stderr.

A command that has --output gives `show` one document, its names, and a function that prints its tables; one that lists
what comes one by one gives `show_each` its columns.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar

import typer

from statehouse.contract.moments import MomentToken
from statehouse.contract.positions import Token
from statehouse.errors import LookupFailure
from statehouse.serdes.json_documents import named

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

_UNKNOWN: Final = "unknown"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
# Piped output has no width of its own: wide enough that no cell is cut.
_PIPED_WIDTH: Final = 10_000
# A terminal obeys these (ECMA-48): what somebody has written into a store is to be shown.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROLS_BEYOND_ASCII: Final = re.compile(r"[\x7f-\x9f]")
# Long texts stay on one line of YAML, as in JSON.
_YAML_WIDTH: Final = 1_000_000

Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)


class OutputFormat(StrEnum):
    """How results are printed."""

    TABLE = "table"
    WIDE = "wide"
    """The table, with columns that few need."""
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    """Only names, one a line, for other commands."""
    VALUE = "value"
    """Only values, one a line, for scripts: text as it is, bytes in hex, all else as JSON. Of reads only."""


def _without_values(fmt: OutputFormat) -> OutputFormat:
    if fmt is OutputFormat.VALUE:
        raise typer.BadParameter("there are no values here: take name, or json")
    return fmt


OutputOption = Annotated[
    OutputFormat,
    typer.Option(
        "-o",
        "--output",
        metavar=f"[{'|'.join(each for each in OutputFormat if each is not OutputFormat.VALUE)}]",
        help="How results are printed.",
        callback=_without_values,
    ),
]
"""Of commands that read no values."""
ValueOutputOption = Annotated[
    OutputFormat,
    typer.Option(
        "-o", "--output", metavar=f"[{'|'.join(OutputFormat)}]", help="How results are printed; value: it alone."
    ),
]


@dataclass(frozen=True)  # slots and a generic class don't go together in this Python
class Column(Generic[Item_contra]):
    """A column of a table: its header, and what an item has there."""

    header: str
    value: Callable[[Item_contra], object]
    is_wide: bool = False
    """Shown in wide tables only."""


def console() -> Console:
    """Return the console for results; rich itself heeds NO_COLOR and whether this is a terminal."""
    from rich.console import Console  # noqa: PLC0415 - servers have commands, too, and draw nothing

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPED_WIDTH if piped else None, highlight=False, soft_wrap=piped)


def show(
    fmt: OutputFormat,
    document: object,
    names: Iterable[object],
    tables: Callable[[bool], None],
    values: Iterable[object] = (),
) -> None:
    """Print a result in the format that was asked for; `tables` is called with whether they are to be wide."""
    match fmt:
        case OutputFormat.JSON:
            print(_json(document, indent=2))
        case OutputFormat.YAML:
            _print_yaml(document)
        case OutputFormat.NAME:
            for name in names:
                print(cell(name))
        case OutputFormat.VALUE:
            for value in values:
                print(_value_alone(value))
        case _:
            tables(fmt is OutputFormat.WIDE)


def show_items(
    fmt: OutputFormat, columns: Sequence[Column[Item]], items: Sequence[Item], name: Callable[[Item], object]
) -> None:
    """Print a list: one table, one document, or the items' names."""
    show(fmt, list(items), map(name, items), lambda is_wide: print_columns(columns, items, is_wide=is_wide))


def show_each(
    fmt: OutputFormat,
    columns: Sequence[Column[Item]],
    items: Iterable[Item],
    name: Callable[[Item], object],
    *,
    value: Callable[[Item], object],
    limit: int = 0,
) -> int:
    """Print up to `limit` items (0: all) that come one by one; return how many.

    JSON has one document a line and YAML one entry of a list, as they come; a table is printed at the end.
    """
    rows: list[Item] = []
    shown = 0
    for item in items:
        shown += 1
        match fmt:
            case OutputFormat.JSON:
                print_json_line(item)
            case OutputFormat.YAML:
                _print_yaml([item])
            case OutputFormat.NAME:
                print(cell(name(item)))
            case OutputFormat.VALUE:
                print(_value_alone(value(item)))
            case _:
                rows.append(item)
        if shown == limit:
            break
    if fmt in {OutputFormat.TABLE, OutputFormat.WIDE}:
        print_columns(columns, rows, is_wide=fmt is OutputFormat.WIDE)
    elif fmt is OutputFormat.YAML and not shown:
        _print_yaml([])
    return shown


def _value_alone(value: object) -> str:
    """Return a value as scripts take it."""
    match value:
        case str():
            return value
        case bytes():
            return value.hex()
        case _:
            return _json(value)


def print_columns(columns: Sequence[Column[Item]], items: Iterable[Item], *, is_wide: bool = False) -> None:
    """Print items as a table."""
    print_whole(columns_table(columns, items, is_wide=is_wide))


def columns_table(columns: Sequence[Column[Item]], items: Iterable[Item], *, is_wide: bool = False) -> Table:
    """Return items as a table that rich takes."""
    chosen = [column for column in columns if is_wide or not column.is_wide]
    rows = ([column.value(item) for column in chosen] for item in items)
    return _table([column.header for column in chosen], rows)


def _print_yaml(document: object) -> None:
    """Print a result as YAML: the same as in JSON, for people who read it or programs that take it."""
    import yaml  # noqa: PLC0415 - most commands print none

    plain = json.loads(json.dumps(jsonable(document)))
    yaml.safe_dump(plain, sys.stdout, sort_keys=False, allow_unicode=True, width=_YAML_WIDTH)


def print_json_line(document: object, *, is_live: bool = False) -> None:
    """Print one of many results as a line of JSON; `is_live`: flush it, so that its reader gets it immediately."""
    print(_json(document), flush=is_live)


def _json(document: object, indent: int | None = None) -> str:
    # JSON itself escapes only the controls below the blank.
    return _CONTROLS_BEYOND_ASCII.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(jsonable(document), ensure_ascii=False, indent=indent)
    )


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print rows under their headers; None is shown as unknown."""
    print_whole(_table(headers, rows, title))


def _table(headers: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(box=None, title=title, title_justify="left", title_style="bold", header_style="bold", pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(_shown(value) for value in row))
    return table


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print one result, a fact a line."""
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, _shown(value))
    print_whole(table)


def print_whole(shown: RenderableType) -> None:
    """Print what rich takes, with lines as long as they are if nobody sees them in a terminal."""
    out = console()
    with out.capture() as captured:
        out.print(shown, crop=False)
    # rich pads cells to their column's width, which is useless in the last column.
    print("\n".join(line.rstrip() for line in captured.get().removesuffix("\n").split("\n")))


def note(message: str) -> None:
    """Print something that is not the result."""
    print(message, file=sys.stderr, flush=True)


def _shown(value: object) -> Text:
    from rich.text import Text  # noqa: PLC0415 - as above

    return Text(_without_controls(value))


def _without_controls(value: object) -> str:
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", cell(value))


def line_cell(value: object) -> str:
    """Return a value as a line of text shows it."""
    return _without_controls(value).replace("\n", "\\n")


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
            return text if isinstance(text := shown_bytes(value), str) else f"0x{value.hex()}"
        case float():
            return str(named(value))
        case _:
            return str(value)


def jsonable(value: Any) -> Any:  # noqa: ANN401, PLR0911 - JSON of anything, a table of types
    """Return a form that JSON has. Bytes become {"hex": ...}, to differ from text; NaN and infinities become text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    match value:
        case bytes():
            return {"hex": value.hex()}
        case float():
            return named(value)
        case dict():
            return {name: jsonable(item) for name, item in value.items()}
        case list() | tuple():
            return [jsonable(item) for item in value]
        case Token() | MomentToken():
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


def shown_bytes(data: object) -> object:
    """Return bytes as text if they are printable text, so that raw keys and values stay readable; all else stays."""
    if not isinstance(data, bytes):
        return data
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    return text if text.isprintable() else data
