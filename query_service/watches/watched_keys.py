"""A watch's part of a store, for each kind of store: which records belong to it, and its current values in pages.

The pages follow the store's own order of entries. Each page is read between two writes, at its own position, so that no
read stays open while a client is slow. `PagePositions` remembers the range and the position of each page: a change that
a page has already shown must not be sent again, or the watcher would go back in time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from query_service.stores.base import RangePage, StateStore
from query_service.stores.key_value import KeyValueStore
from query_service.stores.versioned import VersionedStore
from query_service.stores.walk import Walk
from query_service.stores.windows import SESSIONS, WINDOWS, KeyLayout, TimedStore
from statehouse.contract import paging
from statehouse.contract.paging import KeyRange
from statehouse.contract.topology import SESSION, WINDOW, StoreSpec
from statehouse.errors import ContractError
from statehouse.keys import ordered as ordered_keys
from statehouse.keys.composite import SessionKey, WindowKey

K = TypeVar("K", WindowKey, SessionKey)
_PAGE_ENTRIES: Final = 1_000


@dataclass(frozen=True, slots=True)
class WatchedEntry:
    """The key of an entry or a record, and its window or session.

    Attributes:
        key: the serialized key.
        order: position of the entry in the order of the store's pages.
        start_ms: start of the window or session, None for other stores.
        end_ms: end of the window or session, None for other stores.

    """

    key: bytes
    order: bytes
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class KeySelection:
    """The watched keys: one key, all keys with a prefix, or all keys (if neither is set)."""

    key: bytes | None = None
    prefix: bytes = b""

    def has(self, key: bytes) -> bool:
        """Whether a key is watched."""
        return key == self.key if self.key is not None else key.startswith(self.prefix)

    def plain_range(self) -> KeyRange:
        """Return the range of the selected keys, unescaped."""
        if self.key is not None:
            return KeyRange(self.key, self.key + b"\0")
        return KeyRange(self.prefix, paging.after_prefix(self.prefix))

    def escaped_range(self) -> KeyRange:
        """Return the range of entries that begin with the escaped form of the selected keys."""
        start = ordered_keys.escaped_prefix(self.prefix) if self.key is None else ordered_keys.escaped(self.key)
        return KeyRange(start, paging.after_prefix(start))


class WatchedKeys:
    """The watched part of a store: here of a custom one, which has only changes, no current values."""

    lists = False
    """Whether the store can list its current values."""

    def __init__(self, selection: KeySelection) -> None:
        self._selection = selection

    def entry(self, record_key: bytes) -> WatchedEntry | None:
        """Return the subject of a changelog record; None if it isn't watched, or can't belong to this store."""
        return WatchedEntry(record_key, record_key) if self._selection.has(record_key) else None

    def page(self, after: bytes | None, max_bytes: int, walk: Walk) -> RangePage[tuple[WatchedEntry, bytes, int]]:
        """Return a page of the current entries after the order `after`, each with its value and its record's timestamp.

        `after` None means from the first.
        """
        raise NotImplementedError


def watched_keys(spec: StoreSpec, store: StateStore, selection: KeySelection) -> WatchedKeys:
    """Return the watched part of a store."""
    if isinstance(store, KeyValueStore):
        return _Plain(selection, selection.plain_range(), lambda key: key, store.scan_with_timestamps)
    if isinstance(store, VersionedStore):
        return _Plain(selection, selection.escaped_range(), _after_versions, store.scan)
    if isinstance(store, TimedStore) and spec.built_on == WINDOW:
        return _Timed(
            selection, store, WINDOWS, lambda window: (window.start_ms, window.start_ms + spec.window_size_ms)
        )
    if isinstance(store, TimedStore) and spec.built_on == SESSION:
        return _Timed(selection, store, SESSIONS, lambda session: (session.start_ms, session.end_ms))
    return WatchedKeys(selection)


class _Plain(WatchedKeys):
    """A store whose keys have one value each."""

    lists = True

    def __init__(
        self,
        selection: KeySelection,
        keys: KeyRange,
        order_of: Callable[[bytes], bytes],
        scan: Callable[[KeyRange, int, int, Walk], RangePage[tuple[bytes, bytes, int]]],
    ) -> None:
        super().__init__(selection)
        self._keys, self._order_of, self._scan = keys, order_of, scan

    def entry(self, record_key: bytes) -> WatchedEntry | None:
        if not self._selection.has(record_key):
            return None
        return WatchedEntry(record_key, self._order_of(record_key))

    def page(self, after: bytes | None, max_bytes: int, walk: Walk) -> RangePage[tuple[WatchedEntry, bytes, int]]:
        page = self._scan(_rest(self._keys, after), _PAGE_ENTRIES, max_bytes, walk)
        return RangePage(
            [
                (WatchedEntry(key, self._order_of(key)), value, timestamp_ms)
                for key, value, timestamp_ms in page.entries
            ],
            page.more,
        )


class _Timed(WatchedKeys, Generic[K]):
    """A store whose keys have a value per window or session."""

    lists = True

    def __init__(
        self, selection: KeySelection, store: TimedStore[K], layout: KeyLayout[K], times: Callable[[K], tuple[int, int]]
    ) -> None:
        super().__init__(selection)
        self._store: TimedStore[K] = store
        self._layout: KeyLayout[K] = layout
        self._times: Callable[[K], tuple[int, int]] = times
        self._keys = selection.escaped_range()

    def entry(self, record_key: bytes) -> WatchedEntry | None:
        try:
            timed = self._layout.read(record_key)
        except ContractError:
            return None  # replication has skipped the record too, and counted it
        return self._about(timed) if self._selection.has(timed.key) else None

    def page(self, after: bytes | None, max_bytes: int, walk: Walk) -> RangePage[tuple[WatchedEntry, bytes, int]]:
        page = self._store.scan_with_timestamps(
            _rest(self._keys, after), lambda _: True, 0, paging.LAST_MS, _PAGE_ENTRIES, max_bytes, walk
        )
        return RangePage(
            [(self._about(timed), value, timestamp_ms) for timed, value, timestamp_ms in page.entries], page.more
        )

    def _about(self, timed: K) -> WatchedEntry:
        return WatchedEntry(timed.key, timed.to_entry_key(), *self._times(timed))


def _after_versions(key: bytes) -> bytes:
    """Return an order after all entries of a key in a versioned store, as times are never negative."""
    return ordered_keys.escaped(key) + b"\xff"


def _rest(keys: KeyRange, after: bytes | None) -> KeyRange:
    return keys if after is None else KeyRange(after + b"\0", keys.stop)


class PagePositions:
    """Knows which changes the pages of current values include: each page has all changes before its own position."""

    def __init__(self) -> None:
        self._last: list[bytes] = []
        self._positions: list[int] = []

    def add(self, last: bytes | None, position: int) -> None:
        """Add a page that was read at `position`. `last`: the order of its last entry, None for the last page."""
        if last is not None:
            self._last.append(last)
        self._positions.append(position)

    @property
    def first_position(self) -> int:
        """The position from which on some page lacks changes."""
        return self._positions[0]

    @property
    def last_position(self) -> int:
        """The position from which on every page lacks changes."""
        return self._positions[-1]

    def covers(self, order: bytes, offset: int) -> bool:
        """Whether the page of the entry with this order includes its change at `offset`."""
        return offset < self._positions[bisect_left(self._last, order)]
