"""Watches on this node: sends the current values of a key, a prefix or a partition, then every change in log order.

A watcher is a cursor over the replica's tail (`replicas.tail`), so a slow watcher delays only itself. If the tail no
longer has the cursor's position, the watcher goes on from the changelog, as long as the log provably has every record
since. Otherwise the watcher gets `gap`, and begins again with current values.

Each changelog record of the watched keys is sent once, in the changelog's order, whatever the store did with it.
Records older than the store's retention are sent. Entries that expire cause no event, as nothing is written then.

A watch that marks moments begins with the values of a batch, and goes from one batch's end to another (`batch_steps`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeVar

import structlog

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import ServedStore
from query_service.reads.moments import Admitted
from query_service.reads.open_scans import OpenScans
from query_service.reads.position_waits import ReplicaBehind
from query_service.reads.serde_fetches import SerdeFetches
from query_service.replicas.tail import TailRecords
from query_service.stores.base import RangePage
from query_service.stores.timestamps import NO_TIMESTAMP, shown_timestamp
from query_service.watches.batch_steps import BatchSteps
from query_service.watches.log_reader import LogReader, LogUnreadable
from query_service.watches.watched_keys import KeySelection, PagePositions, WatchedEntry, WatchedKeys, watched_keys
from statehouse.contract import moments, paging
from statehouse.contract.moments import MomentBound, began_anew
from statehouse.contract.partitioning import partition_for
from statehouse.contract.placement import Claim
from statehouse.contract.scan_ranges import serialized_prefix
from statehouse.contract.topology import KEY_VALUE, VERSIONED
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.streams import PROGRESS_INTERVAL_S, OpenStreams
from statehouse.runtime.waiting import is_set_within
from statehouse.serdes import shown_key, shown_value
from statehouse.v1 import query_service_pb2, types_pb2

log = structlog.get_logger(__name__)

T = TypeVar("T")
SendChanges = Callable[[query_service_pb2.WatchResponse], Awaitable[None]]

# To make a response takes the event loop some 10 us a record, and lookups wait meanwhile.
_RESPONSE_RECORDS: Final = 128
_RESPONSE_BYTES: Final = 64 * 1024
_PAGES_AT_ONCE: Final = 4
# How long a replica may take to reach a position that another replica has reached.
_CATCH_UP_S: Final = 1.0
# And how long until the node has read the commits topic to its end: it asks for that twice a second.
_HEARD_WITHIN_S: Final = 2.0
_ANY: Final = types_pb2.Freshness()
_BEGINNINGS_MAX: Final = 3
"""So often a watch begins with the values of a batch that isn't kept until all of them are sent."""


class WatchHandler:
    """Answers watches, at most `max_watches` at the same time. Use it only on the event loop."""

    def __init__(
        self, admission: Admission, scans: OpenScans, log: LogReader, fetches: SerdeFetches, *, max_watches: int
    ) -> None:
        self.admission, self.scans, self.log, self.fetches = admission, scans, log, fetches
        # Many watches may begin at the same time after a move; they take turns, so that scans can still run.
        self.pages = asyncio.Semaphore(_PAGES_AT_ONCE)
        self.streams = OpenStreams(max_watches, "node")

    async def watch(self, request: query_service_pb2.WatchRequest, send: SendChanges) -> None:
        """Send a partition's responses until the caller leaves.

        Raises:
            LookupFailure: this node can't answer, or can't any longer; the reason says why.

        """
        watch = _Watch(self, request, send)
        await self.streams.run(watch.run(), request.ByteSize())

    async def close(self) -> None:
        """End the threads that read for watches. Call `streams.stop()` first."""
        await asyncio.to_thread(self.log.close)


