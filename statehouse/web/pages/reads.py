"""Lookups, scans and watches for people who look at a page."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import QueryParams

from statehouse.client import AsyncWatch, Session, Store, Window, conversion
from statehouse.client.keys import to_key
from statehouse.contract.consistency import Freshness
from statehouse.contract.topology import SESSION, WINDOW
from statehouse.errors import LookupFailure
from statehouse.v1 import query_service_pb2, types_pb2
from statehouse.web.gateway import Gateway
from statehouse.web.pages.figures import key_text, value_text
from statehouse.web.pages.pages import BadQuery, number, text
from statehouse.web.pages.rendering import html
from statehouse.web.pages.views.reads import (
    EntryRow,
    LookupForm,
    LookupView,
    StoreView,
    entry_row,
    explained,
    problem_of,
    timed_row,
)

KEY_MAX: Final = 4_000
"""Characters of a key in a page's address."""
TOKEN_MAX: Final = 64 * 1_024
ENTRIES_A_PAGE: Final = 50
CHANGES_SHOWN: Final = 50
CHANGES_PAUSE_S: Final = 0.25
"""Changes are shown no more often."""
_SCANS: Final = {WINDOW: "ScanWindows", SESSION: "ScanSessions"}


def asked(query: QueryParams) -> LookupForm:
    """Read the form of a lookup.

    Raises:
        BadQuery: a field can't be used.

    """
    return LookupForm(
        text(query, "store"),
        text(query, "key", KEY_MAX),
        bool(text(query, "active_only")),
        number(query, "max_lag"),
        number(query, "max_staleness_ms"),
    )


async def lookup(gateway: Gateway, stores: tuple[Store, ...], asked: LookupForm) -> LookupView:
    """Look a key up, and explain how. Without a key there is only the form. `stores`: to choose from."""
    if not asked.key:
        return LookupView(stores, asked)
    store = next((each for each in stores if each.name == asked.store), None)
    bounds = Freshness(active_only=asked.active_only, max_lag=asked.max_lag, max_staleness_ms=asked.max_staleness_ms)
    client = gateway.client
    try:
        if store is None or store.kind not in _SCANS:
            return explained(stores, asked, await client.explain(asked.store, asked.key, freshness=bounds))
        return await _timed(gateway, stores, store, asked, bounds)
    except LookupFailure as failure:
        return LookupView(stores, asked, problem=problem_of(failure))


async def _timed(
    gateway: Gateway, stores: tuple[Store, ...], store: Store, asked: LookupForm, bounds: Freshness
) -> LookupView:
    """Read the windows or sessions of a key; a second call asks which replicas there are."""
    fields: dict[str, Any] = {
        "store": store.name,
        "key": to_key(asked.key),
        "freshness": conversion.to_freshness(bounds, store.name),
        "page_size": ENTRIES_A_PAGE,
        "reverse": True,
        "json_text": True,
    }
    if store.kind == WINDOW:
        answer = await _call(gateway, "FetchWindows", fields)
        found: list[Window] | list[Session] = [conversion.from_window(each) for each in answer.windows]
    else:
        answer = await _call(gateway, "FetchSessions", fields)
        found = [conversion.from_session(each) for each in answer.sessions]
    place = await gateway.client.locate(store.name, asked.key, freshness=bounds)
    return LookupView(
        stores,
        asked,
        found=bool(found),
        entries=tuple(timed_row(asked.key, each) for each in found),
        stamp=conversion.from_stamp(answer.replica),
        partition=place.partition,
        epoch=place.epoch,
        candidates=place.candidates,
    )


def scan_call(store: Store) -> str:
    """Return the call that reads a page of a store."""
    return _SCANS.get(store.kind, "Scan")


async def store_page(gateway: Gateway, store: Store, query: QueryParams) -> StoreView:
    """Read a page of a store.

    Raises:
        BadQuery: a field can't be used.

    """
    prefix, first, last = (text(query, name, KEY_MAX) for name in ("prefix", "from", "to"))
    reverse, token = bool(text(query, "reverse")), text(query, "page", TOKEN_MAX)
    if prefix and (first or last):
        raise BadQuery("give either a beginning of keys, or a range")
    fields: dict[str, Any] = {
        "store": store.name,
        "from_key": types_pb2.Key(text=first) if first else None,
        "to_key": types_pb2.Key(text=last) if last else None,
        "prefix": types_pb2.Key(text=prefix) if prefix else None,
        "reverse": reverse,
        "page_size": ENTRIES_A_PAGE,
        "page_token": token,
        "json_text": True,
    }
    count = None
    try:
        rows, replicas, following = await _scanned(gateway, store, fields)
        count = (await gateway.client.count(store.name)).count
    except LookupFailure as failure:
        return StoreView(store, prefix, first, last, reverse, (), (), "", None, problem_of(failure))
    stamps = tuple(map(conversion.from_stamp, replicas))
    return StoreView(store, prefix, first, last, reverse, rows, stamps, following, count)


async def _scanned(gateway: Gateway, store: Store, fields: dict[str, Any]) -> tuple[tuple[EntryRow, ...], Any, str]:
    answer = await _call(gateway, scan_call(store), fields)
    if store.kind == WINDOW:
        rows = [timed_row(each.key, each) for each in conversion.from_scan_windows(answer, store.name).windows]
    elif store.kind == SESSION:
        rows = [timed_row(each.key, each) for each in conversion.from_scan_sessions(answer, store.name).sessions]
    else:
        rows = list(map(entry_row, conversion.from_scan(answer, store.name).entries))
    return tuple(rows), answer.replicas, answer.next_page_token


async def _call(gateway: Gateway, method: str, fields: dict[str, Any]) -> Any:  # noqa: ANN401 - the method's response
    request = getattr(query_service_pb2, f"{method}Request")(**fields)
    return await gateway.ask(lambda peer, left_s: getattr(peer.query, method)(request, timeout=left_s))


@dataclass(frozen=True, slots=True)
class WatchedRow:
    """A change of a watched store, numbered from the start of the watch."""

    number: int
    key: str
    value: str
    deleted: bool
    partition: int
    offset: int | None
    timestamp_ms: int | None


async def watched(
    gateway: Gateway, store: str, prefix: str | None, told: Callable[[LookupFailure], LookupFailure]
) -> AsyncIterator[str]:
    """Yield the last changes of a store as a table, the newest first, until it can't be watched any more.

    `told`: returns a failure as the reader may see it.
    """
    rows: deque[WatchedRow] = deque(maxlen=CHANGES_SHOWN)
    news = asyncio.Event()
    async with gateway.client.watch(store, prefix=prefix) as watch:
        filling = asyncio.create_task(_fill(watch, rows, news), name="fill a watch's table")
        try:
            while not filling.done():
                await news.wait()
                news.clear()
                yield html("watched.html", rows=rows, problem=None)
                await asyncio.sleep(CHANGES_PAUSE_S)
            failure = filling.result()
            yield html("watched.html", rows=rows, problem=None if failure is None else problem_of(told(failure)))
        finally:
            filling.cancel()


async def _fill(watch: AsyncWatch, rows: deque[WatchedRow], news: asyncio.Event) -> LookupFailure | None:
    """Put each change in front; return why there are no more."""
    seen = 0
    try:
        async for update in watch:
            for change in update.changes:
                seen += 1
                shown = key_text(change.key), value_text(change.value), change.deleted
                rows.appendleft(WatchedRow(seen, *shown, update.partition, change.offset, change.timestamp_ms))
            news.set()
    except LookupFailure as failure:
        return failure
    finally:
        news.set()
    return None
