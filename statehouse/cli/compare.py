"""`statehouse compare`: what differs between a store of two versions, when both have the same of their sources."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from statehouse.cli import output as out
from statehouse.cli.exits import ExitCode
from statehouse.cli.options import StoreArgument
from statehouse.cli.reads import Inquiry, takes_options
from statehouse.client import Client, DescribedMoment, Freshness
from statehouse.client.answers import StoreValue
from statehouse.contract.differences import Differences, Differing, compared
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.contract.version_names import store_at
from statehouse.errors import LookupFailure, Reason

Ends = Mapping[tuple[str, int], int]

_POLL_S: Final = 0.05
_LOOKED_BACK: Final = 32
"""Batches of each version that are looked at for equal ends."""
_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class EqualMoments:
    """A batch of each of two versions; both have the same of the inputs that both read."""

    first: MomentToken
    second: MomentToken
    topics: tuple[str, ...]
    others: tuple[str, ...] = ()
    """Inputs that only one of them reads."""


@takes_options
def compare(
    store: StoreArgument,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Version to compare.", show_default=False)],
    against: Annotated[
        str, typer.Option(metavar="VERSION", help=r"Version to compare it with.  \[default: the one that serves]")
    ] = "",
    samples: Annotated[int, typer.Option(min=0, max=10_000, help="Differences to show.")] = 10,
    wait: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="Longest wait for batches that have the same of the sources."),
    ] = 30.0,
    inquiry: Inquiry = Inquiry(),
) -> None:
    """Compare a key-value store of two versions, each as of a batch; both batches have the same of the sources.

    Shows how many keys one of them lacks or has with another value, some of them, and in which ranges of keys they
    are. Exit code 1 if any key differs.
    """
    with inquiry.client(direct=False) as client:
        fleet = client.fleet()
        against = against or fleet.version
        one, two = store_at(store, against), store_at(store, version)
        moments = equal_moments(client, one, two, wait)
        if moments.others:
            out.note(f"only one of them reads {', '.join(moments.others)}: what comes of that may differ")
        found = compared(_entries(client, one, moments.first), _entries(client, two, moments.second), is_same, samples)
    document = {
        "store": store,
        "versions": [against, version],
        "moments": [str(moments.first), str(moments.second)],
        "keys": found.keys,
        "differing": {str(kind): count for kind, count in found.counts.items()},
        "samples": [_shown(each) for each in found.samples],
        "ranges": [
            {
                "first": out.shown_bytes(each.first),
                "last": out.shown_bytes(each.last),
                "keys": each.keys,
                "differing": each.differing,
            }
            for each in found.ranges
        ],
    }
    keys = [each.key for each in found.samples]
    out.show(inquiry.fmt, document, keys, lambda _is_wide: _print(found, against, version))
    if found.differing:
        raise typer.Exit(ExitCode.ERROR)


def equal_moments(client: Client, one: str, two: str, wait_s: float) -> EqualMoments:
    """Return batches of two versions of a store that have the same of the inputs.

    Raises:
        LookupFailure: there are none in time, or a store shows no batches.

    """
    give_up_at = time.monotonic() + wait_s
    known: tuple[dict[MomentToken, Ends], dict[MomentToken, Ends]] = {}, {}
    while True:
        for store, batches in zip((one, two), known, strict=True):
            _look(client, store, batches)
        if (found := _equal(*known)) is not None:
            return found
        if time.monotonic() >= give_up_at:
            why = (
                f"had no batches with the same of their sources within {wait_s:g} s: they have when the sources are "
                "quiet for a moment; allow more with --wait"
            )
            if not _topics(known[0]) & _topics(known[1]):
                why = "read no topic that both read, so that no moments of them are equal"
            raise LookupFailure(Reason.MOMENT_NOT_REACHED, f"{one} and {two} {why}")
        time.sleep(_POLL_S)


def _look(client: Client, store: str, batches: dict[MomentToken, Ends]) -> None:
    """Take note of a store's newest batches."""
    newest = client.describe_moment(store)
    (query_id,) = newest.moment
    batch_id = newest.moment.batch(query_id) or 0
    described: DescribedMoment | None = newest
    for before in range(1, _LOOKED_BACK):
        if described is None or described.moment in batches:
            break
        batches[described.moment] = {(end.topic, end.partition): end.offset for end in described.source_ends}
        try:
            earlier = MomentToken({query_id: batch_id - before}) if batch_id >= before else None
            described = None if earlier is None else client.describe_moment(store, earlier)
        except LookupFailure:
            break  # the router doesn't know it any more
    while len(batches) > 2 * _LOOKED_BACK:
        del batches[next(iter(batches))]


