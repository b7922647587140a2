"""The engine on RocksDB: a database per store partition, a column family per family.

Every write batch contains the checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from rocksdict import AccessType, Rdict, RdictIter, ReadOptions, WriteBatch

from query_service.states.checkpoint import Checkpoint, UnknownFormat
from query_service.states.faults import Fault, TaskFault
from query_service.stores.engine import EngineView, StoreClosed, StoreUnusable, Writes
from query_service.stores.kept_moments import DISK_BYTES, KeptMoments
from query_service.stores.resources import StoreResources
from statehouse.errors import LookupFailure, Reason

_META = "statehouse-meta"
_CHECKPOINT_KEY = b"checkpoint"
# RocksDB writes the options of a new family, 10 kB, into its LOG and again into each later LOG, unless the database has
# ten families. Spare families bring a database whose families come and go up to that number. Without them the LOG of a
# window store grows larger than its data, and past its size limit each line costs as much as the whole LOG.
_SPARES = tuple(f"statehouse-spare-{nth}" for nth in range(8))
_BUILT_IN = frozenset({"default", _META, *_SPARES})
_DAMAGED = "DAMAGED"
# A walk over a moment has its iterator to itself for so many entries at a time.
_ENTRIES_A_TURN: Final = 128
# Messages of RocksDB and the system when they refuse an operation although the content may be intact. RocksDB's binding
# reports errors only as text.
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
    """The disk is full, read-only or not ours. The store may well be intact, so it must not be wiped."""

    def __init__(self, path: Path, error: Exception) -> None:
        is_full = any(words in str(error) for words in _FULL)
        super().__init__(f"{path}: {error}", Fault.DISK_FULL if is_full else Fault.DISK_REFUSED)


class RocksDBEngine:
    """A database in a directory. Only one process at a time can open it."""

    def __init__(self, path: Path, resources: StoreResources | None = None) -> None:
        """Open the database in the directory `path`; create it if it does not exist.

        Without `resources` the database has its own memory.

        Raises:
            StoreUnusable: the directory holds no intact database of ours.
            DiskRefused: the disk is full, or can't be read or written.

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
        self._writing = threading.Lock()  # taken before `_lock`; a write may take long while RocksDB is behind
        self._views = 0  # and other reads that hold the database open
        self._doomed: dict[str, Rdict] = {}
        self._spares_due = set(_SPARES) - known
        self._closed = False
        self._moments: KeptMoments[_RocksDBMoment] = KeptMoments(self._lock, DISK_BYTES)
        self.shown_time_ms = self._moments.shown_time_ms
        self.oldest_kept = self._moments.oldest_kept

    def _stored_checkpoint(self) -> Checkpoint | None:
        """Read the checkpoint. If it can't be read, close the database, so that it can be wiped."""
        try:
            stored = self._meta.get(_CHECKPOINT_KEY)
            return None if stored is None else Checkpoint.from_json(stored)
        except Exception:
            self._handles.clear()
            for handle in [*self._families.values(), self._meta, self._db]:
                handle.close()
            raise

    def _note_failure(self, error: Exception) -> None:
        """Remember damage. RocksDB opens files without reading all of them, so it may find damage only during a read.

        A mark in the directory makes the next opening wipe the store, also after a crash. Until then every write is
        refused, so that the task closes the store soon.

        Raises:
            LookupFailure: the entries of this read are damaged; another replica can answer.

        """
        if "Corruption" not in str(error):
            return
        if self._damage is None:
            self._damage = str(error)
            with suppress(OSError):  # if the disk can't be written, the next read finds the damage again
                (self._path / _DAMAGED).write_text(f"{error}\n", encoding="utf-8")
        raise LookupFailure(Reason.TASK_FAILED, f"the store at {self._path} is damaged: {error}") from error

    def families(self) -> frozenset[str]:
        """Return the names of the families; "default" always exists."""
        shown = self._moments.shown
        return frozenset(self._families) | {"default"} if shown is None else shown.families()

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, None if the key or its family does not exist; LookupFailure if it is damaged."""
        if (shown := self._moments.shown) is not None:
            return shown.get(family, key)
        handle = self._handle_to_read(family)
        try:
            value: bytes | None = None if handle is None else handle.get(key)
        except Exception as error:
            self._note_failure(error)
            raise
        return value

    def _handle_to_read(self, family: str) -> Rdict | None:
        return self._db if family == "default" else self._families.get(family)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys. rocksdict lets the interpreter go only for lists of keys.

        Raises:
            StoreClosed: the engine is closed.
            LookupFailure: one of the entries is damaged.

        """
        if (shown := self._moments.shown) is not None:
            return [shown.get(family, key) for key in keys]
        with self._held_open():
            handle = self._handle_to_read(family)
            try:
                values: list[bytes | None] = [None] * len(keys) if handle is None else handle.get(list(keys))
            except Exception as error:
                self._note_failure(error)
                raise
            return values

    @contextmanager
    def _held_open(self) -> Iterator[None]:
        """Keep the database and its families open: closed under a read they would be freed memory.

        Raises:
            StoreClosed: the engine is closed.

        """
        with self._lock:
            if self._closed:
                raise StoreClosed("the store is closed")
            self._views += 1
        try:
            yield
        finally:
            with self._lock:
                self._views -= 1
                self._bury()
                self._lock.notify_all()

    @contextmanager
    def view(self, families: Collection[str]) -> Iterator[EngineView]:
        """Open a view of the families at one moment: their iterators are made between two batches.

        The view of a single family need not wait for the end of a batch.

        Raises:
            StoreClosed: the engine is closed.

        """
        if (shown := self._moments.shown) is not None:
            yield shown
            return
        with self._held_open():
            with self._writing if len(families) > 1 else nullcontext(), self._lock:
                view = _RocksDBView(self._iterators(families), self._note_failure)
            try:
                yield view
            finally:
                view.release()

    def _iterators(self, families: Collection[str]) -> dict[str, RdictIter]:
        """Return an iterator for each family that there is; each shows it as it is now. The caller holds the lock."""
        return {
            name: (self._db if name == "default" else self._families[name]).iter(ReadOptions())
            for name in families
            if name == "default" or name in self._families
        }

    def keep(self, last: int, lo: int, hi: int) -> None:
        """Keep the entries as they are now, as `KeepsMoments.keep` says."""
        self._moments.keep(last, lo, hi, self._begin_moment)

    def _begin_moment(self) -> _RocksDBMoment:
        stream_time_ms = -1 if self._checkpoint is None else self._checkpoint.stream_time_ms
        iterators = self._iterators({*self._families, "default"})
        return _RocksDBMoment(iterators, stream_time_ms, self._note_failure, self._bury)

    @contextmanager
    def moment(self, batch_id: int, end: int) -> Iterator[None]:
        """Show this thread a moment, as `KeepsMoments.moment` says."""
        with self._held_open(), self._moments.show(batch_id, end):
            yield

    def write(self, writes: Writes, checkpoint: Checkpoint) -> None:
        """Write one batch. After a crash of the process the write-ahead log has all of it, or nothing.

        Raises:
            StoreUnusable: the store is damaged and must be wiped.
            LookupFailure: RocksDB found damage during this write.
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
        # Not after it: until the store knows the new stream time as well, this is not to wait for readers.
        self._moments.note_write(checkpoint.batch, batch.size_in_bytes())
        try:
            with self._writing:
                self._db.write(batch)
        except Exception as error:
            self._note_failure(error)
            raise DiskRefused(self._path, error) from error
        self._checkpoint = checkpoint

    def _handle(self, family: str) -> object:
        """Return the handle of a family; create the family if it does not exist.

        A crash before the batch leaves an empty family, which is harmless.
        """
        if family not in self._handles:
            with self._lock:
                if family in self._doomed:
                    self._moments.clear()
                    self._lock.wait_for(lambda: self._views == 0)
                    self._bury()
                while self._spares_due:
                    self._db.create_column_family(self._spares_due.pop(), self._options).close()
                self._families[family] = self._db.create_column_family(family, self._options)
                self._handles[family] = self._db.get_column_family_handle(family)
        return self._handles[family]

    def drop(self, family: str) -> None:
        """Drop the column family as soon as no view is open and no moment has it: they would read freed memory."""
        with self._lock:
            handle = self._families.pop(family, None)
            self._handles.pop(family, None)
            if handle is not None:
                self._doomed[family] = handle
                self._bury()

    def _bury(self) -> None:
        """Drop the doomed families that nobody can read. RocksDB deletes whole files. The caller holds the lock."""
        if self._views > 0:
            return
        for family in self._doomed.keys() - self._moments.families():
            self._doomed.pop(family).close()
            self._db.drop_column_family(family)

    def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint written, None if nothing was ever written."""
        return self._checkpoint

    def approximate_count(self, family: str) -> int:
        """Return RocksDB's estimate of the number of a family's entries."""
        with self._lock:  # as in `statistics`
            if self._closed:
                raise StoreClosed("the store is closed")
            handle = self._db if family == "default" else self._families.get(family)
            return 0 if handle is None else int(handle.property_int_value("rocksdb.estimate-num-keys") or 0)

    def open_views(self) -> int:
        """Return how many views are open, and other reads that hold the database open."""
        return self._views

    def statistics(self) -> Mapping[str, int]:
        """Return RocksDB's properties, each summed over the families; an empty mapping once closed."""
        with self._lock:  # rocksdict raises RuntimeError if another thread closes the database meanwhile
            if self._closed:
                return {}
            opened = [self._db, self._meta, *self._families.values()]
            properties = {
                name: sum(handle.property_int_value(rocksdb_property) or 0 for handle in opened)
                for name, rocksdb_property in _PROPERTIES.items()
            }
            return {**properties, **self._moments.statistics()}

    def close(self) -> None:
        """Wait until the last view is left, then close the database.

        Raises:
            DiskRefused: the database is closed, but the entries that were in memory are only in the write-ahead log.

        """
        with self._lock:
            self._closed = True
            self._moments.close()
            self._lock.wait_for(lambda: self._views == 0)
            self._handles.clear()  # a handle keeps the database, and its lock, open
            opened = [*self._families.values(), self._meta, self._db]
            self._families.clear()
        failure: Exception | None = None
        with self._writing:
            for handle in opened:  # each of them, as one that stays open would keep the database locked
                try:
                    handle.close()
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
        """Release the iterators even if a traceback keeps the walks: an iterator keeps the database open and locked."""
        for walk in self._walks:
            walk.close()
        self._iterators.clear()

    def entries(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a range, as `EngineView.entries` says."""
        entries = self._iterators.get(family)
        if entries is None or (stop is not None and start >= stop):
            return iter(())
        walk = (_backward if reverse else _forward)(entries, start, stop, self._on_failure)
        self._walks.append(walk)
        return walk


class _RocksDBMoment:
    """Iterators made at one moment, which is kept. One reader at a time uses them."""

    def __init__(
        self,
        iterators: dict[str, RdictIter],
        stream_time_ms: int,
        on_failure: Callable[[Exception], None],
        on_release: Callable[[], None],
    ) -> None:
        self._iterators, self._on_failure, self._on_release = iterators, on_failure, on_release
        self._using = threading.Lock()
        self.stream_time_ms = stream_time_ms

    def families(self) -> frozenset[str]:
        """Return the names of the families that there were."""
        return frozenset(self._iterators)

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value that a key had, None if it had none."""
        taken = self._take(family, key, key + b"\0", reverse=False)
        return taken[0][1] if taken else None

    def entries(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a range, as `EngineView.entries` says."""
        while stop is None or start < stop:
            taken = self._take(family, start, stop, reverse=reverse)
            yield from taken
            if len(taken) < _ENTRIES_A_TURN:
                return
            if reverse:
                stop = taken[-1][0]
            else:
                start = taken[-1][0] + b"\0"

    def _take(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool) -> list[tuple[bytes, bytes]]:
        """Return the first entries of a range."""
        if family not in self._iterators:
            return []
        walk = _backward if reverse else _forward
        with self._using, closing(walk(self._iterators[family], start, stop, self._on_failure)) as entries:
            return list(islice(entries, _ENTRIES_A_TURN))

    def release(self) -> None:
        """Release the iterators, and with them the files that they show."""
        self._iterators.clear()
        self._on_release()


def _forward(
    entries: RdictIter, start: bytes, stop: bytes | None, on_failure: Callable[[Exception], None]
) -> Generator[tuple[bytes, bytes], None, None]:
    entries.seek(start)
    while entries.valid():
        key = entries.key()
        if stop is not None and key >= stop:
            break
        yield key, entries.value()
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
    while entries.valid():
        key = entries.key()
        if key < start:
            break
        yield key, entries.value()
        entries.prev()
    if (failure := _failure_of(entries)) is not None:
        del entries  # see `release`
        on_failure(failure)
        raise failure


def _failure_of(entries: RdictIter) -> Exception | None:
    """Return the error that ended a walk early, None if there was none: damage looks like the end of the data."""
    try:
        entries.status()
    except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
        return error.with_traceback(None)  # the traceback would keep the iterator
    return None


def read_closed_store(path: Path) -> tuple[Checkpoint | None, int]:
    """Return the checkpoint and the estimated number of entries of a store that no process has open.

    The data and the write-ahead log stay as they are: the database is opened read-only, without a recovery.

    Raises:
        StoreUnusable: the directory holds no intact database of ours.

    """
    try:
        _refuse_marked(path)
        options = StoreResources().options
        families = Rdict.list_cf(str(path), options)
        database = Rdict(
            str(path), options, column_families=dict.fromkeys(families, options), access_type=AccessType.read_only()
        )
        handle = {name: database.get_column_family(name) for name in families if name != "default"}
        try:
            keys = sum(
                int(each.property_int_value("rocksdb.estimate-num-keys") or 0)
                for name, each in [("default", database), *handle.items()]
                if name != _META
            )
            stored = handle[_META].get(_CHECKPOINT_KEY)
        finally:
            for each in handle.values():
                each.close()
            database.close()
        return None if stored is None else Checkpoint.from_json(stored), keys
    except Exception as error:  # rocksdict raises plain Exception for whatever RocksDB reports
        raise StoreUnusable(f"{path}: {error}", _unusable(error)) from error


def _refuse_marked(path: Path) -> None:
    """Raise ValueError if the directory is marked as damaged."""
    mark = path / _DAMAGED
    if mark.exists():
        raise ValueError(mark.read_text(encoding="utf-8", errors="replace").strip())


def _unusable(error: Exception) -> Fault:
    """Return why a database can't be used although the disk could be read."""
    return Fault.UNKNOWN_FORMAT if isinstance(error, UnknownFormat) else Fault.CORRUPT_STORE
