"""Reads of whole stores as Arrow batches, tables and pandas frames, page by page. Spark's data source reads so, too.

All of a read is of one moment where the store shows moments: the newest one that all its partitions have. Else a page
shows its partition exactly at the position in its column, and no later page of it an earlier one. So without writes
meanwhile a read is exact and complete, and with writes each key is as of its page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, TypedDict, Unpack, cast

from statehouse.client import conversion
from statehouse.client.answers import NOTHING_SEEN, AnyKey, KeyLike, Store
from statehouse.client.columns import PageColumns, ScanResponse, arrow, columns_of
from statehouse.client.keys import KeyForm, prefix_key, to_key
from statehouse.client.moments import PinnedMoment, shown_by
from statehouse.client.peers import Method
from statehouse.client.reads import AsyncReads
from statehouse.client.store_frame import (
    EVERY_KEY,
    FramePart,
    ScanRequest,
    StoreFrame,
    named_store,
    parts_of,
    scan_request,
)
from statehouse.contract.consistency import ANY, Freshness
from statehouse.contract.moments import NEWEST_TEXT, Asked, MomentBound, MomentToken
from statehouse.contract.paging import KeyRange, after_prefix, serialized_key
from statehouse.contract.positions import Token
from statehouse.contract.scan_ranges import range_between, serialized_prefix
from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.runtime.backoff import Backoff, BackoffPolicy
from statehouse.serdes import known_serde
from statehouse.v1 import fleet_service_pb2, query_service_pb2

PATIENCE_S: Final = 60.0
"""How long a page is asked for again while nobody can answer: a node's restart takes less."""
MAX_TABLE_BYTES: Final = 2**30
"""Bytes that a table has at most, unless the caller says otherwise."""
MOMENT: Final = "statehouse.moment"
"""In a schema's metadata, and in `attrs` of a pandas frame: the token of the moment that all of it is of."""
NO_MOMENT: Final = "statehouse.moment_unavailable"
"""Or there: why it is of none, though nobody said so."""

_AS_IT_SHOWS: Final = "as it shows"
_AGAIN: Final = BackoffPolicy("page_unanswered", first_s=0.05, longest_s=1.0)
# They pass on their own: a node restarts, a partition moves, a replica catches up, a server has too much to do.
_PASSING: Final = frozenset(
    {
        Reason.ATTEMPT_TIMED_OUT,
        Reason.DEADLINE_EXCEEDED,
        Reason.MOMENT_NOT_REACHED,
        Reason.NODE_SHUTTING_DOWN,
        Reason.NO_REPLICA_AVAILABLE,
        Reason.OVERLOADED,
        Reason.PARTITION_NOT_OWNED,
        Reason.PARTITION_RESTORING,
        Reason.POSITION_NOT_REACHED,
        Reason.ROUTING_NOT_READY,
        Reason.UNREACHABLE,
    }
)


class FrameBounds(TypedDict, total=False):
    """How pages are read; every field may be left out.

    Attributes:
        page_size: entries a page at most; 0, the default, is as many as servers give (1,000).
        freshness: bounds of each page.
        at_least: each page shows at least what the answers with this token saw.
        timeout: seconds for each call.
        patience: seconds for which a page is asked for again while nobody can answer it; 0: not again. Default: 60.

    """

    page_size: int
    freshness: Freshness
    at_least: Token | None
    timeout: float | None
    patience: float


class FrameOptions(FrameBounds, total=False):
    """What is read of a store; every field may be left out.

    Attributes:
        key: only this key: one partition is asked.
        from_key, to_key: only keys from the one to the other, both inclusive: numbers by number, else in byte order of
            the serialized keys.
        prefix: only keys that begin so.
        from_ms, to_ms: only windows that start within, sessions that overlap; both inclusive, epoch milliseconds.
        as_of_ms: of a versioned store: the entries as they were then, epoch milliseconds.
        partitions: only these.
        raw: keys and values as the bytes in the changelog.
        value_type: a pyarrow.DataType for values that are documents, as `pa.struct({"score": pa.float64()})`; else they
            are JSON as text.
        moment: a MomentToken: all of it is of this moment; "newest": of the newest; None: each page is as of its own
            time. Default: the newest, if the store shows moments; the schema's metadata says which, or why of none.

    """

    key: AnyKey | None
    from_key: AnyKey | None
    to_key: AnyKey | None
    prefix: KeyLike | None
    from_ms: int | None
    to_ms: int | None
    as_of_ms: int | None
    partitions: Collection[int] | None
    raw: bool
    value_type: Any
    moment: MomentToken | str | None