def _equal(first: Mapping[MomentToken, Ends], second: Mapping[MomentToken, Ends]) -> EqualMoments | None:
    """Return the newest batches with equal ends; None if there are none."""
    topics = [_topics(batches) for batches in (first, second)]
    common = topics[0] & topics[1]
    if not common:
        return None
    found: list[EqualMoments] = []
    # A batch may read nothing and change the state all the same: of those with equal ends the newest counts.
    ends_of_second = {_of(second[moment], common): moment for moment in sorted(second, key=_batch_of)}
    for moment, ends in first.items():
        if (other := ends_of_second.get(_of(ends, common))) is not None:
            found.append(EqualMoments(moment, other, tuple(sorted(common)), tuple(sorted(topics[0] ^ topics[1]))))
    return max(found, key=lambda each: _batch_of(each.first), default=None)


def _batch_of(moment: MomentToken) -> int:
    """Return the batch that a moment of one query is of."""
    return max((moment.batch(query) or 0 for query in moment), default=0)


def _topics(batches: Mapping[MomentToken, Ends]) -> set[str]:
    return {topic for ends in batches.values() for topic, _ in ends}


def _of(ends: Ends, topics: set[str]) -> frozenset[tuple[tuple[str, int], int]]:
    return frozenset((place, offset) for place, offset in ends.items() if place[0] in topics)


def _entries(client: Client, store: str, moment: MomentToken) -> Iterator[tuple[bytes, StoreValue]]:
    freshness = Freshness(moment=MomentBound(Asked.EXACTLY, moment))
    for entry in client.scan(store, page_size=_PAGE, freshness=freshness, raw=True):
        key = entry.key if isinstance(entry.key, bytes) else entry.key.encode()
        yield key, entry.value


def is_same(one: StoreValue, two: StoreValue) -> bool:
    """Whether two raw values say the same: JSON documents do, however they are written."""
    if one == two:
        return True
    try:
        return bool(_document(one) == _document(two))
    except ValueError:
        return False


def _document(value: StoreValue) -> Any:  # noqa: ANN401 - any JSON
    if not isinstance(value, bytes):
        raise ValueError("no bytes")  # noqa: TRY004 - the caller takes it for no document
    return json.loads(value)


def _shown(each: Differing[StoreValue]) -> dict[str, object]:
    values = {
        name: value if value is None else _value(value)
        for name, value in (("first", each.first), ("second", each.second))
    }
    return {"key": out.shown_bytes(each.key), "difference": str(each.difference), **values}


def _value(value: StoreValue) -> Any:  # noqa: ANN401 - any JSON
    try:
        return _document(value)
    except ValueError:
        return out.shown_bytes(value)


def _print(found: Differences[StoreValue], against: str, version: str) -> None:
    counts = ", ".join(f"{count} {kind}" for kind, count in found.counts.items())
    print(f"{found.keys} keys, {found.differing} differ: {counts} (in {version}, compared with {against})")
    if not found.differing:
        return
    rows = [(each.key, each.difference, _cell(each.first), _cell(each.second)) for each in found.samples]
    out.print_table(["KEY", "DIFFERENCE", against.upper(), version.upper()], rows)
    ranges = [(each.first, each.last, each.keys, each.differing) for each in found.ranges]
    out.print_table(["FROM", "TO", "KEYS", "DIFFER"], ranges)


def _cell(value: StoreValue) -> object:
    return "-" if value is None else value