class _Watch:
    """One watch of one partition.

    `_cursor` is the next offset to look at. `_told_from` is the offset from which on responses have a position, None
    while current values are incomplete: their pages have several positions, and a watch resumed before the last one
    would get changes twice. `_steps` and `_ahead`, records that belong to later steps, are those of a watch that marks
    moments.
    """

    def __init__(self, handler: WatchHandler, request: query_service_pb2.WatchRequest, send: SendChanges) -> None:
        self._handler, self._admission = handler, handler.admission
        self._request, self._send = request, send
        self._served = self._admission.store(request.store).asked(exact=request.json_text)
        if request.freshness.HasField("max_value_age_ms"):
            raise LookupFailure(Reason.INVALID_REQUEST, "a watch shows what comes: max_value_age_ms is for reads")
        self._asked = _moment_of(request)
        self._selection = _selection(request, self._served)
        self._partition = self._partition_of(request, self._served)
        if request.HasField("key"):
            self._admission.prove(self._served, Claim.WHOLE, request.forwarding)
        bounds = types_pb2.Freshness()
        bounds.CopyFrom(request.freshness)
        bounds.ClearField("moment")  # it is for the current values
        admitted = self._admission.admit(self._served, self._partition, bounds, request.forwarding)
        self._replica, self._stamp = admitted.replica, admitted.stamp
        self._resume = _resume(request, self._partition)
        self._steps: BatchSteps | None = None
        self._ahead: TailRecords | None = None
        if self._asked is not None:
            after = self._resume.after if self._resume is not None and self._resume.HasField("after") else None
            self._steps = BatchSteps(request.store, self._partition, after)
            self._admission.moments.known(self._replica)  # or the watch fails before it begins
        self._watched: WatchedKeys = watched_keys(self._served.spec, self._replica.store, self._selection)
        # The key must have a single value, and a single partition where it can be.
        self._says_absent = self._served.spec.kind in {KEY_VALUE, VERSIONED} and not self._served.spec.is_global
        self._cursor = 0
        self._told_from: int | None = None
        self._shown: PagePositions | None = None
        self._sent_at = 0.0

    async def run(self) -> None:
        """Send until cancelled.

        Raises:
            LookupFailure: the replica can't serve the watch any more.

        """
        resume = self._resume
        with self._replica.advanced.waiter() as advanced:
            # Shows that the watch has begun, before any slow work.
            await self._respond(moment=None if self._steps is None else self._moment(self._steps))
            async with self._replica.watched():
                is_whole = resume is not None and await self._resume_at(resume, advanced)
                if not is_whole:
                    await self._begin(advanced, gap=resume is not None)
                while True:
                    await self._follow(advanced)
                    await self._begin(advanced, gap=True)

    async def _resume_at(self, resume: query_service_pb2.WatchPosition, advanced: asyncio.Event) -> bool:
        """Go to the position of an earlier watch; False if that watch was on another log.

        Raises:
            LookupFailure: LAG_EXCEEDS_BOUND, this replica has not reached the position yet; MOMENT_GONE, the batches
                began anew.

        """
        self._cursor = resume.position
        if resume.topic_id not in {"", self._replica.topic_id}:
            return False
        if self._steps is not None:
            await self._until_heard(self._steps, advanced)
            if self._steps.is_other_query(self._admission.moments.known(self._replica)):
                return False
        started_at = time.monotonic()
        while self._replica.position < resume.position:
            advanced.clear()
            waited_s = time.monotonic() - started_at
            staleness_ms = self._replica.staleness_ms(time.monotonic())
            if self._replica.position >= resume.position:
                break
            if staleness_ms is not None and staleness_ms + 1 < waited_s * 1000:
                return False  # the log ends before the position: it was truncated, or this is another log
            if waited_s > _CATCH_UP_S:
                raise LookupFailure(
                    Reason.LAG_EXCEEDS_BOUND,
                    f"this replica is at {self._replica.position}, the watch has been at {resume.position}",
                    {"position": str(self._replica.position), "resume": str(resume.position)},
                )
            await is_set_within(advanced, _CATCH_UP_S / 10)
            self._admit()
        self._told_from = resume.position
        return True

    async def _until_heard(self, steps: BatchSteps, advanced: asyncio.Event) -> None:
        """Wait until this node has heard of the batch that the watch goes on after.

        Raises:
            LookupFailure: MOMENT_GONE, there is no such batch any more; LAG_EXCEEDS_BOUND, this node can't tell yet.

        """
        moments, started_at = self._admission.moments, time.monotonic()
        while not steps.has_heard(moments.known(self._replica)):
            advanced.clear()
            if moments.read_at_s is not None and moments.read_at_s > started_at:
                raise began_anew(self._served.spec.name)
            if time.monotonic() - started_at > _HEARD_WITHIN_S:
                raise LookupFailure(
                    Reason.LAG_EXCEEDS_BOUND, "this node has not read yet in the commits topic where the watch has been"
                )
            await is_set_within(advanced, _CATCH_UP_S / 10)
            self._admit()

    async def _begin(self, advanced: asyncio.Event, *, gap: bool) -> None:
        """Send the current values page by page, and set the cursor to the first change that they may lack."""
        if gap:
            log.info(
                "watch begins again with current values: changes may be missing",
                store=self._served.spec.name,
                partition=self._partition,
                position=self._cursor,
                tail_start=self._replica.tail.start,
                tail_end=self._replica.tail.end,
            )
        self._ahead = None
        if self._steps is not None:
            await self._send_values_of_batch(self._steps, advanced, gap=gap)
        else:
            await self._send_current_values(gap=gap)

    async def _send_current_values(self, *, gap: bool) -> None:
        if not self._watched.lists:
            self._cursor = self._told_from = self._replica.tail.end
            await self._respond(gap=gap)
            return
        self._shown, self._told_from = PagePositions(), None
        after: bytes | None = None
        is_first, is_last = True, False
        while not is_last:
            page, position = await self._page(after)
            after = page.entries[-1][0].order if page.more else None
            self._shown.add(after, position)
            if is_last := not page.more:
                self._cursor, self._told_from = self._shown.first_position, self._shown.last_position
            await self._respond(await self._values(page), gap=gap, current=True, begins=is_first)
            is_first = False

    async def _send_values_of_batch(self, steps: BatchSteps, advanced: asyncio.Event, *, gap: bool) -> None:
        """Send the values of one batch, and set the cursor to its end.

        Raises:
            LookupFailure: MOMENT_NOT_REACHED, this replica shows none that they may be of; MOMENT_GONE.

        """
        assert self._asked is not None  # noqa: S101 - as it has steps
        self._shown = self._told_from = None
        for tried in range(1, _BEGINNINGS_MAX + 1):
            admitted = await self._at_batch(steps.bound(self._asked), advanced)
            try:
                await self._send_pages_of(admitted, steps, gap=gap)
            except LookupFailure as failure:
                is_gone = failure.reason in {Reason.MOMENT_GONE, Reason.MOMENT_NOT_REACHED}
                if not is_gone or tried == _BEGINNINGS_MAX:
                    raise _failure_of(failure) from failure
            else:
                return

    async def _send_pages_of(self, admitted: Admitted, steps: BatchSteps, *, gap: bool) -> None:
        chosen = admitted.moment
        assert chosen is not None  # noqa: S101 - it was asked for
        shown = types_pb2.Moment(query_id=chosen.query_id, batch_id=chosen.batch_id)
        after: bytes | None = None
        is_first, is_last = True, False
        while not is_last:
            async with self._handler.pages:
                self._admit()
                page = await self._handler.scans.read(admitted, partial(self._watched.page, after, _RESPONSE_BYTES))
            after = page.entries[-1][0].order if page.more else None
            if is_last := not page.more:
                self._cursor = self._told_from = chosen.end
                steps.begin(chosen.query_id, chosen.batch_id)
            events = await self._values(page)
            await self._respond(events, gap=gap, current=True, begins=is_first, moment=shown, ends=is_last)
            is_first = False

    async def _at_batch(self, asked: MomentBound, advanced: asyncio.Event) -> Admitted:
        """Return this replica and a batch that it shows. If it shows none yet, it may a little later."""
        give_up_at = time.monotonic() + _CATCH_UP_S
        while True:
            advanced.clear()
            self._admit()
            try:
                return self._admission.admit(self._served, self._partition, _ANY, self._request.forwarding, asked)
            except ReplicaBehind as behind:
                if time.monotonic() >= give_up_at:
                    raise _failure_of(behind) from behind
            await is_set_within(advanced, _CATCH_UP_S / 10)

    async def _values(self, page: RangePage[tuple[WatchedEntry, bytes, int]]) -> list[query_service_pb2.WatchEvent]:
        events = await self._decoded(partial(self._current, page))
        if not events and self._says_absent and self._selection.key is not None:
            events = [self._event(WatchedEntry(self._selection.key, b""), None, NO_TIMESTAMP)]
        return events

    async def _page(self, after: bytes | None) -> tuple[RangePage[tuple[WatchedEntry, bytes, int]], int]:
        """Return a page of current values and its position."""
        async with self._handler.pages:
            self._admit()
            return await self._handler.scans.run(
                [self._replica],
                lambda walk: self._replica.at_rest(walk, lambda: self._watched.page(after, _RESPONSE_BYTES, walk)),
            )

    async def _follow(self, advanced: asyncio.Event) -> None:
        """Send the changes from the cursor on. Return when some may be missing."""
        while True:
            advanced.clear()
            self._admit()
            found = await (self._following() if self._steps is None else self._up_to_end(self._steps))
            if found is None:
                return
            has_moved = found.position > self._cursor
            events = await self._decoded(partial(self._changes, found))
            self._cursor = found.position
            if self._told_from is not None and self._cursor >= self._told_from:
                self._shown = None
            shown = None if self._steps is None else self._moment(self._steps)
            ends = self._steps is not None and self._steps.reached(self._cursor)
            if events or ends or time.monotonic() - self._sent_at >= PROGRESS_INTERVAL_S:
                await self._respond(events, moment=shown, ends=ends)
            elif has_moved:
                await asyncio.sleep(0)  # many records of other keys: let the event loop run
            if not (has_moved or ends):
                await is_set_within(advanced, PROGRESS_INTERVAL_S)

    async def _following(self) -> TailRecords | None:
        """Return the records from the cursor on; None if some may be missing."""
        found = self._replica.tail.read(self._cursor, _RESPONSE_RECORDS, _RESPONSE_BYTES)
        return await self._from_log() if found is None else found

    async def _up_to_end(self, steps: BatchSteps) -> TailRecords | None:
        """Return the records up to the end of the next batch that is marked; None if some may be missing."""
        while (step := steps.due(self._admission.moments.known(self._replica), self._cursor)) is not None:
            if step.end == self._cursor:
                break
            found, self._ahead = self._ahead or await self._following(), None
            if found is None:
                return None
            part, self._ahead = found.cut(step.end)
            if not steps.refuse(step, [record.batch for record in part.records]):
                return part
            self._ahead = found
        return TailRecords((), self._cursor)

    def _moment(self, steps: BatchSteps) -> types_pb2.Moment:
        known = self._admission.moments.known(self._replica)
        return types_pb2.Moment(query_id=known.query_id, batch_id=max(0, steps.shows))

    async def _from_log(self) -> TailRecords | None:
        """Return the next records from the changelog, up to the start of the tail; None if some may be missing.

        Raises:
            LookupFailure: STALENESS_EXCEEDS_BOUND, the brokers can't be reached.

        """
        try:
            found = await self._handler.log.read(self._replica, self._cursor, self._replica.tail.start)
        except LogUnreadable as error:
            raise LookupFailure(
                Reason.STALENESS_EXCEEDS_BOUND, f"the changelog can't be read from {self._cursor} on: {error}"
            ) from error
        self._admit()
        return found

    async def _decoded(self, make: Callable[[], T]) -> T:
        """Return the result of `make`, once its serdes know all they need."""

        async def attempt() -> T:
            return make()

        return await self._handler.fetches.until_decoded(self._request, attempt)

    def _current(self, page: RangePage[tuple[WatchedEntry, bytes, int]]) -> list[query_service_pb2.WatchEvent]:
        return [self._event(entry, value, timestamp_ms) for entry, value, timestamp_ms in page.entries]

    def _changes(self, found: TailRecords) -> list[query_service_pb2.WatchEvent]:
        events = []
        for record in found.records:
            entry = self._watched.entry(record.key)
            if entry is None or (self._shown is not None and self._shown.covers(entry.order, record.offset)):
                continue
            event = self._event(entry, record.value, record.timestamp_ms)
            event.offset = record.offset
            events.append(event)
        return events

    def _event(self, entry: WatchedEntry, value: bytes | None, timestamp_ms: int) -> query_service_pb2.WatchEvent:
        raw = self._request.raw
        return query_service_pb2.WatchEvent(
            key=shown_key(self._served.key_serde, entry.key, raw=raw),
            value=None if value is None else shown_value(self._served.value_serde, value, raw=raw),
            timestamp_ms=shown_timestamp(timestamp_ms),
            start_ms=entry.start_ms,
            end_ms=entry.end_ms,
        )

    async def _respond(
        self,
        events: Iterable[query_service_pb2.WatchEvent] = (),
        *,
        gap: bool = False,
        current: bool = False,
        begins: bool = False,
        moment: types_pb2.Moment | None = None,
        ends: bool = False,
    ) -> None:
        """Send a response, with a position if the watch can be resumed there."""
        response = query_service_pb2.WatchResponse(
            events=events,
            replica=self._stamp,
            gap=gap,
            current=current,
            begins=begins,
            moment=moment,
            moment_ends=ends,
        )
        if self._told_from is not None and self._cursor >= self._told_from:
            response.position, response.topic_id = self._cursor, self._replica.topic_id
        await self._send(response)
        self._sent_at = time.monotonic()

    def _admit(self) -> None:
        """Renew the stamp.

        Raises:
            LookupFailure: the replica no longer serves; KEYS_MISPLACED, changes of the key may be elsewhere now.

        """
        if self._selection.key is not None:
            self._admission.prove(self._served, Claim.FOUND, self._request.forwarding)
        admitted = self._admission.admit(self._served, self._partition, _ANY, self._request.forwarding)
        self._stamp = admitted.stamp
        if admitted.replica is not self._replica:
            raise self._ended()

    def _ended(self) -> LookupFailure:
        return LookupFailure(
            Reason.PARTITION_RESTORING,
            f"partition {self._partition} of {self._served.spec.name} was closed here; resume at another replica",
        )

    @staticmethod
    def _partition_of(request: query_service_pb2.WatchRequest, served: ServedStore) -> int:
        # The producers of a global store's topic choose the partition, so a key may be in any.
        if not request.HasField("key") or served.spec.is_global:
            return Admission.partition(served, request)
        partition = partition_for(paging.serialized_key(request.key, served.key_serde), served.spec.partition_count)
        if request.HasField("partition") and request.partition != partition:
            raise LookupFailure(
                Reason.INVALID_REQUEST, f"the key is in partition {partition}, not in {request.partition}: leave it out"
            )
        return partition


