"""A persistent key-value store on RocksDB: one database a store partition, the checkpoint in its write batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import Options, Rdict, RdictIter, ReadOptions, WriteBatch

from query_service.checkpoint import Checkpoint
from query_service.stores.base import Page, Records
from statehouse.errors import StatehouseError
from statehouse.paging import KeyRange

_META = "statehouse-meta"
_CHECKPOINT_KEY = b"checkpoint"


class StoreUnusable(StatehouseError):
    """The database can't be opened or its checkpoint can't be read; it must be wiped and restored."""


class RocksDBKeyValueStore:
    """Keys and values as bytes, in unsigned byte order of the keys."""

    def __init__(self, path: Path) -> None:
        """Open the database under `path`, creating it if there is none.

        Raises:
            StoreUnusable: what is there is no intact database of ours.

        """
        try:
            self._db = Rdict(str(path), _options(), column_families={_META: _options()})
            self._meta = self._db.get_column_family_handle(_META)
            meta = self._db.get_column_family(_META)
            stored = meta.get(_CHECKPOINT_KEY)
            meta.close()
            self._checkpoint = None if stored is None else Checkpoint.from_json(stored)
        except Exception as error:  # rocksdict raises plain Exception for whatever RocksDB reports
            raise StoreUnusable(f"{path}: {error}") from error
        self._lock = threading.Condition()
        self._readers = 0
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        """Return a key's value."""
        value: bytes | None = self._db.get(key)
        return value

    def scan(self, keys: KeyRange, limit: int, max_bytes: int) -> Page:
        """Return entries of a range, from one snapshot (an iterator is one)."""
        found: list[tuple[bytes, bytes]] = []
        size = 0
        with self._iterator() as entries:
            for key, value in _in_range(entries, keys):
                size += len(key) + len(value)
                if len(found) == limit or (found and size > max_bytes):
                    return Page(found, more=True)
                found.append((key, value))
        return Page(found, more=False)

    def approximate_count(self) -> int:
        """Return RocksDB's estimate."""
        return int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0)

    def exact_count(self) -> int:
        """Count by a scan."""
        count = 0
        with self._iterator() as entries:
            entries.seek_to_first()
            while entries.valid():
                count += 1
                entries.next()
        return count

    def checkpoint(self) -> Checkpoint | None:
        """Return the place in the changelog."""
        return self._checkpoint

    def apply(self, records: Records, checkpoint: Checkpoint) -> None:
        """Write a batch; the write-ahead log makes it whole or nothing after a crash of the process."""
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in records:
            if value is None:
                delete(key)
            else:
                put(key, value)
        put(_CHECKPOINT_KEY, checkpoint.to_json().encode(), self._meta)
        self._db.write(batch)
        self._checkpoint = checkpoint

    def close(self) -> None:
        """Close the database once the last reader is done."""
        with self._lock:
            self._closed = True
            self._lock.wait_for(lambda: self._readers == 0)
        del self._meta  # a handle keeps the database, and its lock, open
        self._db.close()

    @contextmanager
    def _iterator(self) -> Iterator[RdictIter]:
        """Lend an iterator and keep the database open for as long."""
        with self._lock:
            if self._closed:
                raise StatehouseError("the store is closed")
            self._readers += 1
        try:
            entries = self._db.iter(ReadOptions())
            try:
                yield entries
            finally:
                del entries
        finally:
            with self._lock:
                self._readers -= 1
                self._lock.notify_all()


def _in_range(entries: RdictIter, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
    """Walk an iterator over a range, in its direction."""
    if keys.is_empty:
        return
    if not keys.reverse:
        entries.seek(keys.start)
        while entries.valid() and (keys.stop is None or entries.key() < keys.stop):
            yield entries.key(), entries.value()
            entries.next()
        return
    if keys.stop is None:
        entries.seek_to_last()
    else:
        entries.seek_for_prev(keys.stop)
        if entries.valid() and entries.key() == keys.stop:
            entries.prev()
    while entries.valid() and entries.key() >= keys.start:
        yield entries.key(), entries.value()
        entries.prev()


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # A few old log files are enough to see what happened, and keep directories small.
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    return options
