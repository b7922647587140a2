"""`statehouse get`, `scan`, `scan-windows`, `scan-sessions`, `windows`, `sessions`, `history` and the other reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Final, TypeVar

import typer

from statehouse.cli import output, routes
from statehouse.cli.exits import ExitCode
from statehouse.cli.options import (
    TIME_HELP,
    AfterInputOption,
    StoreArgument,
    epoch_ms,
    input_records,
)
from statehouse.cli.output import Column, OutputFormat
from statehouse.cli.reads import (
    Inquiry,
    KeyArgument,
    KeysArgument,
    OptionGroup,
    PrefixOption,
    WholeKeyArgument,
    takes_options,
)
from statehouse.client import (
    Answer,
    Client,
    Entry,
    Freshness,
    KeyedSession,
    KeyedWindow,
    KeyLike,
    Lookup,
    Session,
    Stamp,
    StoreValue,
    VersionedRecord,
    Window,
)
from statehouse.contract.consistency import ANY
from statehouse.errors import LookupFailure

T = TypeVar("T")
Valued = Entry | Window | Session | KeyedWindow | KeyedSession

FromKeyOption = Annotated[KeyLike | None, typer.Option("--from", metavar="KEY", help="Lowest key, inclusive.")]
ToKeyOption = Annotated[KeyLike | None, typer.Option("--to", metavar="KEY", help="Highest key, inclusive.")]
LimitOption = Annotated[int, typer.Option(min=0, help="Most to show; 0 shows all.")]
PageSizeOption = Annotated[int, typer.Option(min=1, max=1_000, help="How many to ask for at a time.")]
LatestFirstOption = Annotated[bool, typer.Option("--reverse", help="Latest first.")]
RawOption = Annotated[bool, typer.Option("--raw", help="Show the bytes in the changelog, undecoded.")]

_KEY: Final = Column[Entry | KeyedWindow | KeyedSession]("KEY", lambda each: each.key)
_START: Final = Column[Window | Session | KeyedWindow | KeyedSession]("START", lambda each: each.start_ms)
_END: Final = Column[Window | Session | KeyedWindow | KeyedSession]("END", lambda each: each.end_ms)
_VALUE: Final = Column[Valued | VersionedRecord]("VALUE", lambda each: _shown(each.value))
_TIMESTAMP: Final = Column[Valued]("TIMESTAMP", lambda each: each.timestamp_ms)
_WRITTEN: Final = Column[Valued]("UTC", lambda each: _time(each.timestamp_ms), is_wide=True)
_ENTRIES: Final[Sequence[Column[Entry]]] = (_KEY, _VALUE, _TIMESTAMP, _WRITTEN)
_SPANS: Final[Sequence[Column[Window | Session]]] = (_START, _END, _VALUE, _TIMESTAMP, _WRITTEN)
_KEYED_SPANS: Final[Sequence[Column[KeyedWindow | KeyedSession]]] = (_KEY, _START, _END, _VALUE, _TIMESTAMP, _WRITTEN)
_VERSIONS: Final[Sequence[Column[VersionedRecord]]] = (
    Column("VALID FROM", lambda each: each.valid_from_ms),
    Column("VALID TO", lambda each: "-" if each.valid_to_ms is None else each.valid_to_ms),
    _VALUE,
)
# Who answered for a partition.
_STAMPS: Final[Sequence[Column[Stamp]]] = (
    Column("PARTITION", lambda stamp: stamp.partition),
    Column("HOST", lambda stamp: stamp.host),
    Column("ROLE", lambda stamp: stamp.role),
    Column("POSITION", lambda stamp: stamp.position),
    Column("LAG", lambda stamp: stamp.lag),
    Column("STALENESS", lambda stamp: _milliseconds(stamp.staleness_ms)),
    Column("PROCESSOR AGE", lambda stamp: _milliseconds(stamp.processor_age_ms)),
    Column("BACKLOG", lambda stamp: stamp.input_backlog),
    Column("EPOCH", lambda stamp: stamp.epoch),
)


@dataclass(frozen=True, slots=True)
class Listing(OptionGroup):
    """How a list is asked for and shown: as an answer is, and how much of it."""

    limit: LimitOption = 0
    page_size: PageSizeOption = 100
    freshness: Freshness = ANY
    raw: RawOption = False
    inquiry: Inquiry = field(default_factory=Inquiry)

    def show(
        self, columns: Sequence[Column[T]], one: str, find: Callable[..., Iterable[T]], *asked: object, **bounds: object
    ) -> None:
        """Show what a client's method returns, one by one, by name with the first column, and how many there were.

        `one` says what each is. `asked` and `bounds` go to the method, with what this has for it.
        """
        size = min(self.page_size, self.limit or self.page_size)
        with self.inquiry.client() as client:
            found = find(client, *asked, **bounds, page_size=size, freshness=self.freshness, raw=self.raw)
            shown = output.show_each(self.inquiry.fmt, columns, found, columns[0].value, self.limit)
        plural = f"{one[:-1]}ies" if one.endswith("y") else f"{one}s"
        output.note(f"{shown} {one if shown == 1 else plural}")


@dataclass(frozen=True, slots=True)
class KeyRange(OptionGroup):
    """Which keys a scan is of.

    Raises:
        typer.BadParameter: a prefix is given in addition to a range.

    """

    from_key: FromKeyOption = None
    to_key: ToKeyOption = None
    prefix: PrefixOption = None

    def __post_init__(self) -> None:
        if self.prefix is not None and (self.from_key is not None or self.to_key is not None):
            raise typer.BadParameter("--prefix excludes --from and --to")


@takes_options
def get(
    store: StoreArgument,
    key: KeyArgument,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"For a versioned store: the value at this time. {TIME_HELP}")
    ] = None,
    after_input: AfterInputOption = None,
    raw: RawOption = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show which replicas the router asked, in which order, and what each said."),
    ] = False,
    freshness: Freshness = ANY,
    inquiry: Inquiry = Inquiry(),
) -> None:
    """Look one key up; exit code 3 if the store does not hold it or, with --as-of, did not hold it then.

    Example: statehouse get leader-boards 1 --max-staleness-ms 2000 --explain
    """
    as_of_ms = epoch_ms("--as-of", as_of)
    if explain and as_of_ms is not None:
        raise typer.BadParameter("--explain excludes --as-of")
    records = input_records(after_input)
    with inquiry.client(direct=False) as client:
        seen = client.await_input(store, *records) if records else None
        told = client.explain(store, key, freshness=freshness, at_least=seen, raw=raw) if explain else None
        answer: Answer | None
        if told is not None:
            answer = told.answer
        elif as_of_ms is None:
            answer = client.get(store, key, freshness=freshness, at_least=seen, raw=raw)
        else:
            answer = client.get_as_of(store, key, as_of_ms, freshness=freshness, at_least=seen, raw=raw)

    def tables(_is_wide: bool) -> None:
        if answer is not None:
            _print_answer(answer)
        if told is not None:
            routes.print_explanation(told)

    is_found = answer is not None and answer.found
    output.show(inquiry.fmt, answer if told is None else told, [key] if is_found else [], tables)
    if told is not None and told.failure is not None:
        raise told.failure
    if answer is not None and not answer.found:
        raise typer.Exit(ExitCode.NOT_FOUND)


@dataclass(frozen=True, slots=True)
class KeyOutcome:
    """What a lookup of several came to: an answer, or a failure."""

    key: KeyLike
    found: bool | None
    value: StoreValue
    timestamp_ms: int | None
    failure: LookupFailure | None


_OUTCOMES: Final[Sequence[Column[KeyOutcome]]] = (
    Column("KEY", lambda each: each.key),
    Column("FOUND", lambda each: each.found),
    Column("VALUE", lambda each: _shown(each.value) if each.found else "-"),
    Column("TIMESTAMP", lambda each: each.timestamp_ms if each.found else "-"),
    Column("FAILURE", lambda each: "-" if each.failure is None else each.failure.reason.name),
)


@takes_options
def batch(
    store: StoreArgument,
    keys: KeysArgument,
    raw: RawOption = False,
    freshness: Freshness = ANY,
    inquiry: Inquiry = Inquiry(),
) -> None:
    """Look several keys up with one call; exit code 3 if the store lacks one of them. JSON has one outcome a line.

    Example: statehouse batch leader-boards 1 6
    """
    with inquiry.client(direct=False) as client:
        answers = client.batch_get(Lookup(store, key, freshness=freshness, raw=raw) for key in keys)
    outcomes = [_outcome(key, answer) for key, answer in zip(keys, answers, strict=True)]
    listed = [each for each in outcomes if each.found] if inquiry.fmt is OutputFormat.NAME else outcomes
    output.show_each(inquiry.fmt, _OUTCOMES, listed, lambda each: each.key)
    failed = next((each.failure for each in outcomes if each.failure is not None), None)
    if failed is not None:
        raise failed
    if not all(each.found for each in outcomes):
        raise typer.Exit(ExitCode.NOT_FOUND)


def _outcome(key: KeyLike, answer: Answer | LookupFailure) -> KeyOutcome:
    if isinstance(answer, LookupFailure):
        return KeyOutcome(key, None, None, None, answer)
    return KeyOutcome(key, answer.found, answer.value, answer.timestamp_ms, None)


@takes_options
def scan(
    store: StoreArgument,
    keys: KeyRange = KeyRange(),
    reverse: Annotated[bool, typer.Option("--reverse", help="Highest key first.")] = False,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"The entries of a versioned store at this time. {TIME_HELP}")
    ] = None,
    listing: Listing = Listing(),
) -> None:
    """List a store's entries in key order (byte order); JSON output has one entry a line.

    Example: statehouse scan leader-boards --from 1 --to 6
    """
    as_of_ms = epoch_ms("--as-of", as_of)
    listing.show(_ENTRIES, "entry", Client.scan, store, **asdict(keys), reverse=reverse, as_of_ms=as_of_ms)


@takes_options
def scan_windows(
    store: StoreArgument,
    keys: KeyRange = KeyRange(),
    from_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="Earliest window start, inclusive, epoch milliseconds.")
    ] = None,
    to_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="Latest window start, inclusive, epoch milliseconds.")
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Highest key first, and each key's latest window first.")
    ] = False,
    listing: Listing = Listing(),
) -> None:
    """List the windows of a range of keys, in key order (byte order), each key's by start.

    JSON output has one window a line.

    Example: statehouse scan-windows per-minute --prefix a --from-ms 1700000000000
    """
    listing.show(
        _KEYED_SPANS,
        "window",
        Client.scan_windows,
        store,
        **asdict(keys),
        from_ms=from_ms,
        to_ms=to_ms,
        reverse=reverse,
    )


@takes_options
def scan_sessions(
    store: StoreArgument,
    keys: KeyRange = KeyRange(),
    from_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="Leave out those that end before, epoch milliseconds.")
    ] = None,
    to_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="Leave out those that start after, epoch milliseconds.")
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Highest key first, and each key's latest session first.")
    ] = False,
    listing: Listing = Listing(),
) -> None:
    """List the sessions of a range of keys, in key order (byte order), each key's by start.

    JSON output has one session a line.

    Example: statehouse scan-sessions visits --prefix a --from-ms 1700000000000
    """
    listing.show(
        _KEYED_SPANS,
        "session",
        Client.scan_sessions,
        store,
        **asdict(keys),
        from_ms=from_ms,
        to_ms=to_ms,
        reverse=reverse,
    )


@takes_options
def windows(
    store: StoreArgument,
    key: KeyArgument,
    from_time: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help=f"Earliest window start, inclusive. {TIME_HELP}")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Latest window start, inclusive, likewise.")
    ] = None,
    reverse: LatestFirstOption = False,
    listing: Listing = Listing(),
) -> None:
    """List the windows of a key, oldest first; JSON output has one window a line.

    Example: statehouse windows per-minute a --from 2026-01-31T12:00:00Z
    """
    from_ms, to_ms = epoch_ms("--from", from_time), epoch_ms("--to", to_time)
    listing.show(_SPANS, "window", Client.fetch_windows, store, key, from_ms=from_ms, to_ms=to_ms, reverse=reverse)


@takes_options
def sessions(
    store: StoreArgument,
    key: KeyArgument,
    from_time: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help=f"Leave out sessions that end before it. {TIME_HELP}")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Leave out sessions that start after it, likewise.")
    ] = None,
    reverse: LatestFirstOption = False,
    listing: Listing = Listing(),
) -> None:
    """List the sessions of a key, oldest first; JSON output has one session a line.

    Example: statehouse sessions visits a --from 2026-01-31T12:00:00Z
    """
    from_ms, to_ms = epoch_ms("--from", from_time), epoch_ms("--to", to_time)
    listing.show(_SPANS, "session", Client.fetch_sessions, store, key, from_ms=from_ms, to_ms=to_ms, reverse=reverse)


@takes_options
def history(
    store: StoreArgument,
    key: KeyArgument,
    from_time: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help=f"Leave out those replaced or deleted by then. {TIME_HELP}"),
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Leave out those that are valid only after, likewise.")
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Newest first.")] = False,
    listing: Listing = Listing(),
) -> None:
    """List the versions of a key of a versioned store, oldest first; JSON output has one version a line.

    Example: statehouse history prices a --from 2026-01-31T12:00:00Z
    """
    from_ms, to_ms = epoch_ms("--from", from_time), epoch_ms("--to", to_time)
    listing.show(_VERSIONS, "version", Client.get_history, store, key, from_ms=from_ms, to_ms=to_ms, reverse=reverse)


@takes_options
def query(
    store: StoreArgument,
    key: WholeKeyArgument,
    name: Annotated[str, typer.Argument(metavar="QUERY", help="One of the store's own queries.", show_default=False)],
    arguments: Annotated[str, typer.Option(metavar="JSON", help="The query's arguments, apart from the key.")] = "{}",
    freshness: Freshness = ANY,
    inquiry: Inquiry = Inquiry(),
) -> None:
    """Ask a custom store one of its own queries.

    Example: statehouse query word-sketches news estimate --arguments '{"item": "spark"}'
    """
    try:
        given = json.loads(arguments)
    except ValueError as error:
        raise typer.BadParameter(f"--arguments is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise typer.BadParameter('--arguments must be a JSON object, as {"item": "spark"}')
    with inquiry.client() as client:
        answer = client.query_store(
            store,
            key,
            name,
            given,
            freshness=freshness,
        )

    def tables(_is_wide: bool) -> None:
        output.print_facts([("result", _shown(answer.result))])
        output.print_columns(_STAMPS, [answer.replica])

    output.show(inquiry.fmt, answer, [key], tables)


@takes_options
def count(
    store: StoreArgument,
    exact: Annotated[bool, typer.Option("--exact", help="Count by a scan instead of the engines' estimate.")] = False,
    freshness: Freshness = ANY,
    inquiry: Inquiry = Inquiry(),
) -> None:
    """Count a store's entries, and show who counted each partition.

    Example: statehouse count leader-boards --exact
    """
    with inquiry.client() as client:
        counted = client.count(
            store,
            exact=exact,
            freshness=freshness,
        )

    def tables(_is_wide: bool) -> None:
        output.print_facts([("count", counted.count), ("exact", counted.exact)])
        output.print_columns(_STAMPS, sorted(counted.replicas, key=lambda stamp: stamp.partition))

    output.show(inquiry.fmt, counted, [store], tables)


@takes_options
def locate(
    store: StoreArgument,
    key: KeyArgument,
    freshness: Freshness = ANY,
    inquiry: Inquiry = Inquiry(),
) -> None:
    """Show where a key lives, and for each replica whether a lookup would use it, and why not.

    Example: statehouse locate leader-boards 1 --active-only
    """
    with inquiry.client() as client:
        place = client.locate(
            store,
            key,
            freshness=freshness,
        )
    usable = [candidate.host.instance_id for candidate in place.candidates if candidate.eligible]
    output.show(inquiry.fmt, place, usable, lambda _is_wide: routes.print_location(place))


def _print_answer(answer: Answer) -> None:
    output.print_facts(
        [
            ("found", answer.found),
            ("value", _shown(answer.value) if answer.found else "-"),
            ("partition", answer.partition),
            ("epoch", answer.epoch),
            ("host", str(answer.host)),
            ("role", answer.role),
            ("position", answer.position),
            ("lag", answer.lag),
            ("staleness", _milliseconds(answer.staleness_ms)),
            ("processor age", _milliseconds(answer.processor_age_ms)),
            ("input backlog", answer.input_backlog),
            *([] if answer.timestamp_ms is None else [("timestamp", output.wall_clock(answer.timestamp_ms))]),
            *([] if answer.since_ms is None else [("updates since", output.wall_clock(answer.since_ms))]),
        ]
    )


def _shown(value: StoreValue) -> object:
    return "null" if value is None else value


def _time(epoch_ms: int | None) -> str | None:
    return None if epoch_ms is None else output.wall_clock(epoch_ms)


def _milliseconds(number: int | None) -> str | None:
    return None if number is None else f"{number} ms"
