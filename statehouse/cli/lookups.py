"""`statehouse get`, `scan`, `scan-windows`, `scan-sessions`, `windows`, `sessions`, `history` and the other reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, TypeVar

import typer

from statehouse.cli import output, routes
from statehouse.cli.answer_tables import (
    ENTRIES,
    KEYED_SESSIONS,
    KEYED_WINDOWS,
    OUTCOMES,
    SESSIONS,
    VERSIONS,
    WINDOWS,
    HasValue,
    KeyOutcome,
    Listed,
    print_answer,
    print_result,
)
from statehouse.cli.exits import ExitCode
from statehouse.cli.options import (
    TIME_HELP,
    AfterInputOption,
    StoreArgument,
    epoch_ms,
    input_records,
)
from statehouse.cli.output import OutputFormat
from statehouse.cli.reads import (
    Inquiry,
    KeyArgument,
    KeysArgument,
    KeysOrColumnsArgument,
    OptionGroup,
    PrefixOption,
    ValueInquiry,
    WholeKeyArgument,
    takes_options,
)
from statehouse.client import Answer, Client, Explanation, Freshness, KeyLike, Lookup, Token
from statehouse.client.answers import AnyKey
from statehouse.contract.consistency import ANY

T = TypeVar("T", bound=HasValue)

FromKeyOption = Annotated[KeyLike | None, typer.Option("--from", metavar="KEY", help="Lowest key, inclusive.")]
ToKeyOption = Annotated[KeyLike | None, typer.Option("--to", metavar="KEY", help="Highest key, inclusive.")]
LimitOption = Annotated[int, typer.Option(min=0, help="Most to show; 0 shows all.")]
PageSizeOption = Annotated[int, typer.Option(min=1, max=1_000, help="How many to ask for at a time.")]
LatestFirstOption = Annotated[bool, typer.Option("--reverse", help="Latest first.")]
RawOption = Annotated[bool, typer.Option("--raw", help="Show the bytes in the changelog, undecoded.")]


@dataclass(frozen=True, slots=True)
class Listing(OptionGroup):
    """How a list is asked for and shown: as an answer is, and how much of it."""

    limit: LimitOption = 0
    page_size: PageSizeOption = 100
    freshness: Freshness = ANY
    raw: RawOption = False
    inquiry: ValueInquiry = field(default_factory=ValueInquiry)

    def show(self, listed: Listed[T], find: Callable[..., Iterable[T]], *asked: object, **bounds: object) -> None:
        """Show what a client's method returns, one by one, and how many there were.

        `asked` and `bounds` go to the method, with what this has for it.
        """
        size = min(self.page_size, self.limit or self.page_size)
        with self.inquiry.client() as client:
            found = find(client, *asked, **bounds, page_size=size, freshness=self.freshness, raw=self.raw)
            shown = output.show_each(
                self.inquiry.fmt, listed.columns, found, listed.name, value=lambda each: each.value, limit=self.limit
            )
        output.note(listed.counted(shown))


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
    keys: KeysOrColumnsArgument,
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
    inquiry: ValueInquiry = ValueInquiry(),
) -> None:
    """Look one key up, or several with one call; exit code 3 if the store does not hold it, or one of them.

    With --as-of: if it did not hold it then. -o value prints the value alone, -o wide all about the copy that answered.

    Example: statehouse get leader-boards 1 --max-staleness-ms 2000 --explain
    """
    as_of_ms = epoch_ms("--as-of", as_of)
    if explain and as_of_ms is not None:
        raise typer.BadParameter("--explain excludes --as-of")
    if len(keys) > 1 and (explain or as_of_ms is not None):
        raise typer.BadParameter("--explain and --as-of are for one key: give one")
    records = input_records(after_input)
    with inquiry.client(direct=False) as client:
        if records:
            freshness = _seeing(freshness, client.await_input(store, *records))
        if len(keys) > 1:
            _look_up_all(client, store, keys, freshness, raw=raw, fmt=inquiry.fmt)
        elif explain:
            _explain(client.explain(store, keys[0], freshness=freshness, raw=raw), keys[0], inquiry.fmt)
        elif as_of_ms is None:
            _answer(client.get(store, keys[0], freshness=freshness, raw=raw), keys[0], inquiry.fmt)
        else:
            _answer(client.get_as_of(store, keys[0], as_of_ms, freshness=freshness, raw=raw), keys[0], inquiry.fmt)


def _seeing(freshness: Freshness, token: Token) -> Freshness:
    """Return bounds that ask for what a token has seen, too."""
    return replace(freshness, at_least=token if freshness.at_least is None else freshness.at_least | token)


def _answer(answer: Answer, key: AnyKey, fmt: OutputFormat) -> None:
    found = [answer.value] if answer.found else []
    output.show(fmt, answer, [key] * len(found), lambda is_wide: print_answer(answer, is_wide=is_wide), found)
    if not answer.found:
        raise typer.Exit(ExitCode.NOT_FOUND)


def _explain(told: Explanation, key: AnyKey, fmt: OutputFormat) -> None:
    answer = told.answer

    def tables(is_wide: bool) -> None:
        if answer is not None:
            print_answer(answer, is_wide=is_wide)
        routes.print_explanation(told)

    found = [] if answer is None or not answer.found else [answer.value]
    output.show(fmt, told, [key] * len(found), tables, found)
    if told.failure is not None:
        raise told.failure
    if not found:
        raise typer.Exit(ExitCode.NOT_FOUND)


@takes_options
def batch(
    store: StoreArgument,
    keys: KeysArgument,
    raw: RawOption = False,
    freshness: Freshness = ANY,
    inquiry: ValueInquiry = ValueInquiry(),
) -> None:
    """Look several keys up with one call, as `get` with several does. JSON has one outcome a line.

    Exit code 3 if the store lacks one of them.

    Example: statehouse batch leader-boards 1 6
    """
    with inquiry.client(direct=False) as client:
        _look_up_all(client, store, keys, freshness, raw=raw, fmt=inquiry.fmt)


def _look_up_all(
    client: Client, store: str, keys: Sequence[AnyKey], freshness: Freshness, *, raw: bool, fmt: OutputFormat
) -> None:
    """Look several keys up with one call, and show what came of each; names and values are of those that were found."""
    answers = client.batch_get(Lookup(store, key, freshness=freshness, raw=raw) for key in keys)
    outcomes = [KeyOutcome.of(key, answer) for key, answer in zip(keys, answers, strict=True)]
    listed = [each for each in outcomes if each.found] if fmt in {OutputFormat.NAME, OutputFormat.VALUE} else outcomes
    output.show_each(fmt, OUTCOMES.columns, listed, OUTCOMES.name, value=lambda each: each.value)
    failed = next((each.failure for each in outcomes if each.failure is not None), None)
    if failed is not None:
        raise failed
    if not all(each.found for each in outcomes):
        raise typer.Exit(ExitCode.NOT_FOUND)


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
    listing.show(ENTRIES, Client.scan, store, **asdict(keys), reverse=reverse, as_of_ms=as_of_ms)


@takes_options
def scan_windows(
    store: StoreArgument,
    keys: KeyRange = KeyRange(),
    from_time: Annotated[
        str | None, typer.Option("--from-ms", metavar="TIME", help=f"Earliest window start, inclusive. {TIME_HELP}")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-ms", metavar="TIME", help="Latest window start, inclusive, likewise.")
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
        KEYED_WINDOWS,
        Client.scan_windows,
        store,
        **asdict(keys),
        from_ms=epoch_ms("--from-ms", from_time),
        to_ms=epoch_ms("--to-ms", to_time),
        reverse=reverse,
    )


@takes_options
def scan_sessions(
    store: StoreArgument,
    keys: KeyRange = KeyRange(),
    from_time: Annotated[
        str | None, typer.Option("--from-ms", metavar="TIME", help=f"Leave out those that end before. {TIME_HELP}")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-ms", metavar="TIME", help="Leave out those that start after, likewise.")
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
        KEYED_SESSIONS,
        Client.scan_sessions,
        store,
        **asdict(keys),
        from_ms=epoch_ms("--from-ms", from_time),
        to_ms=epoch_ms("--to-ms", to_time),
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
    listing.show(WINDOWS, Client.fetch_windows, store, key, from_ms=from_ms, to_ms=to_ms, reverse=reverse)


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
    listing.show(SESSIONS, Client.fetch_sessions, store, key, from_ms=from_ms, to_ms=to_ms, reverse=reverse)


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
    listing.show(VERSIONS, Client.get_history, store, key, from_ms=from_ms, to_ms=to_ms, reverse=reverse)


@takes_options
def query(
    store: StoreArgument,
    key: WholeKeyArgument,
    name: Annotated[str, typer.Argument(metavar="QUERY", help="One of the store's own queries.", show_default=False)],
    arguments: Annotated[str, typer.Option(metavar="JSON", help="The query's arguments, apart from the key.")] = "{}",
    freshness: Freshness = ANY,
    inquiry: ValueInquiry = ValueInquiry(),
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

    def tables(is_wide: bool) -> None:
        result = "null" if answer.result is None else answer.result
        print_result([("result", result)], [answer.replica], is_wide=is_wide)

    output.show(inquiry.fmt, answer, [key], tables, [answer.result])


@takes_options
def count(
    store: StoreArgument,
    exact: Annotated[bool, typer.Option("--exact", help="Count by a scan instead of the engines' estimate.")] = False,
    freshness: Freshness = ANY,
    inquiry: ValueInquiry = ValueInquiry(),
) -> None:
    """Count a store's entries; `-o wide` shows who counted each partition.

    Example: statehouse count leader-boards --exact
    """
    with inquiry.client() as client:
        counted = client.count(
            store,
            exact=exact,
            freshness=freshness,
        )

    def tables(is_wide: bool) -> None:
        stamps = sorted(counted.replicas, key=lambda stamp: stamp.partition)
        print_result([("count", counted.count), ("exact", counted.exact)], stamps, is_wide=is_wide)

    output.show(inquiry.fmt, counted, [store], tables, [counted.count])


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
