"""Orders to the data plane, and what it answers and reports. Nothing is decided here."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar

from query_service.states.faults import Fault, TaskFault
from query_service.states.heartbeat_repeater import BLOCKED_MAX_S
from query_service.stores.engine import MomentGone, StoreClosed, StoreUnusable
from statehouse.control.v1 import engine_pb2, serving_pb2
from statehouse.errors import StatehouseError

_ANSWERS_WITHIN_S: Final = BLOCKED_MAX_S
"""For so long a node keeps its tasks while its disk stalls. A restart of the program ends every order at once."""
K = TypeVar("K")
V = TypeVar("V")

_GONE: Final = "the data plane is gone"
_FAULTS: Final = {
    engine_pb2.ENGINE_FAULT_KIND_REFUSED: Fault.DISK_REFUSED,
    engine_pb2.ENGINE_FAULT_KIND_FULL: Fault.DISK_FULL,
    engine_pb2.ENGINE_FAULT_KIND_LOST: Fault.LOG_TRUNCATED,
    engine_pb2.ENGINE_FAULT_KIND_MEMORY: Fault.MEMORY_BUDGET,
    engine_pb2.ENGINE_FAULT_KIND_PEER: Fault.PEER_FAILED,
    engine_pb2.ENGINE_FAULT_KIND_CHECKSUM: Fault.FILE_DAMAGED,
}


class DataPlaneFailed(StatehouseError):
    """The data plane is gone, doesn't answer, or met a defect."""


def error_of(fault: engine_pb2.EngineFault) -> Exception:
    """Return the error that a fault is."""
    if fault.kind == engine_pb2.ENGINE_FAULT_KIND_CLOSED:
        return StoreClosed(fault.message)
    if fault.kind == engine_pb2.ENGINE_FAULT_KIND_DAMAGED:
        return StoreUnusable(fault.message)
    if fault.kind == engine_pb2.ENGINE_FAULT_KIND_MOMENT_GONE:
        return MomentGone(fault.message)
    if (known := _FAULTS.get(fault.kind)) is not None:
        return TaskFault(fault.message, known)
    return DataPlaneFailed(fault.message)


class OrderLink(Protocol):
    """Carries orders, and what the data plane may answer. Belongs to the event loop."""

    def send_order(self, number: int, order: bytes) -> None:
        """Send an order; what comes of it is brought to `take_answer`."""

    def send_serving(self, snapshot: bytes) -> None:
        """Send a serialized ServingSnapshot."""

    def send_holds(self, number: int, until_us: int) -> None:
        """Say until when the snapshot of a number holds: monotonic clock, in microseconds."""

    def send_facts(self, facts: bytes) -> None:
        """Send serialized ServingFacts."""

    async def call(self, target: str, path: str, request: bytes, timeout_s: float) -> bytes:
        """Call another server's method, as `Link.call` does."""


