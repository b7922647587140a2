"""Families on RocksDB: a database per store partition, a column family per family, the checkpoint in each batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rocksdict import AccessType, Rdict, RdictIter, ReadOptions, WriteBatch

from query_service.checkpoint import Checkpoint, UnknownFormat
from query_service.faults import Fault, TaskFault
from query_service.stores.engine import StoreClosed, StoreUnusable, View, Writes
from query_service.stores.resources import StoreResources
from statehouse.errors import LookupFailure, Reason

_META = "statehouse-meta"
_CHECKPOINT_KEY = b"checkpoint"
# RocksDB writes the options of a new family, 10 kB, into its LOG and again into each LOG after it, unless there are ten
# families. Where families come and go these fill it up to that number: without them a window store's LOG outgrows its
# data, and past its largest size each line of it costs as much as the whole.
_SPARES = tuple(f"statehouse-spare-{nth}" for nth in range(8))
_BUILT_IN = frozenset({"default", _META, *_SPARES})
_DAMAGED = "DAMAGED"
# What RocksDB and the system say when they refuse, rather than when the content is bad. RocksDB's binding gives text.
_FULL = ("No space left", "quota exceeded")
_REFUSALS = (
    *_FULL,
    "Read-only file system",
    "Permission denied",
    "Operation not permitted",
    "Too many open files",
    "Cannot allocate memory",
    "Resource temporarily unavailable",
    "No locks available",
    "Writer has previous error",
)
_PROPERTIES = {
    "memtable_bytes": "rocksdb.size-all-mem-tables",
    "sst_bytes": "rocksdb.live-sst-files-size",
    "pending_compaction_bytes": "rocksdb.estimate-pending-compaction-bytes",
    "table_reader_bytes": "rocksdb.estimate-table-readers-mem",
}


class DiskRefused(TaskFault):
    """The disk is full, read-only or not ours: what is on it may well be intact and must not be wiped for it."""

    def __init__(self, path: Path, error: Exception) -> None:
        is_full = any(words in str(error) for words in _FULL)
        super().__init__(f"{path}: {error}", Fault.DISK_FULL if is_full else Fault.DISK_REFUSED)


class RocksDBEngine:
    """A database under a directory, opened by one process at a time."""

    def __init__(self, path: Path, resources: StoreResources | None = None) -> None:
        """Open the database, creating it if there is none; without `resources` with memory of its own.

        Raises:
            StoreUnusable: what is there is no intact database of ours.
            DiskRefused: the disk doesn't let us.

        """
        self._options = (resources or StoreResources()).options
        try:
            _refuse_marked(path)
            path.mkdir(parents=True, exist_ok=True)
            known = set(Rdict.list_cf(str(path), self._options)) if (path / "CURRENT").exists() else set()
            self._db = Rdict(str(path), self._options, column_families=dict.fromkeys(known | {_META}, self._options))
            self._families = {name: self._db.get_column_family(name) for name in known - _BUILT_IN}
            self._meta = self._db.get_column_family(_META)
            self._handles = {name: self._db.get_column_family_handle(name) for name in [*self._families, _META]}
            self._checkpoint = self._stored_checkpoint()
        except Exception as error:  # rocksdict raises plain Exception for whatever RocksDB reports
            if any(refusal in str(error) for refusal in _REFUSALS):
                raise DiskRefused(path, error) from error
            raise StoreUnusable(f"{path}: {error}", _unusable(error)) from error
        self._path = path
        self._damage: str | None = None
        self._lock = threading.Condition()
        self._writing = threading.Lock()  # taken before the other; a write may take long, when RocksDB is behind
        self._views = 0
        self._doomed: dict[str, Rdict] = {}
        self._spares_due = set(_SPARES) - known
        self._closed = False

    def _stored_checkpoint(self) -> Checkpoint | None:
        """Read the place; one that can't be read closes the database, so that it can be wiped."""
        try:
            stored = self._meta.get(_CHECKPOINT_KEY)
            return None if stored is None else Checkpoint.from_json(stored)
        except Exception:
            self._handles.clear()
            for held in [*self._families.values(), self._meta, self._db]:
                held.close()
            raise

    def _note_failure(self, error: Exception) -> None:
        """Remember damage that RocksDB came across: it opens files without reading them whole.

        A mark in the directory has the store wiped when it is next opened, also after a crash; until then no write
        is taken, which makes the task close it soon.

        Raises:
            LookupFailure: the entries asked for are damaged; another replica can answer.

        """
        if "Corruption" not in str(error):
            return
        if self._damage is None:
            self._damage = str(error)
            with suppress(OSError):  # on a disk that can't be written the next read finds it again
                (self._path / _DAMAGED).write_text(f"{error}\n", encoding="utf-8")
        raise LookupFailure(Reason.TASK_FAILED, f"the store at {self._path} is damaged: {error}") from error

    def families(self) -> frozenset[str]:
        """Return the families there are, the default one always."""
        return frozenset(self._families) | {"default"}

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return an entry's value."""
        held = self._db if family == "default" else self._families.get(family)
        try:
            value: bytes | None = None if held is None else held.get(key)
        except Exception as error:
            self._note_failure(error)
            raise
        return value

    @contextmanager
    def view(self, families: Collection[str]) -> Iterator[View]:
        """Lend iterators made between two batches: one moment for all families. A single one needs no waiting."""
        with self._writing if len(families) > 1 else nullcontext(), self._lock:
            if self._closed:
                raise StoreClosed("the store is closed")
            view = _RocksDBView(
                {
                    name: (self._db if name == "default" else self._families[name]).iter(ReadOptions())
                    for name in families
                    if name == "default" or name in self._families
                },
                self._note_failure,
            )
            self._views += 1
        try:
            yield view
        finally:
            view.release()
            with self._lock:
                self._views -= 1
                self._bury()
                self._lock.notify_all()

    def write(self, writes: Writes, checkpoint: Checkpoint) -> None:
        """Write one batch; the write-ahead log makes it whole or nothing after a crash of the process.

        Raises:
            StoreUnusable: the store is damaged and must be wiped.
            DiskRefused: the disk is full or can't be written.

        """
        if self._damage is not None:
            raise StoreUnusable(f"{self._path}: {self._damage}")
        batch = WriteBatch(raw_mode=True)
        for family, entries in writes.items():
            if family == "default":
                put, delete = batch.put, batch.delete
                for key, value in entries:
                    if value is None:
                        delete(key)
                    else:
                        put(key, value)
                continue
            handle = self._handle(family)
            for key, value in entries:
                if value is None:
                    batch.delete(key, handle)
                else:
                    batch.put(key, value, handle)
        batch.put(_CHECKPOINT_KEY, checkpoint.to_json().encode(), self._handles[_META])
        try:
            with self._writing:
                self._db.write(batch)
        except Exception as error:
            self._note_failure(error)
            raise DiskRefused(self._path, error) from error
        self._checkpoint = checkpoint

    def _handle(self, family: str) -> object:
        """Return a family's handle, creating it. A crash before the batch leaves an empty family, which is harmless."""
        if family not in self._handles:
            with self._lock:
                if family in self._doomed:
                    self._lock.wait_for(lambda: self._views == 0)
                    self._bury()
                while self._spares_due:
                    self._db.create_column_family(self._spares_due.pop(), self._options).close()
                self._families[family] = self._db.create_column_family(family, self._options)
                self._handles[family] = self._db.get_column_family_handle(family)
        return self._handles[family]

    def drop(self, family: str) -> None:
        """Drop the column family, as soon as no view is lent: its iterators would read freed memory."""
        with self._lock:
            held = self._families.pop(family, None)
            self._handles.pop(family, None)
            if held is not None:
                self._doomed[family] = held
                self._bury()

    def _bury(self) -> None:
        """Drop the doomed families if no view is lent; RocksDB deletes their files whole. Needs the lock."""
        if self._views == 0:
            for family, held in self._doomed.items():
                held.close()
                self._db.drop_column_family(family)
            self._doomed.clear()

    def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint written."""
        return self._checkpoint

    def approximate_count(self, family: str) -> int:
        """Return RocksDB's estimate."""
        with self._lock:  # as for `statistics`
            if self._closed:
                raise StoreClosed("the store is closed")
            held = self._db if family == "default" else self._families.get(family)
            return 0 if held is None else int(held.property_int_value("rocksdb.estimate-num-keys") or 0)

    def open_views(self) -> int:
        """Return how many views are lent."""
        return self._views

    def statistics(self) -> Mapping[str, int]:
        """Return the sums over the families of what RocksDB says; nothing once closed."""
        with self._lock:  # rocksdict refuses, with a RuntimeError, what meets a close
            if self._closed:
                return {}
            opened = [self._db, self._meta, *self._families.values()]
            return {
                name: sum(held.property_int_value(rocksdb_property) or 0 for held in opened)
                for name, rocksdb_property in _PROPERTIES.items()
            }

    def close(self) -> None:
        """Close the database once the last view is returned.

        Raises:
            DiskRefused: it is closed, but what was in memory is in the write-ahead log only.

        """
        with self._lock:
            self._closed = True
            self._lock.wait_for(lambda: self._views == 0)
            self._handles.clear()  # a handle keeps the database, and its lock, open
            opened = [*self._families.values(), self._meta, self._db]
            self._families.clear()
        failure: Exception | None = None
        with self._writing:
            for held in opened:  # all of them: one left open would keep the database locked
                try:
                    held.close()
                except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
                    failure = error
        if failure is not None:
            raise DiskRefused(self._path, failure) from failure