class AsyncFrameReads(AsyncReads):
    """`AsyncReads`, and reads of many entries into columns. They need the extra `statehouse[dataframe]`."""

    async def describe(self, store: str, *, timeout: float | None = None) -> Store:  # noqa: ASYNC109 - as in AsyncReads
        """Return what the fleet knows of a store.

        Raises:
            LookupFailure: there is no such store, or the router can't be reached or is not ready.

        """
        return named_store(await self._listed_stores(timeout), store)

    async def _listed_stores(self, timeout: float | None) -> tuple[Store, ...]:  # noqa: ASYNC109 - as above
        """Return the stores of the newest assignment, by name."""
        request = fleet_service_pb2.ListStoresRequest()
        listed = await self._router.ask(
            lambda peer, left_s: peer.fleet.ListStores(request, timeout=left_s), self._seconds(timeout)
        )
        return conversion.from_stores(listed)

    async def arrow_batches(self, store: str, **options: Unpack[FrameOptions]) -> AsyncGenerator[Any, None]:
        """Read a store as pyarrow.RecordBatches: a batch a page, partition after partition, in order of their keys.

        Columns: `key` and `value` by the store's serdes (null where bytes don't decode); of windows and sessions
        `start` and `end`, of windows `sequence`; then `timestamp` (of the record; null if the store keeps none),
        `partition` and `position`: the page shows the partition exactly at this changelog offset. In batches of a
        global store of several partitions these two are null. Times are UTC, in microseconds.

        `options`: see `FrameOptions` and `FrameBounds`. While the caller uses a page, the next one is fetched.

        Raises:
            LookupFailure: some partition could not be read within the bounds, or the request is wrong.
            ConfigurationError: pyarrow isn't installed, or `value_type` doesn't fit.

        """
        frame, parts = await self._frame(store, options)
        async with aclosing(self._batches(frame, parts, options)) as batches:
            async for batch in batches:
                yield batch

    async def frame_batches(
        self, frame: StoreFrame, part: FramePart, **bounds: Unpack[FrameBounds]
    ) -> AsyncGenerator[Any, None]:
        """Read a part of a frame, for reads by several processes; the rest is as in `arrow_batches`."""
        columns = PageColumns(frame)
        if frame.moment is not None:
            bounds = _of_moment(bounds, MomentBound(Asked.EXACTLY, frame.moment))
        seen = bounds.get("at_least") or NOTHING_SEEN
        for keys in part.ranges:
            request = scan_request(frame, part.partition, keys, bounds.get("page_size", 0))
            async with aclosing(self._pages_of(request, seen, bounds)) as pages:
                async for response in pages:
                    seen |= conversion.token_of(request.store, response.replicas)
                    batch = columns.batch(response, keys)
                    if batch.num_rows:
                        yield batch

    async def to_arrow(
        self,
        store: str,
        *,
        limit: int | None = None,
        max_bytes: int = MAX_TABLE_BYTES,
        **options: Unpack[FrameOptions],
    ) -> Any:  # noqa: ANN401 - a pyarrow.Table
        """Return a store, or a part of it, as a pyarrow.Table; its columns and options are those of `arrow_batches`.

        `limit`: rows at most; the first ones of the read. `max_bytes`: what the table may have at most.

        Raises:
            LookupFailure: as `arrow_batches`.
            ConfigurationError: as `arrow_batches`; or the table would have more than `max_bytes`.

        """
        pa = arrow()
        frame, parts = await self._frame(store, options)
        batches: list[Any] = []
        rows = size = 0
        async with aclosing(self._batches(frame, parts, options)) as read:
            async for batch in read:
                kept = batch if limit is None else batch.slice(0, limit - rows)
                batches.append(kept)
                rows, size = rows + kept.num_rows, size + kept.nbytes
                if size > max_bytes:
                    raise ConfigurationError(
                        f"as a table, store {store} has more than {max_bytes:,} bytes ({rows:,} rows are too much): "
                        "raise max_bytes, take a part of it, or go through it with arrow_batches"
                    )
                if limit is not None and rows >= limit:
                    break
        return pa.Table.from_batches(batches, frame.schema)

    async def to_pandas(
        self,
        store: str,
        *,
        limit: int | None = None,
        max_bytes: int = MAX_TABLE_BYTES,
        **options: Unpack[FrameOptions],
    ) -> Any:  # noqa: ANN401 - a pandas.DataFrame
        """Return the table of `to_arrow` as a pandas.DataFrame.

        Raises:
            LookupFailure, ConfigurationError: as `to_arrow`.

        """
        table = await self.to_arrow(store, limit=limit, max_bytes=max_bytes, **options)
        frame = table.to_pandas()
        frame.attrs |= {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
        return frame

    async def frame_of_moment(
        self,
        frame: StoreFrame,
        parts: Sequence[FramePart],
        moment: MomentToken | str | None = None,
        **bounds: Unpack[FrameBounds],
    ) -> StoreFrame:
        """Return a frame that is of one moment: of the newest that all its parts show, unless another is given.

        If none is given and the store shows none, it stays as it is, and its schema's metadata says why.

        Raises:
            LookupFailure: the moment is not there, or some partition could not be read within the bounds.

        """
        freshness = bounds.get("freshness", ANY)
        if isinstance(moment, MomentToken):
            bound = MomentBound(Asked.EXACTLY, moment)
        else:
            bound = freshness.moment or self._newest(frame.store.name)
        try:
            agreed = await self._agreed(frame, parts, _of_moment(bounds, bound))
        except LookupFailure as failure:
            if failure.reason is not Reason.MOMENTS_UNAVAILABLE or (moment or freshness.moment) is not None:
                raise
            return replace(frame, schema=frame.schema.with_metadata({NO_MOMENT: failure.message}))
        return replace(frame, moment=agreed, schema=frame.schema.with_metadata({MOMENT: str(agreed)}))

    def _newest(self, store: str) -> MomentBound:
        """Return the bound of the newest moment: none before what the client has seen."""
        seen = self._connections.moments
        return PinnedMoment(seen.token, seen).bound(store)

    async def _agreed(self, frame: StoreFrame, parts: Sequence[FramePart], bounds: FrameBounds) -> MomentToken:
        """Return the newest moment that all partitions of these parts show, by an entry of each."""
        numbers = sorted({part.partition for part in parts if part.partition is not None})
        is_all = len(numbers) in {0, frame.store.partition_count}
        found: list[MomentToken] = []
        for number in [None] if is_all else numbers:
            request = scan_request(frame, number, KeyRange(), 1)
            response = await self._page(request, bounds.get("at_least") or NOTHING_SEEN, bounds)
            moment = shown_by(request.store, request.freshness, response.replicas)
            assert moment is not None  # noqa: S101 - it was asked for
            found.append(moment)
        # Those that are beyond the earliest of them keep it: batches are of one query.
        return min(found, key=lambda each: max(each.batch(query) or 0 for query in each))

    async def _frame(self, store: str, options: FrameOptions) -> tuple[StoreFrame, Sequence[FramePart]]:
        unknown = sorted(options.keys() - FrameOptions.__annotations__.keys())
        if unknown:
            raise TypeError(f"there is no {unknown[0]!r}; there are {', '.join(sorted(FrameOptions.__annotations__))}")
        known = await self.describe(store, timeout=options.get("timeout"))
        raw, moment = options.get("raw", False), options.get("moment", _AS_IT_SHOWS)
        if moment not in {None, _AS_IT_SHOWS, NEWEST_TEXT} and not isinstance(moment, MomentToken):
            raise ValueError(f"a moment is a MomentToken, {NEWEST_TEXT!r} or None, not {moment!r}")
        frame = StoreFrame(
            known,
            columns_of(known, raw=raw, value_type=options.get("value_type")),
            raw,
            options.get("from_ms"),
            options.get("to_ms"),
            options.get("as_of_ms"),
        )
        parts = parts_of(known, _ranges(known, options), options.get("partitions"))
        if moment is not None and parts:
            given = None if moment == _AS_IT_SHOWS else moment
            frame = await self.frame_of_moment(frame, parts, given, **_bounds_in(options))
        return frame, parts

    async def _batches(
        self, frame: StoreFrame, parts: Sequence[FramePart], options: FrameOptions
    ) -> AsyncGenerator[Any, None]:
        bounds = _bounds_in(options)
        for part in parts:
            async with aclosing(self.frame_batches(frame, part, **bounds)) as batches:
                async for batch in batches:
                    yield batch

    async def _pages_of(
        self, request: ScanRequest, seen: Token, bounds: FrameBounds
    ) -> AsyncGenerator[ScanResponse, None]:
        """Yield page after page, each at least as new as what has been seen; the next one is fetched meanwhile."""
        following = asyncio.ensure_future(self._page(request, seen, bounds))
        try:
            while True:
                response = await following
                token = conversion.token_of(request.store, response.replicas)
                moment = shown_by(request.store, request.freshness, response.replicas)
                seen |= token
                request.page_token = response.next_page_token
                if request.page_token:
                    following = asyncio.ensure_future(self._page(request, seen, bounds))
                self._saw(token)
                self._saw_moment(request.store, moment)
                yield response
                if not request.page_token:
                    return
        finally:
            following.cancel()
            # A caller that left has no use for its failure, and asyncio would log one that nobody takes.
            await asyncio.wait([following])
            if not following.cancelled():
                following.exception()

    async def _page(self, request: ScanRequest, seen: Token, bounds: FrameBounds) -> ScanResponse:
        """Return a page; ask for it again while its failure may pass on its own."""
        loop = asyncio.get_running_loop()
        give_up_at, again = loop.time() + bounds.get("patience", PATIENCE_S), Backoff(_AGAIN)
        wire = self._wire(request.store, bounds.get("freshness", ANY), seen)
        if wire is not None:
            request.freshness.CopyFrom(wire)
        while True:
            try:
                return await self._router.make(_METHODS[type(request)], request, self._seconds(bounds.get("timeout")))
            except LookupFailure as failure:
                pause_s = again.failed()
                is_final = failure.reason not in _PASSING or self._connections.is_closed
                if is_final or loop.time() + pause_s >= give_up_at:
                    raise
                await asyncio.sleep(pause_s)


def _bounds_in(options: FrameOptions) -> FrameBounds:
    return cast("FrameBounds", {name: value for name, value in options.items() if name in _BOUNDS})


def _of_moment(bounds: FrameBounds, bound: MomentBound) -> FrameBounds:
    return {**bounds, "freshness": replace(bounds.get("freshness", ANY), moment=bound)}


def _ranges(store: Store, options: FrameOptions) -> Sequence[KeyRange]:
    """Return the ranges of keys that the options say.

    Raises:
        TypeError: the store's keys aren't of a key's type.
        LookupFailure: INVALID_KEY, or INVALID_REQUEST if they say more than one thing, or no key is in the range.

    """
    serde = known_serde(store.key_serde)
    names = ("key", "from_key", "to_key")
    form = KeyForm(store.name, store.key_serde, store.key_columns)
    keys = {name: to_key(cast("AnyKey", key), form) for name in names if (key := options.get(name)) is not None}
    prefix = options.get("prefix")
    if prefix is not None:
        keys["prefix"] = prefix_key(prefix)
    if not keys:
        return EVERY_KEY
    if len(keys) > 1 and keys.keys() != {"from_key", "to_key"}:
        raise LookupFailure(Reason.INVALID_REQUEST, f"{' and '.join(keys)} don't go together: give one of them")
    if "key" in keys:
        key = serialized_key(keys["key"], serde)
        return [KeyRange(key, key + b"\0")]
    if "prefix" in keys:
        beginning = serialized_prefix(keys["prefix"], serde)
        return [KeyRange(beginning, after_prefix(beginning))]
    return range_between(keys.get("from_key"), keys.get("to_key"), serde).parts()


_BOUNDS: Final = frozenset(FrameBounds.__annotations__)
_METHODS: Final[Mapping[type, Method[Any, Any]]] = MappingProxyType(
    {
        query_service_pb2.ScanRequest: lambda query: query.Scan,
        query_service_pb2.ScanWindowsRequest: lambda query: query.ScanWindows,
        query_service_pb2.ScanSessionsRequest: lambda query: query.ScanSessions,
    }
)
