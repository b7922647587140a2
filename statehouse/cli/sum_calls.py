"""Asks nodes for sums of what they have of a partition, all at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import grpc

from statehouse.client.answers import Host
from statehouse.contract.membership import target
from statehouse.contract.moments import NEWEST, Asked, MomentBound, MomentToken
from statehouse.contract.store_sums import LOG, StoreSums, SumBounds, SummedEntry
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.channels import blocking_channel
from statehouse.rpc.credentials import ClientTls
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import node_service_pb2, node_service_pb2_grpc, verification_pb2

SILENCE_MAX_S: Final = 30.0
"""Nodes say each second how far they are, and wait for a moment for less than this."""
_ANSWERS_WITHIN_S: Final = 5.0
_MOMENT_WAIT_MS: Final = 10_000

OnProgress = Callable[[verification_pb2.SumProgress], None]


@dataclass(frozen=True, slots=True)
class Copy:
    """What is summed at a node: its replica of a partition, or the partition's log, which it reads for that."""

    host: Host
    of_log: bool = False

    @property
    def name(self) -> str:
        """The name of the copy among those of its partition."""
        return LOG if self.of_log else self.host.instance_id


@dataclass(slots=True)
class SummedCopy:
    """What a copy has at a moment.

    `position`: where the moment ends in the changelog. `listed`: entries by key. `bounds`: which ones count; None: all.
    """

    copy: Copy
    moment: MomentToken
    position: int
    sums: StoreSums
    entries: int
    size: int
    listed: dict[bytes, SummedEntry] = field(default_factory=dict)
    bounds: SumBounds | None = None


