"""Window and session stores: values by key and time, with their records' timestamps, which expire in whole segments.

In the store the entries of one key lie side by side, in order of time. In the changelog the keys have Kafka Streams'
layouts. `statehouse.keys.composite` has both forms.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import Applied, ChangelogRecord, PageBuilder, RangePage
from query_service.stores.engine import Engine, EngineView, entries_in
from query_service.stores.engine_store import EngineStore
from query_service.stores.segments import Segments
from query_service.stores.summed import Summing, SummingHere, WantedSums
from query_service.stores.timestamps import split, timestamped
from query_service.stores.walk import Walk
from statehouse.contract.paging import KeyRange, after_prefix
from statehouse.contract.store_sums import SumBounds
from statehouse.contract.topology import SESSION, WINDOW
from statehouse.errors import ContractError
from statehouse.keys import ordered as ordered_keys
from statehouse.keys.composite import SessionKey, WindowKey

K = TypeVar("K", WindowKey, SessionKey)

_LAST_MS = 2**63 - 1
# What a custom store's query reads at a time, in addition to its limit in number.
_PAGE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeyLayout(Generic[K]):
    """The form of a kind of composite key.

    Attributes:
        kind: the built-in kind whose keys have this form.
        read: parses a key of the changelog.
        decode: parses a key of the store.
        time_ms: returns the time that decides when the entry expires.

    """

    kind: str
    read: Callable[[bytes], K]
    decode: Callable[[bytes], K]
    time_ms: Callable[[K], int]


WINDOWS: KeyLayout[WindowKey] = KeyLayout(
    WINDOW, WindowKey.from_bytes, WindowKey.from_entry_key, lambda window: window.start_ms
)
SESSIONS: KeyLayout[SessionKey] = KeyLayout(
    SESSION, SessionKey.from_bytes, SessionKey.from_entry_key, lambda session: session.end_ms
)


class TimedStore(EngineStore, Generic[K]):
    """Entries by key and time, kept for a retention."""

    def __init__(
        self, engine: Engine, layout: KeyLayout[K], retention_ms: int, *, retain_duplicates: bool = False
    ) -> None:
        """Open a store over an engine.

        Args:
            engine: keeps the entries.
            layout: `WINDOWS` or `SESSIONS`.
            retention_ms: how long entries are kept after the stream time has passed them.
            retain_duplicates: a key and window start may have several values, each with its own sequence number. A None
                value then deletes nothing, as in Kafka Streams' join stores.

        """
        super().__init__(engine)
        self._layout: KeyLayout[K] = layout
        self._segments = Segments(retention_ms)
        self._retain_duplicates = retain_duplicates

    @property
    def built_on(self) -> str:
        """The built-in kind whose keys its records have."""
        return self._layout.kind

    @property
    def stream_time_ms(self) -> int:
        """Largest entry time seen, in milliseconds, -1 before the first."""
        return self._stream_time_ms

    def apply(self, records: Sequence[ChangelogRecord], checkpoint: Checkpoint) -> Applied:
        """Write live entries, then drop the segments that have expired at the new stream time."""
        applied = Applied()
        stream_time_ms = self._stream_time_ms
        writes: dict[str, list[tuple[bytes, bytes | None]]] = {}
        for index, record in enumerate(records):
            try:
                key = self._layout.read(record.key)
            except ContractError as error:
                applied.unreadable.append((index, str(error)))
                continue
            time_ms = self._layout.time_ms(key)
            stream_time_ms = max(stream_time_ms, time_ms)
            if self._segments.is_expired(time_ms, stream_time_ms):
                applied.late += 1
            elif record.value is not None or not self._retain_duplicates:
                entry = (key.to_entry_key(), timestamped(record.value, record.timestamp_ms))
                writes.setdefault(self._segments.family(time_ms), []).append(entry)
        expired = self._segments.expired({*self._engine.families(), *writes}, stream_time_ms)
        for family in expired:
            writes.pop(family, None)
        self._engine.write(writes, replace(checkpoint, stream_time_ms=stream_time_ms))
        self.see_stream_time(stream_time_ms)
        for family in expired:
            self._engine.drop(family)
        applied.expired_segments = len(expired)
        applied.stream_time_ms = stream_time_ms
        return applied

    def scan(
        self,
        keys: KeyRange,
        accept: Callable[[K], bool],
        first_ms: int,
        last_ms: int,
        limit: int,
        max_bytes: int,
        walk: Walk,
    ) -> RangePage[tuple[K, bytes]]:
        """Return the result of `scan_with_timestamps` without the timestamps."""
        page = self.scan_with_timestamps(keys, accept, first_ms, last_ms, limit, max_bytes, walk)
        return RangePage([(key, value) for key, value, _ in page.entries], page.more)

    def scan_with_timestamps(
        self,
        keys: KeyRange,
        accept: Callable[[K], bool],
        first_ms: int,
        last_ms: int,
        limit: int,
        max_bytes: int,
        walk: Walk,
    ) -> RangePage[tuple[K, bytes, int]]:
        """Return entries of a range of entry keys as they are at one moment, in the range's order.

        Each comes with its record's timestamp.

        Args:
            keys: the range of entry keys.
            accept: decides whether a live entry is returned.
            first_ms: the earliest time that `accept` can accept; earlier segments are not read.
            last_ms: the latest time that `accept` can accept; later segments are not read.
            limit: largest number of entries.
            max_bytes: largest size of keys and values, unless the first entry is larger.
            walk: the read.

        """
        page = PageBuilder[tuple[K, bytes, int]](limit, max_bytes)
        with self._view(lambda families: self._segments.live(families, self._live_ms(first_ms), last_ms)) as viewed:
            view, families = viewed
            first_ms = self._live_ms(first_ms)
            for entry_key, data in walk.over(_merged(view, families, keys)):
                key = self._layout.decode(entry_key)
                if self._layout.time_ms(key) < first_ms or not accept(key):
                    continue
                value, timestamp_ms = split(data)
                if not page.add((key, value, timestamp_ms), len(entry_key) + len(value)):
                    return page.page(more=True)
        return page.page(more=False)

    def _live_ms(self, time_ms: int) -> int:
        """Return the first time from `time_ms` on whose entries are not expired. Ask within the view that is read."""
        return max(time_ms, self._segments.horizon_ms(self._shown_time_ms()))

    def entries_of(
        self, key: bytes, first_ms: int, last_ms: int, *, limit: int = 1_000, reverse: bool = False
    ) -> RangePage[tuple[K, bytes]]:
        """Return one key's live entries with times from `first_ms` to `last_ms`, for queries of custom stores.

        An entry's time is the one that decides when it expires: the start of a window, the end of a session. The
        entries come in the store's order: by their starts, sessions of one start by their ends.
        """
        prefix = ordered_keys.escaped(key)
        keys = KeyRange(prefix, after_prefix(prefix), reverse)
        time_ms = self._layout.time_ms
        return self.scan(
            keys, lambda entry: first_ms <= time_ms(entry) <= last_ms, first_ms, last_ms, limit, _PAGE_BYTES, Walk()
        )

    @contextmanager
    def _view(self, choose: Callable[[Collection[str]], list[str]]) -> Iterator[tuple[EngineView, list[str]]]:
        """Open a view of all segments that `choose` picks from the segments of the view's moment.

        A segment created between the choice and the view would be missing, and with it a session that the same write
        moved there. Then the choice is made again. Each repetition needs another new segment, so repetitions end.
        """
        families = choose(self._engine.families())
        while True:
            with self._engine.view(families) as view:
                present = choose(self._engine.families())
                if set(present) <= set(families):
                    yield view, families
                    return
            families = present

    def approximate_count(self) -> int:
        """Return the sum of the engine's estimates."""
        return sum(self._engine.approximate_count(family) for family in Segments.all(self._engine.families()))

    def exact_count(self, walk: Walk) -> int:
        """Walk all segments and return the number of live entries."""
        count = 0
        with self._view(Segments.all) as (view, families):
            horizon_ms = self._live_ms(0)
            for data, _ in walk.over(_merged(view, families, KeyRange())):
                count += self._layout.time_ms(self._layout.decode(data)) >= horizon_ms
        return count

    def bounded(self, asked: SumBounds) -> SumBounds:
        """Return which entries count of what this thread reads: no more than it shows, and no more than asked for."""
        return asked | SumBounds(self._shown_time_ms())

    def first_counted_ms(self, wanted: WantedSums) -> int:
        """Return the earliest time of entries that a sum counts, in milliseconds."""
        return self._segments.horizon_ms(wanted.bounds.stream_time_ms)

    def summing(self, wanted: WantedSums) -> AbstractContextManager[Summing]:
        """Begin a sum of the entries that count, as they are at one moment, as `KeyValueStore.summing` does."""
        return self._summing_here(wanted)

    @contextmanager
    def _summing_here(self, wanted: WantedSums) -> Iterator[Summing]:
        first_ms, recorded_from_ms = self.first_counted_ms(wanted), wanted.bounds.recorded_from_ms

        def counts(entry_key: bytes, stored: bytes) -> bool:
            is_live = self._layout.time_ms(self._layout.decode(entry_key)) >= first_ms
            return is_live and split(stored)[1] >= recorded_from_ms

        with self._view(lambda families: self._segments.live(families, first_ms, _LAST_MS)) as (view, families):
            yield SummingHere(_merged(view, families, KeyRange()), wanted, counts)


def _merged(view: EngineView, families: Collection[str], keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of several families as one sequence, in the range's order."""
    walks = [entries_in(view, family, keys) for family in families]
    return heapq.merge(*walks, key=lambda entry: entry[0], reverse=keys.reverse)