class DataPlane:
    """Has orders carried out. Safe to use from any thread, but for what is said to belong to the event loop.

    `on_sums(sums)` is called on the event loop with what was answered from stores, `on_moved(store)` after each report
    of a store.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: the event loop that the link lives on, and this is called on."""
        self._loop, self._loops_thread = loop, threading.get_ident()
        self._link: OrderLink | None = None
        self._is_lost = False
        self._numbers, self._stores = itertools.count(1), itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[engine_pb2.EngineAnswer]] = {}
        self._reported_to: dict[int, Callable[[engine_pb2.EngineReport], None]] = {}
        self._ends: dict[int, serving_pb2.ServingEnd] = {}
        self._reports: dict[str, serving_pb2.ServingReport] = {}
        self._moments: dict[int, serving_pb2.ServingMoments] = {}
        self.on_sums: Callable[[serving_pb2.ServingSums], None] = lambda _sums: None
        self.on_moved: Callable[[int], None] = lambda _store: None
        self.engine = ""
        """What reads and writes the files of stores, and their format; known once it was started."""

    def new_store(self) -> int:
        """Return a number that no store has had."""
        return next(self._stores)

    def report_to(self, store: int, take: Callable[[engine_pb2.EngineReport], None]) -> None:
        """Have a store's reports brought to `take`, on the event loop."""
        self._reported_to[store] = take

    def forget(self, store: int) -> None:
        """Bring no more reports of a store."""
        self._reported_to.pop(store, None)

    def begin(self, order: engine_pb2.EngineOrder) -> Future[engine_pb2.EngineAnswer]:
        """Send an order. The future has the answer, or raises as `carry` does."""
        done: Future[engine_pb2.EngineAnswer] = Future()
        done.set_running_or_notify_cancel()
        number = next(self._numbers)
        with self._lock:
            self._waiting[number] = done
        self._loop.call_soon_threadsafe(self._send, number, order.SerializeToString())
        return done

    def carry(self, order: engine_pb2.EngineOrder) -> engine_pb2.EngineAnswer:
        """Have an order carried out, and return the answer. Not on the event loop: it waits, and would do so for ever.

        Raises:
            StoreClosed, StoreUnusable, TaskFault, MomentGone: what the data plane found.
            DataPlaneFailed: it is gone, doesn't answer, or met a defect.

        """
        assert threading.get_ident() != self._loops_thread  # noqa: S101 - a defect of the caller's
        try:
            return self.begin(order).result(_ANSWERS_WITHIN_S)
        except TimeoutError:
            kind = order.WhichOneof("order")
            raise DataPlaneFailed(f"the data plane has not answered {kind} in {_ANSWERS_WITHIN_S:.0f} s") from None

    def know_end(self, end: serving_pb2.ServingEnd) -> None:
        """Tell the last known end of a store's log."""
        self._know(self._ends, end.store, end)

    def know_report(self, report: serving_pb2.ServingReport) -> None:
        """Tell what a processor has reported."""
        self._know(self._reports, report.store, report)

    def know_moments(self, moments: serving_pb2.ServingMoments) -> None:
        """Tell the batches that a store shows."""
        self._know(self._moments, moments.store, moments)

    def _know(self, facts: dict[K, V], about: K, fact: V) -> None:
        """Tell a fact, together with the others that come before the event loop's next turn."""
        with self._lock:
            is_first = not (self._ends or self._reports or self._moments)
            facts[about] = fact
        if is_first:
            self._loop.call_soon_threadsafe(self._tell_facts)

    def _tell_facts(self) -> None:
        with self._lock:
            facts = serving_pb2.ServingFacts(
                ends=self._ends.values(), reports=self._reports.values(), moments=self._moments.values()
            )
            self._ends.clear()
            self._reports.clear()
            self._moments.clear()
        if self._link is not None:
            self._link.send_facts(facts.SerializeToString())

    async def call(self, target: str, path: str, request: bytes, timeout_s: float) -> bytes:
        """Call another node's method, by its path; return the serialized answer. Belongs to the event loop.

        Raises:
            DataPlaneFailed: it has not been started.
            grpc.RpcError: the call failed.

        """
        if self._link is None:
            raise DataPlaneFailed("the data plane has not been started")
        return await self._link.call(target, path, request, timeout_s)

    def decide(self, snapshot: serving_pb2.ServingSnapshot) -> None:
        """Say what may be answered from stores. Belongs to the event loop."""
        if self._link is not None:
            self._link.send_serving(snapshot.SerializeToString())

    def hold(self, number: int, until_us: int) -> None:
        """Say until when the snapshot of a number holds: monotonic clock, in µs. Belongs to the event loop."""
        if self._link is not None:
            self._link.send_holds(number, until_us)

    def take_sums(self, content: bytes) -> None:
        """Take what was answered from stores."""
        self.on_sums(serving_pb2.ServingSums.FromString(content))

    def connect(self, link: OrderLink) -> None:
        """Send orders over a link."""
        self._link = link

    def _send(self, number: int, order: bytes) -> None:
        if self._is_lost:
            self._end(number, DataPlaneFailed(_GONE))
        elif self._link is None:
            self._end(number, DataPlaneFailed("the data plane has not been started"))
        else:
            self._link.send_order(number, order)

    def take_answer(self, number: int, content: bytes) -> None:
        """Take what came of an order."""
        answer = engine_pb2.EngineAnswer.FromString(content)
        self._end(number, error_of(answer.fault) if answer.HasField("fault") else answer)

    def _end(self, number: int, outcome: engine_pb2.EngineAnswer | Exception) -> None:
        with self._lock:
            done = self._waiting.pop(number, None)
        if done is None:
            return
        if isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    def take_report(self, content: bytes) -> None:
        """Take a report about a store."""
        report = engine_pb2.EngineReport.FromString(content)
        take = self._reported_to.get(report.store)
        if take is not None:
            take(report)
            self.on_moved(report.store)

    def lost(self) -> None:
        """Fail what is under way, and what is ordered from now on: the program is gone."""
        self._is_lost = True
        with self._lock:
            waiting = list(self._waiting)
        for number in waiting:
            self._end(number, DataPlaneFailed(_GONE))