@dataclass(frozen=True, slots=True)
class SumOrder:
    """What is summed of all copies: a store's partition, how fast, and which buckets have their entries listed.

    `bounds`: which entries count, at most; None: the first copy says it.
    """

    store: str
    partition: int
    buckets: int
    bytes_per_second: int
    listed: tuple[int, ...] = ()
    bounds: SumBounds | None = None


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What the first copy has chosen for all."""

    moment: MomentToken
    bounds: SumBounds | None


class SumCalls:
    """Calls of nodes that make sums, or restore replicas. A context manager: it closes the connections."""

    def __init__(self, tls: ClientTls | None, on_progress: Callable[[SumOrder, Copy, Any], None]) -> None:
        """`on_progress(order, copy, progress)` is called on any thread."""
        self._tls, self._on_progress = tls, on_progress
        self._channels: dict[str, grpc.Channel] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()

    def summed(self, order: SumOrder, copies: Sequence[Copy], moment: MomentToken | None) -> list[SummedCopy]:
        """Have all copies summed at one moment: this one, or the newest of the first.

        Raises:
            LookupFailure: a node can't; the message names it.

        """
        stubs = [self._stub(each.host) for each in copies]
        chosen: Future[_Chosen] = Future()
        under_way = _Calls()

        def one(place: int) -> SummedCopy:
            bound, mine = NEWEST, order
            if moment is not None:
                bound = MomentBound(Asked.EXACTLY, moment, _MOMENT_WAIT_MS)
            elif place > 0:
                first = chosen.result()
                bound = MomentBound(Asked.EXACTLY, first.moment, _MOMENT_WAIT_MS)
                mine = replace(order, bounds=first.bounds)
            with _naming(copies[place]):
                return self._one(stubs[place], mine, copies[place], bound, chosen if place == 0 else None, under_way)

        with ThreadPoolExecutor(len(copies)) as threads:
            results = [threads.submit(one, place) for place in range(len(copies))]
            wait(results, return_when=FIRST_EXCEPTION)
            if any(each.done() and each.exception() is not None for each in results):
                under_way.cancel()
                if not chosen.done():
                    chosen.set_exception(LookupFailure(Reason.UNREACHABLE, "no moment was chosen"))
        failed = next((each for each in results if each.exception() is not None), None)
        causes = [failure for each in results if (failure := each.exception()) is not None]
        if failed is not None:
            raise next((each for each in causes if not _is_consequence(each)), causes[0])
        return [each.result() for each in results]

    def restore(self, host: Host, store: str, partition: int) -> str:
        """Have a node restore its replica; return the task.

        Raises:
            LookupFailure: it refuses, or can't be reached.

        """
        request = verification_pb2.RestoreReplicaRequest(store=store, partition=partition)
        with _naming(Copy(host)):
            return self._stub(host).RestoreReplica(request, timeout=_ANSWERS_WITHIN_S).task

    def state_of(self, host: Host, store: str, partition: int) -> str | None:
        """Return the state of a node's replica; None: it has none.

        Raises:
            LookupFailure: it can't be reached.

        """
        with _naming(Copy(host)):
            answer = self._stub(host).GetNode(node_service_pb2.GetNodeRequest(), timeout=_ANSWERS_WITHIN_S)
        return next(
            (
                task.state
                for task in answer.tasks
                for each in task.stores
                if (each.store, each.partition) == (store, partition)
            ),
            None,
        )

    def _stub(self, host: Host) -> node_service_pb2_grpc.NodeServiceStub:
        address = target(host.host, host.port)
        if address not in self._channels:
            self._channels[address] = blocking_channel(address, self._tls)
        return node_service_pb2_grpc.NodeServiceStub(self._channels[address])

    def _one(
        self,
        stub: node_service_pb2_grpc.NodeServiceStub,
        order: SumOrder,
        copy: Copy,
        bound: MomentBound,
        chosen: Future[_Chosen] | None,
        under_way: _Calls,
    ) -> SummedCopy:
        """Have one copy summed. `chosen`: learns what it has chosen as soon as that is known."""
        request = verification_pb2.SumStoreRequest(
            store=order.store,
            partition=order.partition,
            moment=bound.to_proto(),
            buckets=order.buckets,
            bytes_per_second=order.bytes_per_second,
            of_log=copy.of_log,
            listed=order.listed,
            bounds=None if order.bounds is None else order.bounds.to_proto(),
        )
        found = SummedCopy(copy, MomentToken(), 0, StoreSums([], []), 0, 0)
        for answer in under_way.watched(stub.SumStore(request)):
            match answer.WhichOneof("part"):
                case "progress":
                    self._on_progress(order, copy, answer.progress)
                case "stamp":
                    shown = answer.stamp.moment
                    found.moment, found.position = MomentToken({shown.query_id: shown.batch_id}), answer.stamp.position
                    if answer.HasField("bounds"):
                        found.bounds = SumBounds.from_proto(answer.bounds)
                    if chosen is not None and not chosen.done():
                        chosen.set_result(_Chosen(found.moment, found.bounds))
                case "listed":
                    for each in answer.listed.entries:
                        found.listed[each.key] = SummedEntry(each.digest, each.timestamp_ms)
                case "sums":
                    found.sums = StoreSums.of_wire(answer.sums.counts, answer.sums.sums)
                    found.entries, found.size = answer.sums.entries, answer.sums.bytes
        if not found.sums.counts:
            raise LookupFailure(Reason.INTERNAL, "the sum ended without sums")
        return found


class _Calls:
    """Calls that are under way, which end together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Any] = []
        self._is_cancelled = False

    def watched(self, call: Any) -> Iterator[verification_pb2.SumStoreResponse]:  # noqa: ANN401 - what grpcio's stubs return
        """Yield the answers of a call; cancel it if none comes for long."""
        with self._lock:
            self._all.append(call)
            is_cancelled = self._is_cancelled
        if is_cancelled:
            call.cancel()
        watchdog = _Watchdog(call)
        try:
            for answer in call:
                watchdog.hear()
                yield answer
        finally:
            watchdog.end()
            call.cancel()

    def cancel(self) -> None:
        """Cancel them, and those to come."""
        with self._lock:
            self._is_cancelled = True
            calls = list(self._all)
        for call in calls:
            call.cancel()


class _Watchdog:
    """Cancels a call that is silent for too long: its node may be frozen."""

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - as above
        self._call, self._timer = call, threading.Timer(SILENCE_MAX_S, call.cancel)
        self._start()

    def _start(self) -> None:
        self._timer.daemon = True
        self._timer.start()

    def hear(self) -> None:
        """Wait for as long again."""
        self._timer.cancel()
        self._timer = threading.Timer(SILENCE_MAX_S, self._call.cancel)
        self._start()

    def end(self) -> None:
        """Wait no more."""
        self._timer.cancel()


@contextmanager
def _naming(copy: Copy) -> Iterator[None]:
    """Say in failures which node it was."""
    try:
        yield
    except grpc.RpcError as error:
        failure = from_rpc_error(error)
        raise LookupFailure(
            failure.reason, f"{copy.host}: {failure.message}", {**failure.metadata, _OF: copy.name}
        ) from error


_OF: Final = "copy"


def _is_consequence(failure: BaseException) -> bool:
    """Whether a call failed only because another one had failed: it was cancelled."""
    return (
        isinstance(failure, LookupFailure)
        and failure.reason is Reason.UNREACHABLE
        and (failure.metadata.get("grpc_status") == "CANCELLED" or _OF not in failure.metadata)
    )
