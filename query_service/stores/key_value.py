"""The key-value store: the latest value of each key, with the timestamp of its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import Applied, ChangelogRecord, PageBuilder, RangePage
from query_service.stores.engine import entries_in
from query_service.stores.engine_store import EngineStore
from query_service.stores.summed import Summing, SummingHere, WantedSums
from query_service.stores.timestamps import NO_TIMESTAMP, Timestamped, split, timestamped_entries, value_of
from query_service.stores.walk import Walk
from statehouse.contract.paging import KeyRange

_FAMILY = "default"


class KeyValueStore(EngineStore):
    """Keys and values as they are in the changelog, in unsigned byte order of the keys."""

    keeps_timestamps: ClassVar[bool] = True
    """Whether the engine holds each value with its record's timestamp.

    Not so in a custom kind that has its own `get`, `scan` or `apply`: its entries are in the engine as it writes them.
    A kind whose own `apply` writes all entries by this class' `apply` may set this to True.
    """

    reads_engine: ClassVar[bool] = True
    """Whether single keys are read from the engine, and not by a custom kind's own code."""

    scans_engine: ClassVar[bool] = True
    """The same of pages."""

    def __init_subclass__(cls) -> None:
        """Find out whether a custom kind keeps timestamps, and reads keys and pages by itself."""
        super().__init_subclass__()
        reads_alike = cls.get is KeyValueStore.get and cls.scan is KeyValueStore.scan
        # A class that is derived from a kind that says it with its own `apply`, and has that, need not say it again.
        writer = next(each for each in cls.__mro__ if "apply" in each.__dict__)
        sayers = cls.__mro__[: cls.__mro__.index(writer) + 1]
        writes_alike = any(each.__dict__.get("keeps_timestamps", False) for each in sayers)
        if not (reads_alike and writes_alike):
            cls.keeps_timestamps = False
        cls.reads_engine = cls.keeps_timestamps and cls.get_with_timestamp is KeyValueStore.get_with_timestamp
        cls.scans_engine = cls.keeps_timestamps and cls.scan_with_timestamps is KeyValueStore.scan_with_timestamps

    def apply(self, records: Sequence[ChangelogRecord], checkpoint: Checkpoint) -> Applied:
        """Write the values, and delete the keys whose value is None."""
        if self.keeps_timestamps:
            entries = timestamped_entries(records)
        else:
            entries = [(record.key, record.value) for record in records]
        self._engine.write({_FAMILY: entries}, checkpoint)
        return Applied(stream_time_ms=checkpoint.stream_time_ms)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None if the store does not hold the key."""
        data = self._engine.get(_FAMILY, key)
        return data if data is None or not self.keeps_timestamps else value_of(data)

    def get_with_timestamp(self, key: bytes) -> Timestamped | None:
        """Return the value of a key and its record's timestamp, None if the store does not hold the key."""
        if self.keeps_timestamps:
            data = self._engine.get(_FAMILY, key)
            return None if data is None else split(data)
        value = self.get(key)
        return None if value is None else (value, NO_TIMESTAMP)

    def get_many(self, keys: Sequence[bytes]) -> list[Timestamped | None]:
        """Return for each key what `get_with_timestamp` would. Call it in a thread: it waits for the disk.

        Raises:
            StoreClosed: the store is closed.

        """
        if not self.reads_engine:
            return [self.get_with_timestamp(key) for key in keys]
        return [None if data is None else split(data) for data in self._engine.get_many(_FAMILY, keys)]

    def scan(self, keys: KeyRange, limit: int, max_bytes: int, walk: Walk) -> RangePage[tuple[bytes, bytes]]:
        """Return entries of a range as they are at one moment, in the range's order.

        At most `limit` entries, and at most `max_bytes` of keys and values unless the first entry is larger.
        """
        page = self._page(keys, limit, max_bytes, walk)
        return RangePage([(key, value) for key, value, _ in page.entries], page.more)

    def scan_with_timestamps(
        self, keys: KeyRange, limit: int, max_bytes: int, walk: Walk
    ) -> RangePage[tuple[bytes, bytes, int]]:
        """Return the result of `scan`, each entry with its record's timestamp."""
        if self.keeps_timestamps:
            return self._page(keys, limit, max_bytes, walk)
        page = self.scan(keys, limit, max_bytes, walk)
        return RangePage([(key, value, NO_TIMESTAMP) for key, value in page.entries], page.more)

    def _page(self, keys: KeyRange, limit: int, max_bytes: int, walk: Walk) -> RangePage[tuple[bytes, bytes, int]]:
        page = PageBuilder[tuple[bytes, bytes, int]](limit, max_bytes)
        with self._engine.view([_FAMILY]) as view:
            for key, data in walk.over(entries_in(view, _FAMILY, keys)):
                value, timestamp_ms = split(data) if self.keeps_timestamps else (data, NO_TIMESTAMP)
                if not page.add((key, value, timestamp_ms), len(key) + len(value)):
                    return page.page(more=True)
        return page.page(more=False)

    def approximate_count(self) -> int:
        """Return the engine's estimate of the number of keys."""
        return self._engine.approximate_count(_FAMILY)

    def exact_count(self, walk: Walk) -> int:
        """Walk all keys and return their number."""
        with self._engine.view([_FAMILY]) as view:
            return sum(1 for _ in walk.over(view.entries(_FAMILY, b"", None, reverse=False)))

    def summing(self, wanted: WantedSums) -> AbstractContextManager[Summing]:
        """Begin a sum of all entries as they are at one moment. It is made on this thread, within the context.

        Raises:
            StoreClosed, MomentGone: as `Summing.go_on`.

        """
        return self._summing_here(wanted)

    @contextmanager
    def _summing_here(self, wanted: WantedSums) -> Iterator[Summing]:
        with self._engine.view([_FAMILY]) as view:
            yield SummingHere(view.entries(_FAMILY, b"", None, reverse=False), wanted)
