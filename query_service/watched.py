"""What a watch sees of a store, by kind: which records concern it, and the current values page by page.

Pages follow an order of entries of the store's own. Each page is read between two writes, at a position of its own, so
that no read stays open while a client takes its time. `Snapshot` remembers which page covers what at which position:
of a change that a page has already shown, the watcher must not hear again, or it would go back in time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from query_service.stores.base import Page, StateStore
from query_service.stores.key_value import KeyValueStore
from query_service.stores.versioned import VersionedStore
from query_service.stores.walk import Walk
from query_service.stores.windows import SESSIONS, WINDOWS, Layout, TimedStore
from statehouse import ordered_keys, paging
from statehouse.composite import SessionKey, WindowKey
from statehouse.errors import ContractError
from statehouse.paging import KeyRange
from statehouse.topology import SESSION, WINDOW, StoreSpec

K = TypeVar("K", WindowKey, SessionKey)
_PAGE_ENTRIES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Subject:
    """What an entry or a record is about.

    `order`: where the entry stands among the store's pages. Times are set for windows and sessions.
    """

    key: bytes
    order: bytes
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The watched keys: one, those with a prefix, or all (neither set)."""

    key: bytes | None = None
    prefix: bytes = b""

    def has(self, key: bytes) -> bool:
        """Whether a key is watched."""
        return key == self.key if self.key is not None else key.startswith(self.prefix)

    def plain_range(self) -> KeyRange:
        """Return the range of the keys as they are."""
        if self.key is not None:
            return KeyRange(self.key, self.key + b"\0")
        return KeyRange(self.prefix, paging.after_prefix(self.prefix))

    def escaped_range(self) -> KeyRange:
        """Return the range of entries that begin with the keys, escaped."""
        start = ordered_keys.escaped_prefix(self.prefix) if self.key is None else ordered_keys.escaped(self.key)
        return KeyRange(start, paging.after_prefix(start))


class Watched(Protocol):
    """A selection of a store's keys."""

    lists: bool
    """Whether there are current values to begin with."""

    def subject(self, record_key: bytes) -> Subject | None:
        """Return what a changelog record is about; None if it isn't watched, or no record of this store."""

    def page(self, after: bytes | None, max_bytes: int, walk: Walk) -> Page[tuple[Subject, bytes]]:
        """Return the current entries that follow an order (None: from the first)."""


def watched(spec: StoreSpec, store: StateStore, selection: Selection) -> Watched:
    """Return a store's watched part; of a custom store the changes only."""
    if isinstance(store, KeyValueStore):
        return _Plain(selection, selection.plain_range(), lambda key: key, store.scan)
    if isinstance(store, VersionedStore):
        return _Plain(selection, selection.escaped_range(), _after_versions, store.latest)
    if isinstance(store, TimedStore) and spec.kind == WINDOW:
        return _Timed(
            selection, store, WINDOWS, lambda window: (window.start_ms, window.start_ms + spec.window_size_ms)
        )
    if isinstance(store, TimedStore) and spec.kind == SESSION:
        return _Timed(selection, store, SESSIONS, lambda session: (session.start_ms, session.end_ms))
    return _Changes(selection)


class _Plain:
    """Keys that have one value each."""

    lists = True

    def __init__(
        self,
        selection: Selection,
        keys: KeyRange,
        order_of: Callable[[bytes], bytes],
        scan: Callable[[KeyRange, int, int, Walk], Page[tuple[bytes, bytes]]],
    ) -> None:
        self._selection, self._keys, self._order_of, self._scan = selection, keys, order_of, scan

    def subject(self, record_key: bytes) -> Subject | None:
        if not self._selection.has(record_key):
            return None
        return Subject(record_key, self._order_of(record_key))

    def page(self, after: bytes | None, max_bytes: int, walk: Walk) -> Page[tuple[Subject, bytes]]:
        page = self._scan(_rest(self._keys, after), _PAGE_ENTRIES, max_bytes, walk)
        return Page([(Subject(key, self._order_of(key)), value) for key, value in page.entries], page.more)


class _Timed(Generic[K]):
    """Keys that have values by window or session."""

    lists = True

    def __init__(
        self, selection: Selection, store: TimedStore[K], layout: Layout[K], times: Callable[[K], tuple[int, int]]
    ) -> None:
        self._selection = selection
        self._store: TimedStore[K] = store
        self._layout: Layout[K] = layout
        self._times: Callable[[K], tuple[int, int]] = times
        self._keys = selection.escaped_range()

    def subject(self, record_key: bytes) -> Subject | None:
        try:
            timed = self._layout.read(record_key)
        except ContractError:
            return None  # replication has passed it over, too, and counted it
        return self._about(timed) if self._selection.has(timed.key) else None

    def page(self, after: bytes | None, max_bytes: int, walk: Walk) -> Page[tuple[Subject, bytes]]:
        page = self._store.scan(
            _rest(self._keys, after), lambda _: True, 0, paging.LAST_MS, _PAGE_ENTRIES, max_bytes, walk
        )
        return Page([(self._about(timed), value) for timed, value in page.entries], page.more)

    def _about(self, timed: K) -> Subject:
        return Subject(timed.key, timed.to_entry_key(), *self._times(timed))


class _Changes:
    """A store whose current values can't be listed."""

    lists = False

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def subject(self, record_key: bytes) -> Subject | None:
        return Subject(record_key, record_key) if self._selection.has(record_key) else None

    def page(self, after: bytes | None, max_bytes: int, walk: Walk) -> Page[tuple[Subject, bytes]]:
        raise NotImplementedError


def _after_versions(key: bytes) -> bytes:
    """Return what follows all entries of a key in a versioned store: their times are not negative."""
    return ordered_keys.escaped(key) + b"\xff"


def _rest(keys: KeyRange, after: bytes | None) -> KeyRange:
    return keys if after is None else KeyRange(after + b"\0", keys.stop)


class Snapshot:
    """Which changes the pages of current values hold: each page all those before a position of its own."""

    def __init__(self) -> None:
        self._last: list[bytes] = []
        self._positions: list[int] = []

    def add(self, last: bytes | None, position: int) -> None:
        """Take a page that ends with an entry's order (None: it is the last page) and was read at a position."""
        if last is not None:
            self._last.append(last)
        self._positions.append(position)

    @property
    def first_position(self) -> int:
        """Where the changes begin that some page may not hold."""
        return self._positions[0]

    @property
    def last_position(self) -> int:
        """Where the changes begin that no page holds."""
        return self._positions[-1]

    def holds(self, order: bytes, offset: int) -> bool:
        """Whether a change of the entry with this order is in its page."""
        return offset < self._positions[bisect_left(self._last, order)]
