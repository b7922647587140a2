"""The engine whose entries are in the data plane. Changelogs are read there, too, so nothing is written from here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from query_service.dataplane.orders import DataPlane
from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.engine import EngineView, StoreUnusable, Writes
from query_service.stores.segments import family_of, number_of
from query_service.stores.summed import SummedPart, Summing, WantedSums
from statehouse.contract.moments import NONE
from statehouse.contract.store_sums import StoreSums, SummedEntry
from statehouse.control.v1 import engine_pb2, files_pb2
from statehouse.errors import LookupFailure, Reason

_DEFAULT: Final = "default"
_ENTRIES_A_TURN: Final = 256


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """All records of a changelog from the offset `start` on, before `end`, in offset order."""

    start: int
    end: int
    records: Sequence[ChangelogRecord]


class DataPlaneEngine:
    """An open store of the data plane. All methods that wait for it belong in threads."""

    def __init__(self, plane: DataPlane, opening: engine_pb2.EngineOpen) -> None:
        """Open a store; the order says which.

        Raises:
            StoreUnusable: the directory holds no intact database of ours.
            TaskFault: the disk is full, or can't be read or written.
            DataPlaneFailed: the data plane is gone.

        """
        self._plane, self._store = plane, opening.store
        state = plane.carry(engine_pb2.EngineOrder(open=opening)).state
        self._checkpoint: Checkpoint | None = None
        if state.checkpoint:
            try:
                self._checkpoint = Checkpoint.from_json(state.checkpoint)
            except ValueError as error:
                self.close()
                raise StoreUnusable(f"{opening.path}: {error}") from error
        self._views = 0
        self._shown = threading.local()  # the view that a thread has open, and the moment that it reads
        self._families = _families(state.segments)
        self._oldest: int | None = None
        self.on_stream_time: Callable[[int], None] = lambda _time_ms: None
        """Is called on any thread with the stream time of what is about to be read."""

    @property
    def store(self) -> int:
        """The store's number in the data plane."""
        return self._store

    def families(self) -> frozenset[str]:
        """Return the names of the families: of what this thread is shown, or the newest that are known."""
        shown = self._of_moment() or self._open_view()
        return self._families if shown is None else shown.families

    def see(self, segments: Sequence[int], stream_time_ms: int) -> None:
        """Note what the data plane tells of the store."""
        self._families = _families(segments)
        self.on_stream_time(stream_time_ms)

    def know_oldest(self, told: engine_pb2.EngineReport | engine_pb2.EngineState) -> None:
        """Note the oldest batch that the data plane can show."""
        self._oldest = told.oldest_batch if told.HasField("oldest_batch") else None

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, None if the key or its family does not exist."""
        return self.get_many(family, [key])[0]

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return for each key what `get` would.

        Raises:
            StoreClosed: the engine is closed.
            LookupFailure: TASK_FAILED, the store is damaged.

        """
        if number_of(family) is not None:
            raise NotImplementedError(family)  # nobody reads single entries of segments
        get = engine_pb2.EngineGet(store=self._store, keys=keys)
        if (moment := self._moment()) is not None:
            get.batch_id, get.end = moment.batch_id, moment.end
        values = _read(self._plane, engine_pb2.EngineOrder(get=get)).values.values
        return [each.value if each.HasField("value") else None for each in values]

    @contextmanager
    def pinned(self) -> Iterator[int]:
        """Have all views that this thread opens show the entries as they are now, and yield the position of these.

        Raises:
            StoreClosed: the engine is closed.

        """
        assert self._moment() is None  # noqa: S101 - a defect of the caller's: it would read another state
        with self._viewed() as (_, position):
            yield position

    @contextmanager
    def moment(self, batch_id: int, end: int) -> Iterator[None]:
        """Have this thread read the entries as they were at the end of a batch.

        Nothing is asked for before the first read. If the batch isn't kept, it raises MomentGone.
        """
        assert self._moment() is None  # noqa: S101 - as in `pinned`
        with ExitStack() as views:
            self._shown.moment = _Moment(batch_id, end, views)
            try:
                yield
            finally:
                self._shown.moment = None

    def keep(self, last: int, lo: int, hi: int) -> None:
        """Do nothing: the data plane keeps batches as it reads on."""

    def shown_time_ms(self) -> int | None:
        """Return the stream time of the moment that this thread reads; None if it reads none."""
        shown = self._of_moment()
        return None if shown is None else shown.stream_time_ms

    def oldest_kept(self) -> int | None:
        """Return the oldest batch that the data plane can show, as it said last; None if there is none."""
        return self._oldest

    def _moment(self) -> _Moment | None:
        return getattr(self._shown, "moment", None)

    def _open_view(self) -> _View | None:
        return getattr(self._shown, "view", None)

    def _of_moment(self) -> _View | None:
        """Return the view of the moment that this thread reads; open it if it isn't yet. None if it reads none."""
        moment = self._moment()
        if moment is None:
            return None
        if moment.view is None:
            moment.view, _ = moment.views.enter_context(self._viewed())
        return moment.view

    @contextmanager
    def view(self, families: Collection[str]) -> Iterator[EngineView]:  # noqa: ARG002 - a view has all of them
        """Open a view of the entries as they are now, or as they are pinned.

        Raises:
            StoreClosed: the engine is closed.

        """
        if (pinned := self._of_moment() or self._open_view()) is not None:
            yield pinned
            return
        with self._viewed() as (view, _):
            yield view

    @contextmanager
    def summing(self, wanted: WantedSums, first_ms: int = 0) -> Iterator[Summing]:
        """Begin a sum of the entries that count, as they are now, or as this thread is shown them.

        `first_ms`: the earliest time of windows and sessions that do.

        Raises:
            StoreClosed: the engine is closed.
            MomentGone: the batch that this thread reads isn't kept.

        """
        with ExitStack() as opened:
            shown = self._of_moment() or self._open_view()
            if shown is None:
                shown, _ = opened.enter_context(self._viewed())
            yield _Summing(self._plane, self._store, shown.number, wanted, first_ms)

    @contextmanager
    def _viewed(self) -> Iterator[tuple[_View, int]]:
        """Open the view of this thread, and yield it with the position of its entries."""
        order, moment = engine_pb2.EngineView(store=self._store), self._moment()
        if moment is not None:
            order.batch_id, order.end = moment.batch_id, moment.end
        viewed = self._plane.carry(engine_pb2.EngineOrder(view=order)).viewed
        self._views += 1
        try:
            if moment is None:
                self.see(viewed.segments, viewed.stream_time_ms)
            families = _families(viewed.segments)
            self._shown.view = view = _View(self._plane, viewed.view, families, viewed.stream_time_ms)
            yield view, viewed.position
        finally:
            del self._shown.view
            self._views -= 1
            self._plane.carry(engine_pb2.EngineOrder(unview=engine_pb2.EngineUnview(view=viewed.view)))

    async def latest(self, start: int, limit: int) -> KeptRecords:
        """Return records of the changelog from the offset `start` on, or the first that is kept; at most `limit`.

        Reports have told of all of them before. Call it on the event loop.

        Raises:
            StoreClosed: the engine is closed.
            DataPlaneFailed: the data plane is gone.

        """
        order = engine_pb2.EngineOrder(tail=engine_pb2.EngineTail(store=self._store, start=start, limit=limit))
        found = (await asyncio.wrap_future(self._plane.begin(order))).records
        records = [
            ChangelogRecord(
                each.key,
                each.value if each.HasField("value") else None,
                each.timestamp_ms,
                each.offset,
                each.batch if each.HasField("batch") else NONE,
            )
            for each in found.records
        ]
        return KeptRecords(found.start, found.end, records)

    async def given(self, path: Path) -> files_pb2.EngineManifest:
        """Make what is in files a checkpoint in a directory that doesn't exist yet. Call it on the event loop.

        Raises:
            StoreClosed: the engine is closed.
            TaskFault: the disk is full, or refuses.
            DataPlaneFailed: the data plane is gone.

        """
        order = files_pb2.EngineCheckpoint(store=self._store, path=str(path))
        return (await asyncio.wrap_future(self._plane.begin(engine_pb2.EngineOrder(checkpoint=order)))).manifest

    def write(self, writes: Writes, checkpoint: Checkpoint) -> None:
        """Have what was read of the changelog written into files, with the time of the checkpoint.

        Its position is the data plane's own.

        Raises:
            TaskFault: it can't be written.

        """
        if any(writes.values()):
            raise NotImplementedError("the data plane writes what it reads")
        order = engine_pb2.EngineSave(store=self._store, at_end_ms=checkpoint.at_end_ms)
        state = self._plane.carry(engine_pb2.EngineOrder(save=order)).state
        self._checkpoint = Checkpoint.from_json(state.checkpoint)
        self.know_oldest(state)

    def drop(self, family: str) -> None:
        """Do nothing: the data plane drops what has expired as it reads on."""

    def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint that was saved."""
        return self._checkpoint

    def approximate_count(self, family: str) -> int:
        """Return the number of a family's entries."""
        count = engine_pb2.EngineCount(store=self._store, segment=number_of(family))
        return self._plane.carry(engine_pb2.EngineOrder(count=count)).count

    def open_views(self) -> int:
        """Return how many views are open now."""
        return self._views

    def statistics(self) -> Mapping[str, int]:
        """Return the entries of `STORE_STATISTICS` that the data plane knows."""
        order = engine_pb2.EngineOrder(measure=engine_pb2.EngineMeasure(store=self._store))
        return dict(self._plane.carry(order).measures.measures)

    def close(self) -> None:
        """Wait until the last view is left, then release files and memory."""
        self._plane.carry(engine_pb2.EngineOrder(close=engine_pb2.EngineClose(store=self._store)))


