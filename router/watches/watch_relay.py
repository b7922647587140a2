"""Watch: one stream to the caller, one from a node for each partition, moved to another replica when it breaks off.

The caller need not know where a partition is. The router remembers each partition's position. When its stream ends,
with an error or in silence, it goes on at the next candidate from that position. It does so as long as the caller stays
and a replica can answer. A node goes on from any position it can prove to be whole and says so where it can't,
and no change is passed on twice: changes before the position are dropped. A gap is passed on only if no replica can go
on without one: a replica that has followed for longer has more of the changelog in memory.

A watch that marks moments passes on changes of whole batches: a partition that has reached a batch's end waits until
all others have, and the mark is sent (`moment_marks`).

Nothing is queued. Each partition holds one response, waits for its turn to write, and then reads the next one. Turns
are taken in the order of asking, so a busy partition can't keep a quiet one from its turn. A slow caller slows the
reading, and the nodes keep the changes in their logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakValueDictionary

import grpc
import grpc.aio
import structlog

from router.calls.health import NodeHealth
from router.choice.attempt_log import AttemptLog
from router.choice.candidates import Suspicion, ask_order
from router.choice.round_robin import RoundRobin
from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutedNode, RoutedReplica, RoutingTable, StoreRoutes
from router.lookups.dispatch import Call, Dispatcher
from router.lookups.locate import freshness_of, locate, refuse_forwarded
from router.lookups.stamps import too_old
from router.telemetry.metrics import RouterMetrics
from router.watches.moment_marks import MomentMarks
from statehouse.contract.consistency import ANY
from statehouse.contract.epochs import newest
from statehouse.contract.placement import misplaced_failure
from statehouse.contract.watch_marks import position_of
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.streams import FIRST_RESPONSE_S, PROGRESS_INTERVAL_S, SILENCE_S, OpenStreams
from statehouse.runtime.address_limits import AddressLimit
from statehouse.runtime.backoff import Backoff, BackoffPolicy
from statehouse.runtime.waiting import is_set_within, is_told_to_end
from statehouse.v1 import query_service_pb2, types_pb2

log = structlog.get_logger(__name__)

OpenStream = Callable[[RoutedNode, str, bytes], "grpc.aio.UnaryStreamCall[bytes, bytes]"]
SendResponse = Callable[[bytes], Awaitable[None]]

# Watches that a node is asked to begin at the same time. It begins few together and lets the others wait: with more,
# the last ones would take it for silent.
_BEGINNINGS_MAX: Final = 64
_PAUSES: Final = BackoffPolicy("watch", first_s=0.1, longest_s=1.0)


class WatchRelay:
    """Answers Watch. Lives on the event loop. `open_stream(node, method, body)` calls a node.

    `start_s`, `resume_s`: seconds to wait for a partition's first answer, and for a replica that continues a broken
    watch.
    """

    def __init__(
        self,
        tables: CurrentTable,
        health: NodeHealth,
        open_stream: OpenStream,
        dispatcher: Dispatcher,
        metrics: RouterMetrics,
        *,
        start_s: float,
        resume_s: float,
        max_watches: int,
        max_watches_per_address: int | None,
        max_partitions: int,
    ) -> None:
        self.tables, self.health, self.open_stream = tables, health, open_stream
        self.dispatcher, self.metrics, self.start_s, self.resume_s = dispatcher, metrics, start_s, resume_s
        self.streams = OpenStreams(max_watches, "router", AddressLimit(max_watches, max_watches_per_address))
        self._max_partitions, self._partitions = max_partitions, 0
        self._round_robin = RoundRobin()
        self._beginnings: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def place_to_begin(self, node: RoutedNode) -> asyncio.Semaphore:
        """Return what a watch must hold while a node is asked to begin it; it is kept as long as anybody has it."""
        return self._beginnings.setdefault(node.instance_id, asyncio.Semaphore(_BEGINNINGS_MAX))

    async def watch(
        self,
        request: query_service_pb2.WatchRequest,
        send: SendResponse,
        address: str = "",
        reached: dict[int, int] | None = None,
    ) -> None:
        """Pass responses on until the caller, who is at this address, leaves.

        `reached`: told up to which position of each partition changes were passed on.

        Raises:
            LookupFailure: the request is wrong, or nobody can serve a partition any more.

        """
        await self.streams.run(self._watch(request, send, reached), request.ByteSize(), address)

    async def _watch(
        self, request: query_service_pb2.WatchRequest, send: SendResponse, reached: dict[int, int] | None
    ) -> None:
        refuse_forwarded(request.forwarding)
        if request.freshness.HasField("moment") and not request.mark_moments:
            raise LookupFailure(Reason.INVALID_REQUEST, "a watch that marks no moments shows changes as they come")
        table = self.tables.current()
        store = table.store(request.store)
        writing = asyncio.Lock()  # gRPC takes one message at a time; waiters get it in the order of asking

        async def send_in_turn(data: bytes) -> None:
            async with writing:
                await send(data)

        partitions = _partitions(table, store, request)
        resume = _resume(store, request)
        if self._partitions + len(partitions) > self._max_partitions:
            raise LookupFailure(
                Reason.OVERLOADED,
                f"this router watches {self._partitions} partitions: {len(partitions)} more are too many, "
                f"{self._max_partitions} is the most; watch a key, or one partition",
                {"max_watched_partitions": str(self._max_partitions)},
            )
        turn = self._round_robin.take(store.partition(partitions[0]))  # one for all, so that they stay together
        marking = None
        if request.mark_moments:
            marking = _Marking(MomentMarks(request.store, partitions, resume), send_in_turn)
        each = query_service_pb2.WatchRequest()
        each.CopyFrom(request)
        each.ClearField("resume")
        # grpcio keeps what a stream was called with.
        with self.streams.requests.hold(each.ByteSize() * len(partitions)):
            self._partitions += len(partitions)
            try:
                async with asyncio.TaskGroup() as group:
                    for partition in partitions:
                        position = resume.get(partition)
                        watch = _PartitionWatch(self, each, partition, position, turn, send_in_turn, marking)
                        watch.reached = reached
                        group.create_task(watch.run())
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None
            finally:
                self._partitions -= len(partitions)


class _Marking:
    """Has the partitions of a watch that marks moments wait for each other."""

    def __init__(self, marks: MomentMarks, send: SendResponse) -> None:
        self._marks, self._send = marks, send
        self._moved = asyncio.Event()
        self._has_begun = False

    @property
    def bound(self) -> types_pb2.MomentBound | None:
        """The batch that current values must not be before; None if there is none."""
        last = self._marks.last
        return None if last is None else types_pb2.MomentBound(at_least=types_pb2.Moments(moments=[last]))

    async def turn(self, partition: int, response: query_service_pb2.WatchResponse) -> None:
        """Wait until a response may be sent. Meanwhile the caller hears that the watch goes on.

        Raises:
            LookupFailure: MOMENT_GONE.

        """
        if not self._has_begun:
            self._has_begun = True
            await self._say(query_service_pb2.WatchMark())
        if not (response.events or response.current or response.moment_ends):
            return
        goal = self._marks.goal
        while not self._marks.may_pass(partition, response.moment, begins=response.begins):
            if not await is_set_within(self._moved, PROGRESS_INTERVAL_S):
                await self._say(query_service_pb2.WatchMark())
            goal = self._marks.goal
        if self._marks.goal != goal:
            self._wake()

    async def sent(
        self,
        partition: int,
        response: query_service_pb2.WatchResponse,
        position: query_service_pb2.WatchPosition | None,
    ) -> None:
        """Note what was sent, and send the mark that is due then."""
        if not response.moment_ends or position is None:
            return
        mark = self._marks.ended(partition, response.moment, position)
        if mark is not None:
            await self._say(mark)
            self._wake()

    async def _say(self, mark: query_service_pb2.WatchMark) -> None:
        await self._send(query_service_pb2.WatchResponse(mark=mark).SerializeToString())

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


class _PartitionWatch:
    """One partition's part of a watch. `request` is without positions to resume at.

    `_position`: where to go on; None while the caller lacks some current values: then the next replica begins with all
    of them. `_next_offset`: the first change that has not been passed on. `_has_begun`: the caller was given something,
    maybe in an earlier watch. `_passed_on`, `_answered`: the replica asked last has sent something, and a position.
    """

    def __init__(
        self,
        relay: WatchRelay,
        request: query_service_pb2.WatchRequest,
        partition: int,
        position: query_service_pb2.WatchPosition | None,
        turn: int,
        send: SendResponse,
        marking: _Marking | None,
    ) -> None:
        self._marking = marking
        self.reached: dict[int, int] | None = None
        self._relay, self._request, self._partition = relay, request, partition
        self._turn, self._send = turn, send
        version = relay.tables.current().store(request.store).version
        self._bound = freshness_of(request.freshness).in_version(request.store, version)
        self._position = position
        self._next_offset = 0
        self._has_begun = position is not None
        self._passed_on = self._answered = False
        self._gap_offered = self._gap_accepted = False

    async def run(self) -> None:
        """Pass responses on until cancelled.

        Raises:
            LookupFailure: a node's failure is final, or no replica could answer in time.

        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._relay.start_s
        attempt_log, asked, backoff = AttemptLog(), set[str](), Backoff(_PAUSES, self._relay.metrics.paused)
        while True:
            table = self._relay.tables.current()
            replica = self._candidate(table, asked)
            if replica is None and self._gap_offered and not self._gap_accepted:
                asked, self._gap_accepted = set(), True
                continue
            if replica is None:
                # Once a watch has begun, asking again may help, unless its batches are gone; before that, as for a
                # lookup.
                may_pass = attempt_log.passes or (self._has_begun and not attempt_log.is_gone)
                if loop.time() >= give_up_at or not may_pass:
                    raise self._failure(table, attempt_log)
                pause_s = min(backoff.failed(), max(0.0, give_up_at - loop.time()))
                newer = newest(table.epoch + 1, attempt_log.newest_epoch)  # a node may have named one
                await self._relay.tables.wait_for_epoch(newer, pause_s)
                asked = set()
                continue
            asked.add(replica.instance_id)
            self._passed_on = self._answered = False
            failure = await self._follow(replica, table, give_up_at)
            self._relay.metrics.attempt(failure.reason.name)
            if not failure.elsewhere and failure.reason is not Reason.UNKNOWN_STORE:
                raise failure
            if self._passed_on:
                give_up_at = loop.time() + self._relay.resume_s
            if self._answered:
                self._bound = ANY  # the bound applies to the first answer only; after it, the position does
                attempt_log, asked = AttemptLog(), {replica.instance_id}
                backoff.succeeded()
                log.info(
                    "watch goes on at another replica",
                    store=self._request.store,
                    partition=self._partition,
                    left=replica.instance_id,
                    reason=failure.reason.name,
                )
            attempt_log.note(replica, failure)

    def _candidate(self, table: RoutingTable, asked: set[str]) -> RoutedReplica | None:
        routes = table.store(self._request.store).partition(self._partition)
        order = ask_order(routes, self._bound, self._relay.health.suspects, self._turn)
        return next((replica for replica in order if replica.instance_id not in asked), None)

    def _failure(self, table: RoutingTable, attempt_log: AttemptLog) -> LookupFailure:
        routes = table.store(self._request.store).partition(self._partition)
        call = Call("Watch", self._request.store, self._partition, b"", self._bound)
        return self._relay.dispatcher.failure(call, routes, attempt_log, is_late=False)

    async def _follow(self, replica: RoutedReplica, table: RoutingTable, give_up_at: float) -> LookupFailure:
        """Pass a node's responses on; return why it no longer sends any. `give_up_at` bounds the wait for a place."""
        node = replica.node
        if node is None:
            return LookupFailure(Reason.UNKNOWN_ADDRESS, "no address")
        place, suspicion = self._relay.place_to_begin(node), self._suspicion(node)
        try:
            async with asyncio.timeout_at(give_up_at):
                await place.acquire()
        except TimeoutError:
            return LookupFailure(Reason.OVERLOADED, "other watches were still to begin at it")
        call: grpc.aio.UnaryStreamCall[bytes, bytes] | None = None
        try:
            try:
                if (newer := self._suspicion(node)) is not None and suspicion is None:
                    return LookupFailure(newer.reason, newer.detail)  # those before it have found out
                call = self._relay.open_stream(node, "Watch", self._body() + table.forwarding)
                heard = await self._hear(node, call, FIRST_RESPONSE_S)
            finally:
                place.release()
            while isinstance(heard, bytes):
                response = query_service_pb2.WatchResponse.FromString(heard)
                if self._marking is not None and not response.HasField("moment"):
                    return too_old(self._request.store, node.instance_id)
                if not await self._pass_on(response, heard):
                    return LookupFailure(Reason.PARTITION_RESTORING, "it lacks changes that another may have")
                heard = await self._hear(node, call, SILENCE_S)
            return heard
        finally:
            if call is not None:
                call.cancel()

    def _suspicion(self, node: RoutedNode) -> Suspicion | None:
        return self._relay.health.suspects.get(node.instance_id)

    async def _hear(
        self, node: RoutedNode, call: grpc.aio.UnaryStreamCall[bytes, bytes], silence_s: float
    ) -> bytes | LookupFailure:
        """Return the next response, or why there is none; tell `health` what this says about the node."""
        health, since = self._relay.health, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(silence_s):
                data = await call.read()
        except TimeoutError:
            failure = LookupFailure(Reason.ATTEMPT_TIMED_OUT, f"nothing came from it for {silence_s:g} s")
            health.failed(node, failure.reason, failure.message, since)
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            if "grpc_status" in failure.metadata:
                health.failed(node, failure.reason, failure.message, since)
        except grpc.aio.UsageError as error:
            failure = LookupFailure(Reason.UNREACHABLE, f"the connection was closed: {error}")
        except asyncio.CancelledError:
            if is_told_to_end():
                raise
            # Our task was not cancelled, the call was: its channel was closed.
            failure = LookupFailure(Reason.UNREACHABLE, "the connection was closed")
        else:
            health.answered(node)
            return data if isinstance(data, bytes) else LookupFailure(Reason.UNREACHABLE, "it ended the watch")
        return failure

    def _body(self) -> bytes:
        """Return the request for this partition, from the position on; without forwarding."""
        body = query_service_pb2.WatchRequest()
        body.CopyFrom(self._request)
        if self._bound is ANY:
            body.ClearField("freshness")
        body.partition = self._partition
        if self._position is not None:
            body.resume.append(self._position)
        elif self._marking is not None and (bound := self._marking.bound) is not None:
            body.freshness.moment.CopyFrom(bound)
        return body.SerializeToString()

    async def _pass_on(self, response: query_service_pb2.WatchResponse, data: bytes) -> bool:
        """Send a response to the caller and note the position; False if another replica should be tried first."""
        if response.gap and not self._gap_accepted:
            self._gap_offered = True
            return False
        if response.current or response.gap:
            self._position, self._next_offset = None, 0  # the node begins anew, maybe in another log
        elif any(event.offset < self._next_offset for event in response.events):
            fresh = [event for event in response.events if event.offset >= self._next_offset]
            del response.events[:]
            response.events.extend(fresh)
            data = response.SerializeToString()
        if self._marking is not None:
            await self._marking.turn(self._partition, response)
        if self.reached is not None and response.HasField("position"):
            self.reached[self._partition] = response.position  # first: it may be cut off while it sends
        await self._send(data)
        if response.events or response.current or response.gap or response.HasField("position"):
            self._has_begun = self._passed_on = True  # more than the notice that the watch is open
        if response.events and not response.current:
            self._next_offset = response.events[-1].offset + 1
        if response.HasField("position"):
            self._answered = True
            self._gap_offered = self._gap_accepted = False
            self._next_offset = max(self._next_offset, response.position)
            self._position = position_of(self._partition, response)
        if self._marking is not None:
            await self._marking.sent(self._partition, response, self._position)
        return True