def _moment_of(request: query_service_pb2.WatchRequest) -> MomentBound | None:
    """Return which batch the current values are to be of; None if no batches are marked.

    Raises:
        LookupFailure: INVALID_REQUEST.

    """
    if not request.freshness.HasField("moment"):
        return moments.NEWEST if request.mark_moments else None
    if not request.mark_moments:
        raise LookupFailure(Reason.INVALID_REQUEST, "a watch shows what comes: moment is for one that marks moments")
    try:
        return MomentBound.from_proto(request.freshness.moment)
    except ValueError as error:
        raise LookupFailure(Reason.INVALID_REQUEST, str(error)) from error


def _failure_of(failure: LookupFailure) -> LookupFailure:
    """Return a failure that nobody waits for any longer."""
    return LookupFailure(failure.reason, failure.message, failure.metadata)


def _selection(request: query_service_pb2.WatchRequest, served: ServedStore) -> KeySelection:
    """Return the keys that a request watches.

    Raises:
        LookupFailure: INVALID_REQUEST or INVALID_KEY.

    """
    if request.HasField("key") and request.HasField("prefix"):
        raise LookupFailure(Reason.INVALID_REQUEST, "key excludes prefix")
    if request.HasField("key"):
        return KeySelection(key=paging.serialized_key(request.key, served.key_serde))
    if request.HasField("prefix"):
        return KeySelection(prefix=serialized_prefix(request.prefix, served.key_serde))
    return KeySelection()


def _resume(request: query_service_pb2.WatchRequest, partition: int) -> query_service_pb2.WatchPosition | None:
    """Return the position at which to resume the partition, None for a new watch.

    Raises:
        LookupFailure: INVALID_REQUEST.

    """
    found = [each for each in request.resume if each.HasField("partition") and each.partition == partition]
    if not found:
        return None
    if len(found) > 1 or not found[0].HasField("position") or found[0].position < 0:
        raise LookupFailure(
            Reason.INVALID_REQUEST, f"resume must name partition {partition} once, with a position from 0 on"
        )
    return found[0]