def _read(plane: DataPlane, order: engine_pb2.EngineOrder) -> engine_pb2.EngineAnswer:
    """Have something read for a caller. A task stops by its next write."""
    try:
        return plane.carry(order)
    except StoreUnusable as error:
        raise LookupFailure(Reason.TASK_FAILED, f"the store is damaged: {error}") from error


def _families(segments: Sequence[int]) -> frozenset[str]:
    return frozenset({_DEFAULT, *map(family_of, segments)})


class _Summing:
    """A sum that the data plane makes of one of its views."""

    def __init__(self, plane: DataPlane, store: int, view: int, wanted: WantedSums, first_ms: int) -> None:
        self._plane, self._store, self._view, self._wanted, self._first_ms = plane, store, view, wanted, first_ms

    def go_on(self, most_bytes: int) -> SummedPart:
        """Sum entries that take about so many bytes, as `Summing.go_on` says."""
        order = engine_pb2.EngineSum(
            store=self._store,
            view=self._view,
            most_bytes=most_bytes,
            buckets=self._wanted.buckets,
            listed=self._wanted.listed,
            first_ms=self._first_ms,
            recorded_from_ms=self._wanted.bounds.recorded_from_ms,
        )
        summed = _read(self._plane, engine_pb2.EngineOrder(sum=order)).summed
        listed = [
            (key, SummedEntry(digest, int.from_bytes(time, signed=True)))
            for key, digest, time in zip(summed.listed[::3], summed.listed[1::3], summed.listed[2::3], strict=True)
        ]
        sums = StoreSums.of_wire(summed.counts, summed.sums) if summed.is_all else None
        return SummedPart(summed.entries, summed.bytes, summed.passed_over, listed, sums)


class _View:
    """A view of the data plane's; `number` is what it is called there."""

    def __init__(self, plane: DataPlane, number: int, families: frozenset[str], stream_time_ms: int) -> None:
        self._plane, self.number, self.families, self.stream_time_ms = plane, number, families, stream_time_ms

    def entries(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a range, as `EngineView.entries` says."""
        segment = number_of(family)
        while True:
            walk = engine_pb2.EngineWalk(
                view=self.number, start=start, stop=stop, reverse=reverse, limit=_ENTRIES_A_TURN, segment=segment
            )
            found = _read(self._plane, engine_pb2.EngineOrder(walk=walk)).entries
            keys, values = found.keys_and_values[::2], found.keys_and_values[1::2]
            yield from zip(keys, values, strict=True)
            if found.is_all:
                return
            if reverse:
                stop = keys[-1]
            else:
                start = keys[-1] + b"\0"


@dataclass(slots=True)
class _Moment:
    """The end of a batch that a thread reads: the batch, its end, and the view of it once there is one."""

    batch_id: int
    end: int
    views: ExitStack
    view: _View | None = None