def _partitions(table: RoutingTable, store: StoreRoutes, request: query_service_pb2.WatchRequest) -> list[int]:
    """Return the partitions to watch.

    Raises:
        LookupFailure: INVALID_KEY, INVALID_REQUEST or KEYS_MISPLACED.

    """
    if request.HasField("key") and (placement := table.scattered(store.spec.name)) is not None:
        raise misplaced_failure(store.spec.name, placement)
    if request.HasField("key") and not store.spec.is_global:  # a global store's keys may be in any partition
        return [locate(table, request).partition]
    if request.HasField("partition"):
        return [store.partition(request.partition).partition]
    return list(range(len(store.partitions)))


def _resume(store: StoreRoutes, request: query_service_pb2.WatchRequest) -> dict[int, query_service_pb2.WatchPosition]:
    """Return the positions to resume at, by partition.

    Raises:
        LookupFailure: INVALID_REQUEST, a partition is named twice or without a position, or the store has none such.

    """
    found: dict[int, query_service_pb2.WatchPosition] = {}
    for position in request.resume:
        if position.version != store.version:
            continue  # it begins with current values: its position is in another changelog
        if store.partition(position.partition).partition in found or not position.HasField("position"):
            raise LookupFailure(
                Reason.INVALID_REQUEST, f"resume must name partition {position.partition} once, with a position"
            )
        found[position.partition] = position
    return found