class _RocksDBView:
    """Iterators made at one moment."""

    def __init__(self, iterators: dict[str, RdictIter], on_failure: Callable[[Exception], None]) -> None:
        self._iterators, self._on_failure = iterators, on_failure
        self._walks: list[Generator[tuple[bytes, bytes], None, None]] = []

    def release(self) -> None:
        """Let the database go, even if a traceback keeps the walks: an iterator holds it open, and locked."""
        for walk in self._walks:
            walk.close()
        self._iterators.clear()

    def entries(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Walk a range."""
        entries = self._iterators.get(family)
        if entries is None or (stop is not None and start >= stop):
            return iter(())
        walk = (_backward if reverse else _forward)(entries, start, stop, self._on_failure)
        self._walks.append(walk)
        return walk


def _forward(
    entries: RdictIter, start: bytes, stop: bytes | None, on_failure: Callable[[Exception], None]
) -> Generator[tuple[bytes, bytes], None, None]:
    entries.seek(start)
    while entries.valid() and (stop is None or entries.key() < stop):
        yield entries.key(), entries.value()
        entries.next()
    if (failure := _failure_of(entries)) is not None:
        del entries  # see `release`
        on_failure(failure)
        raise failure


def _backward(
    entries: RdictIter, start: bytes, stop: bytes | None, on_failure: Callable[[Exception], None]
) -> Generator[tuple[bytes, bytes], None, None]:
    if stop is None:
        entries.seek_to_last()
    else:
        entries.seek_for_prev(stop)
        if entries.valid() and entries.key() == stop:
            entries.prev()
    while entries.valid() and entries.key() >= start:
        yield entries.key(), entries.value()
        entries.prev()
    if (failure := _failure_of(entries)) is not None:
        del entries  # see `release`
        on_failure(failure)
        raise failure


def _failure_of(entries: RdictIter) -> Exception | None:
    """Return what ended a walk early: by itself damage looks like the end of the data."""
    try:
        entries.status()
    except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
        return error.with_traceback(None)  # it would keep the iterator
    return None


def read_closed_store(path: Path) -> tuple[Checkpoint | None, int]:
    """Return the checkpoint and the estimated number of entries of a store that no process has open.

    Its data stays as it is, and so does the write-ahead log: nothing is recovered by looking.

    Raises:
        StoreUnusable: what is there is no intact database of ours.

    """
    try:
        _refuse_marked(path)
        options = StoreResources().options
        families = Rdict.list_cf(str(path), options)
        database = Rdict(
            str(path), options, column_families=dict.fromkeys(families, options), access_type=AccessType.read_only()
        )
        held = {name: database.get_column_family(name) for name in families if name != "default"}
        try:
            keys = sum(
                int(each.property_int_value("rocksdb.estimate-num-keys") or 0)
                for name, each in [("default", database), *held.items()]
                if name != _META
            )
            stored = held[_META].get(_CHECKPOINT_KEY)
        finally:
            for each in held.values():
                each.close()
            database.close()
        return None if stored is None else Checkpoint.from_json(stored), keys
    except Exception as error:  # rocksdict raises plain Exception for whatever RocksDB reports
        raise StoreUnusable(f"{path}: {error}", _unusable(error)) from error


def _refuse_marked(path: Path) -> None:
    """Raise ValueError if damage was noted here before."""
    mark = path / _DAMAGED
    if mark.exists():
        raise ValueError(mark.read_text(encoding="utf-8", errors="replace").strip())


def _unusable(error: Exception) -> Fault:
    """Return why a database can't be used that could be reached."""
    return Fault.UNKNOWN_FORMAT if isinstance(error, UnknownFormat) else Fault.CORRUPT_STORE
