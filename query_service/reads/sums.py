"""Sums: what a replica has, or what its changelog says, at one moment, so that copies can be compared.

A sum reads all of a partition. So there is one at a time of replicas, and one of logs. Each is made in small parts,
with pauses as the caller's bound demands them, and lets go of its moment once the caller has left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import ServedStore
from query_service.reads.moments import Admitted
from query_service.reads.open_scans import gave_up
from query_service.reads.position_waits import PositionWaits, ReplicaBehind
from query_service.replicas.log_reach import LogReach
from query_service.replicas.replays import Replay, Replays
from query_service.replicas.replica import StoreReplica
from query_service.states.faults import TaskFault
from query_service.states.lifecycle import StoreState
from query_service.stores.engine import MomentGone, StoreClosed
from query_service.stores.key_value import KeyValueStore
from query_service.stores.summed import SummedPart, Summing, WantedSums
from query_service.stores.windows import TimedStore
from statehouse.contract.consistency import ANY
from statehouse.contract.moments import NEWEST, Asked, MomentBound, unavailable, why_none
from statehouse.contract.store_sums import (
    BUCKETS,
    BUCKETS_MAX,
    EVERY_ENTRY,
    LISTED_MAX,
    Pace,
    SumBounds,
    SummedEntry,
    why_not_summed,
)
from statehouse.contract.topology import KEY_VALUE, StoreSpec
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.deadline import Deadline
from statehouse.v1 import types_pb2, verification_pb2

T = TypeVar("T")
Send = Callable[[verification_pb2.SumStoreResponse], Awaitable[None]]

_PART_BYTES: Final = 256 * 1024
"""Some milliseconds of work: lookups that come meanwhile hardly notice."""
_PROGRESS_EVERY_S: Final = 0.5
_MOMENT_WAIT_S: Final = 10.0
_LOOKS_EVERY_S: Final = 0.02
_LISTED_A_MESSAGE: Final = 1_000
_MESSAGE_BYTES: Final = 512 * 1024


class SumHandler:
    """Makes sums."""

    def __init__(self, admission: Admission, waits: PositionWaits, replays: Replays, reach: LogReach) -> None:
        self._admission, self._waits, self._replays, self._reach = admission, waits, replays, reach
        # Whether logs are summed -> the thread that sums. Engines show a moment to a thread.
        self._threads = {of_log: ThreadPoolExecutor(1, "sum-log" if of_log else "sum") for of_log in (False, True)}
        self._under_way: dict[bool, asyncio.Task[None] | None] = {}

    async def sum_store(self, request: verification_pb2.SumStoreRequest, send: Send) -> None:
        """Sum a replica or a log, and send what comes of it.

        Raises:
            LookupFailure: this node can't; the reason says why.

        """
        wanted, moment = _wanted(request), _moment(request)
        async with self._alone(of_log=request.of_log):
            if request.of_log:
                await self._sum_log(request, wanted, moment, send)
            else:
                admitted = await self._admitted(request, moment)
                await self._sum(admitted, request, wanted, send)

    async def close(self) -> None:
        """End what is under way, so that stores can be closed, and the threads."""
        ending = [each for each in self._under_way.values() if each is not None]
        for each in ending:
            each.cancel()
        if ending:
            await asyncio.wait(ending)
        for thread in self._threads.values():
            thread.shutdown(wait=False)

    @asynccontextmanager
    async def _alone(self, *, of_log: bool) -> AsyncIterator[None]:
        if of_log in self._under_way:
            what = "a log" if of_log else "a replica"
            raise LookupFailure(Reason.OVERLOADED, f"{what} is being summed on this node, one at a time; ask later")
        self._under_way[of_log] = asyncio.current_task()
        try:
            yield
        finally:
            del self._under_way[of_log]

    async def _admitted(self, request: verification_pb2.SumStoreRequest, moment: MomentBound) -> Admitted:
        """Return the replica, once it shows the moment."""
        freshness, forwarding = types_pb2.Freshness(), types_pb2.Forwarding()

        async def admit() -> Admitted:
            served = self._served(request)
            return self._admission.admit(served, request.partition, freshness, forwarding, moment)

        try:
            return await admit()
        except ReplicaBehind as behind:
            return await self._waits.patiently(request, admit, behind, Deadline.after(_MOMENT_WAIT_S))

    async def _sum_log(
        self, request: verification_pb2.SumStoreRequest, wanted: WantedSums, moment: MomentBound, send: Send
    ) -> None:
        spec = self._served(request).spec

        async def tell(replica: StoreReplica) -> None:
            progress = verification_pb2.SumProgress(position=replica.position, end_offset=replica.restored_to)
            await send(verification_pb2.SumStoreResponse(progress=progress))

        try:
            async with self._replays.of(spec, request.partition, request.bytes_per_second, tell) as replay:
                await self._sum(await self._showing(replay, moment), request, wanted, send)
        except (TaskFault, KafkaException) as error:
            raise _unreadable(spec, request.partition, error) from error

    async def _showing(self, replay: Replay, moment: MomentBound) -> Admitted:
        """Return a replay, once it shows the moment: its log goes on, and batches are named a little later."""
        deadline = Deadline.after(_MOMENT_WAIT_S)
        while True:
            stamp = types_pb2.ReplicaStamp(partition=replay.replica.partition, position=replay.replica.position)
            try:
                return self._admission.moments.admitted(ANY, moment, replay.task, replay.replica, stamp)
            except ReplicaBehind:
                if time.monotonic() >= deadline.at:
                    raise
            await asyncio.sleep(_LOOKS_EVERY_S)

    async def _sum(
        self, admitted: Admitted, request: verification_pb2.SumStoreRequest, wanted: WantedSums, send: Send
    ) -> None:
        """Sum a moment, and send what comes of it."""
        wanted = replace(wanted, bounds=await self._asked_bounds(admitted.replica, request))
        pace = Pace(request.bytes_per_second, time.monotonic())
        sent_at = pace.began
        entries = size = 0
        async with self._opened(admitted, wanted, of_log=request.of_log) as (bounds, go_on):
            await send(verification_pb2.SumStoreResponse(stamp=admitted.stamp, bounds=bounds))
            while True:
                part_began = time.monotonic()
                part = await go_on()
                entries, size = entries + part.entries, size + part.size
                for message in _listed(part.listed):
                    await send(message)
                if part.sums is not None:
                    break
                now = time.monotonic()
                until = now + pace.pause_s(part.size + part.passed_over, now - part_began, now)
                while True:
                    if now - sent_at > _PROGRESS_EVERY_S:
                        sent_at = now
                        progress = verification_pb2.SumProgress(entries=entries, bytes=size)
                        await send(verification_pb2.SumStoreResponse(progress=progress))
                    if now >= until:
                        break
                    await asyncio.sleep(min(until - now, _PROGRESS_EVERY_S))
                    now = time.monotonic()
        sums = verification_pb2.StoreSums(counts=part.sums.counts, sums=part.sums.packed(), entries=entries, bytes=size)
        await send(verification_pb2.SumStoreResponse(sums=sums))

    @asynccontextmanager
    async def _opened(
        self, admitted: Admitted, wanted: WantedSums, *, of_log: bool
    ) -> AsyncIterator[tuple[verification_pb2.SumBounds | None, Callable[[], Awaitable[SummedPart]]]]:
        """Open a moment on the thread that sums, and yield which entries count and what sums its next part."""
        replica, store = admitted.replica, admitted.replica.store
        assert isinstance(store, KeyValueStore | TimedStore)  # noqa: S101 - by its kind
        thread, opened = self._threads[of_log], ExitStack()

        def open_sum() -> tuple[verification_pb2.SumBounds | None, Summing]:
            counted, bounds = wanted, None
            with ExitStack() as opening:
                opening.enter_context(admitted.reading())
                if isinstance(store, TimedStore):
                    counted = replace(wanted, bounds=store.bounded(wanted.bounds))
                    bounds = counted.bounds.to_proto()
                summing = opening.enter_context(store.summing(counted))
                opened.enter_context(opening.pop_all())
            return bounds, summing

        def next_part(summing: Summing) -> SummedPart:
            if replica.state is StoreState.CLOSING:
                raise StoreClosed("the store is to be closed")
            return summing.go_on(_PART_BYTES)

        async def on_thread(work: Callable[[], T]) -> T:
            try:
                return await asyncio.get_running_loop().run_in_executor(thread, work)
            except StoreClosed as error:
                raise gave_up(replica) from error
            except MomentGone as error:
                assert admitted.failed is not None  # noqa: S101 - it comes with the moment
                raise admitted.failed() from error

        try:
            bounds, summing = await on_thread(open_sum)
            yield bounds, lambda: on_thread(partial(next_part, summing))
        finally:
            # After what the thread does now, even if nobody waits for that any more.
            await asyncio.shield(on_thread(opened.close))

    async def _asked_bounds(self, replica: StoreReplica, request: verification_pb2.SumStoreRequest) -> SumBounds:
        """Return which entries the caller wants to count; without a wish those of records that the log has for sure.

        Ask it after the moment was chosen: a copy that begins later, when the log has lost more, doesn't show that.
        """
        if request.HasField("bounds"):
            return SumBounds.from_proto(request.bounds)
        if replica.spec.kind == KEY_VALUE:
            return EVERY_ENTRY
        try:
            found = await asyncio.to_thread(self._reach.recorded_from_ms, replica.spec, replica.partition)
        except KafkaException as error:
            raise _unreadable(replica.spec, replica.partition, error) from error
        return SumBounds(recorded_from_ms=found)

    def _served(self, request: verification_pb2.SumStoreRequest) -> ServedStore:
        """Return the store.

        Raises:
            LookupFailure: as `Admission.store`; WRONG_STORE_KIND; INVALID_REQUEST, it has no such partition.

        """
        served = self._admission.store(request.store)
        if why := why_not_summed(served.spec):
            raise LookupFailure(
                Reason.WRONG_STORE_KIND,
                f"copies of store {request.store} can't be compared: {why}",
                {"store": request.store},
            )
        if why := why_none(served.spec):
            raise unavailable(request.store, why)
        self._admission.existing(served, request.partition)
        return served


def _unreadable(spec: StoreSpec, partition: int, error: Exception) -> LookupFailure:
    return LookupFailure(Reason.TASK_FAILED, f"the log of partition {partition} of {spec.name} can't be read: {error}")


def _wanted(request: verification_pb2.SumStoreRequest) -> WantedSums:
    buckets = request.buckets or BUCKETS
    if buckets > BUCKETS_MAX:
        raise LookupFailure(Reason.INVALID_REQUEST, f"{buckets} buckets, where {BUCKETS_MAX} are the most")
    if len(request.listed) > LISTED_MAX or any(each >= buckets for each in request.listed):
        raise LookupFailure(Reason.INVALID_REQUEST, f"listed: {LISTED_MAX} buckets at most, from 0 to {buckets - 1}")
    return WantedSums(buckets, tuple(request.listed))


def _moment(request: verification_pb2.SumStoreRequest) -> MomentBound:
    if not request.HasField("moment"):
        return NEWEST
    try:
        moment = MomentBound.from_proto(request.moment)
    except ValueError as error:
        raise LookupFailure(Reason.INVALID_REQUEST, str(error)) from error
    if moment.asked is Asked.AT_LEAST:
        raise LookupFailure(Reason.INVALID_REQUEST, "copies are compared at one moment: name it, or take the newest")
    return moment


def _listed(entries: Sequence[tuple[bytes, SummedEntry]]) -> list[verification_pb2.SumStoreResponse]:
    """Return messages with the entries, none of which is too large."""
    messages: list[Any] = []
    size = _MESSAGE_BYTES
    for key, entry in entries:
        if size >= _MESSAGE_BYTES:
            messages.append(verification_pb2.SumStoreResponse(listed=verification_pb2.SummedEntries()))
            size = 0
        messages[-1].listed.entries.add(key=key, digest=entry.digest, timestamp_ms=entry.timestamp_ms)
        size += len(key) + _MESSAGE_BYTES // _LISTED_A_MESSAGE
    return messages
