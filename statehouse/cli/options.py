"""Options that commands share."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from statehouse.cli.output import OutputFormat
from statehouse.client import InputRecord

RUN_DIR: Final = Path(".statehouse")
DEFAULT_APPLICATION: Final = "leaderboard"
DEFAULT_ROUTER: Final = "127.0.0.1:7100"
TIME_HELP: Final = "ISO 8601, UTC unless it has an offset, or epoch milliseconds."

_EPOCH_MS: Final = re.compile(r"-?\d{1,18}")  # as many digits as surely fit into 64 bits
_EPOCH: Final = datetime.fromtimestamp(0, UTC)

OutputOption = Annotated[OutputFormat, typer.Option("-o", "--output", help="How results are printed.")]
RouterOption = Annotated[
    str | None,
    typer.Option(
        envvar="STATEHOUSE_ROUTER",
        metavar="HOST:PORT",
        help=f"Router to ask.  [default: the one of this directory's `statehouse up`, else {DEFAULT_ROUTER}]",
        show_default=False,
    ),
]
TimeoutOption = Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="Longest wait for each answer.")]
AfterInputOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC:PARTITION:OFFSET",
        help="First wait until the processor has committed this record of an input topic, and see its results. May be "
        "repeated.",
        show_default=False,
    ),
]
RunDirOption = Annotated[Path, typer.Option(metavar="DIR", help="Where the local cluster keeps everything.")]
StoreArgument = Annotated[str, typer.Argument(help="Store to read.", show_default=False)]


def epoch_ms(option: str, given: str | None) -> int | None:
    """Read a time as epoch milliseconds; fractions of a millisecond are cut off.

    Raises:
        typer.BadParameter: the text is no time.

    """
    if given is None:
        return None
    try:
        if _EPOCH_MS.fullmatch(given):
            return int(given)
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise typer.BadParameter(f"{given!r} is no time: {TIME_HELP}", param_hint=option) from None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def input_records(given: list[str] | None) -> list[InputRecord]:
    """Read the values of `--after-input`.

    Raises:
        typer.BadParameter: a value names no record.

    """
    records = []
    for text in given or ():
        topic, _, place = text.partition(":")
        try:
            partition, offset = map(int, place.split(":"))
            records.append(InputRecord(topic, partition, offset))
        except ValueError as error:
            message = f"{text!r} is not TOPIC:PARTITION:OFFSET: {error}"
            raise typer.BadParameter(message, param_hint="--after-input") from None
    return records


def router_address(given: str | None, run_dir: Path = RUN_DIR) -> str:
    """Return the router to ask: the given one, else that of the cluster in `run_dir`, else the default."""
    if given:
        return given
    # Read here rather than through statehouse.local, whose imports would cost each lookup a quarter of a second.
    try:
        return f"127.0.0.1:{json.loads((run_dir / 'state.json').read_text())['ports']['router']}"
    except (OSError, ValueError, KeyError, TypeError):
        return DEFAULT_ROUTER
