"""`statehouse dead-letters`: the records that an application has refused, and their way back to their topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from statehouse.cli import output as out
from statehouse.cli.kafka_options import takes_application
from statehouse.cli.letter_reads import Letters, ListedLetter
from statehouse.cli.options import TIME_HELP, duration_ms, epoch_ms
from statehouse.cli.output import Column, OutputFormat, OutputOption
from statehouse.cli.replays import replay_letters
from statehouse.contract.dead_letters import DeadLetter
from statehouse.kafka.access import check_login, failures_told
from statehouse.observability import logs
from statehouse.settings import LoadedSettings
from statehouse.settings.common import ApplicationIdSettings

_LIMIT: Final = 100
_AGE_DIGITS_MAX: Final = 9


def _cell(content: bytes | None) -> object:
    return "-" if content is None else content


COLUMNS: Final[Sequence[Column[ListedLetter]]] = (
    Column("TIME", lambda each: out.wall_clock(each.letter.at_ms)),
    Column("QUERY", lambda each: each.letter.query),
    Column("REASON", lambda each: each.letter.reason),
    Column("SOURCE", lambda each: each.letter.source or "-"),
    Column("KEY", lambda each: _cell(each.letter.record.key)),
    Column("VALUE", lambda each: _cell(each.letter.record.value)),
    Column("DETAIL", lambda each: each.letter.detail or "-"),
    Column("REPLAYED", lambda each: "-" if each.replayed_at_ms is None else out.wall_clock(each.replayed_at_ms)),
    Column("PLACE", lambda each: each.place, is_wide=True),
    Column("ORIGINAL", lambda each: each.letter.is_original, is_wide=True),
    Column("HEADERS", lambda each: tuple(name for name, _ in each.letter.record.headers), is_wide=True),
)


@takes_application
def dead_letters(
    loaded: LoadedSettings[ApplicationIdSettings],
    since: Annotated[
        str | None,
        typer.Option(
            metavar="AGE|TIME",
            help=f"Only those refused since then: an age as in 30s, 10m, 2h or 7d, or a time. {TIME_HELP}",
            show_default=False,
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of this query.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show so many at most, the newest; --replay takes all.")] = _LIMIT,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new ones, a line each; Ctrl-C ends it.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Write their source records to the source topics again, as they came.")
    ] = False,
    yes: Annotated[
        bool | None,
        typer.Option(
            "--yes/--no",
            "-y/-n",
            help="The answer to what --replay asks: replay again those that were replayed before, or leave them out.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="Longest wait for each answer of Kafka.")
    ] = 10.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the records that an application has refused, with the reason; replay them once it is mended.

    They are in the topic APPLICATION-dead-letters. Those that --replay has written again stay there, marked: a second
    replay asks first. Each is written to its own partition, with its key, value, headers and timestamp.

    Example: statehouse dead-letters --since 10m
    """
    if follow and replay:
        raise typer.BadParameter("--follow and --replay exclude each other: first look, then replay")
    logs.configure("WARNING")
    settings = loaded.settings
    is_wanted: Callable[[DeadLetter], bool] = lambda letter: query in {None, letter.query}  # noqa: E731 - as long as its line
    letters = Letters(settings.brokers, settings.application_id, since_time_ms(since, time.time), timeout)
    check_login(settings.brokers, letters.client_id, timeout)
    with failures_told(settings.brokers):
        if replay:
            replay_letters(letters, is_wanted, output, answer=yes)
            return
        letters.refresh()
        found = letters.newest(limit, is_wanted)
        if follow:
            _follow(letters, found, is_wanted, output)
            return
    out.show(
        output,
        [_document(each) for each in found],
        (each.place for each in found),
        lambda is_wide: _table(found, is_wide=is_wide),
    )
    if letters.foreign:
        out.note(f"{letters.foreign} records of {letters.topic} are no dead letters: something else writes there")


def since_time_ms(given: str | None, now_s: Callable[[], float]) -> int | None:
    """Read the value of --since: an age, or a time, as epoch milliseconds.

    Raises:
        typer.BadParameter: it is neither.

    """
    age_ms = duration_ms(given or "", _AGE_DIGITS_MAX)
    if age_ms is not None:
        return max(0, round(now_s() * 1_000) - age_ms)
    return epoch_ms("--since", given)


def _follow(
    letters: Letters, found: Sequence[ListedLetter], is_wanted: Callable[[DeadLetter], bool], output: OutputFormat
) -> None:
    for each in found:
        _print_line(each, output)
    for letter in letters.coming():
        if is_wanted(letter):
            _print_line(ListedLetter(letter, None), output)


def _print_line(listed: ListedLetter, output: OutputFormat) -> None:
    match output:
        case OutputFormat.JSON:
            out.print_json_line(_document(listed), is_live=True)
        case OutputFormat.YAML:
            out.show(output, [_document(listed)], (), lambda _is_wide: None)
        case OutputFormat.NAME:
            print(listed.place, flush=True)
        case _:
            shown = [column for column in COLUMNS if output is OutputFormat.WIDE or not column.is_wide]
            print("  ".join(out.line_cell(column.value(listed)) for column in shown), flush=True)


def _table(found: Sequence[ListedLetter], *, is_wide: bool) -> None:
    if found:
        out.print_columns(COLUMNS, found, is_wide=is_wide)
    else:
        out.note("no dead letters")


def _document(listed: ListedLetter) -> dict[str, Any]:
    letter, source, record = listed.letter, listed.letter.source, listed.letter.record
    return {
        "place": listed.place,
        "at_ms": letter.at_ms,
        "query": letter.query,
        "reason": letter.reason,
        "detail": letter.detail,
        "source": None
        if source is None
        else {"topic": source.topic, "partition": source.partition, "offset": source.offset},
        "key": out.shown_bytes(record.key),
        "value": out.shown_bytes(record.value),
        "headers": [{"name": name, "value": out.shown_bytes(content)} for name, content in record.headers],
        "timestamp_ms": record.timestamp_ms if letter.is_original else None,
        "original": letter.is_original,
        "replayed_at_ms": listed.replayed_at_ms,
    }
