"""Keeps the data plane told of what it may answer, and counts what it has answered. Lives on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from query_service.dataplane.orders import DataPlane
from query_service.replicas.replica import StoreReplica
from query_service.serving.moments import ShownMoments
from query_service.serving.snapshots import SnapshotCompiler
from query_service.telemetry.metrics import NodeMetrics, ReadKind
from statehouse.contract.committed_moments import CommittedMoments
from statehouse.contract.processor_reports import ProcessorReport
from statehouse.control.v1 import serving_pb2
from statehouse.link.link import CALLS, FromProxy

HOLDS_S: Final = 3.0
"""A node whose Python is frozen ends its answers after this time."""
_SAID_EVERY_S: Final = 1.0
_KINDS: Final = {
    serving_pb2.SERVING_READ_GET: ReadKind.GET,
    serving_pb2.SERVING_READ_ALL: ReadKind.ALL,
    serving_pb2.SERVING_READ_RANGE: ReadKind.RANGE,
    serving_pb2.SERVING_READ_PREFIX: ReadKind.PREFIX,
    serving_pb2.SERVING_READ_COUNT: ReadKind.COUNT,
    serving_pb2.SERVING_READ_FETCH_WINDOWS: ReadKind.FETCH_WINDOWS,
    serving_pb2.SERVING_READ_FETCH_SESSIONS: ReadKind.FETCH_SESSIONS,
    serving_pb2.SERVING_READ_GET_AS_OF: ReadKind.GET_AS_OF,
    serving_pb2.SERVING_READ_GET_HISTORY: ReadKind.GET_HISTORY,
}
_OF_A_KEY: Final = frozenset(
    {ReadKind.GET, ReadKind.FETCH_WINDOWS, ReadKind.FETCH_SESSIONS, ReadKind.GET_AS_OF, ReadKind.GET_HISTORY}
)
_US: Final = 1e6
_NS: Final = 1e-9


class Serving:
    """Tells the data plane what it may answer.

    `confirmed_for_s()` returns for how long the node may claim its roles without news. `reports` has what the processor
    last reported, by store, and `moments` is what it has committed.
    """

    def __init__(
        self,
        plane: DataPlane,
        compiler: SnapshotCompiler,
        confirmed_for_s: Callable[[], float],
        reports: Mapping[str, ProcessorReport],
        metrics: NodeMetrics,
        moments: CommittedMoments,
    ) -> None:
        self._plane, self._compiler, self._confirmed_for_s = plane, compiler, confirmed_for_s
        self._reports, self._metrics = reports, metrics
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._former = compiler.replicas
        self._moments = ShownMoments(moments)
        plane.on_sums, plane.on_moved = self._count, self._moved

    def due(self) -> None:
        """Something may have been decided: compile what there is, once in this turn of the loop."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._decide)

    def reported(self, store: str) -> None:
        """Tell what the processor has reported for a store. It may have been the store's first batch."""
        report = self._reports.get(store)
        told = serving_pb2.ServingReport(store=store)
        if report is not None:
            told.at_us = int(report.at_s * _US)
            if report.input_backlog is not None:
                told.input_backlog = report.input_backlog
        self._plane.know_report(told)
        for number, replica in self._compiler.replicas.items():
            if replica.spec.name == store:
                self._show(number, replica)

    def _moved(self, number: int) -> None:
        """A replica has read on: it may have reached a batch that was named before."""
        if (replica := self._compiler.replicas.get(number)) is not None:
            self._show(number, replica)

    def _show(self, number: int, replica: StoreReplica) -> None:
        if (moments := self._moments.changed(number, replica)) is not None:
            self._plane.know_moments(moments)

    async def hold_forever(self) -> None:
        """Say again and again that what was decided holds; that also notices what nobody has told of."""
        while True:
            self.due()
            await asyncio.sleep(_SAID_EVERY_S)

    def _decide(self) -> None:
        self._is_due = False
        before = self._compiler.replicas
        if (snapshot := self._compiler.changed()) is not None:
            self._former = before
            self._plane.decide(snapshot)
            self._moments.keep(self._compiler.replicas.keys())
        for number, replica in self._compiler.replicas.items():
            self._show(number, replica)
        holds_s = min(HOLDS_S, self._confirmed_for_s())
        self._plane.hold(self._compiler.latest.number, int((time.monotonic() + holds_s) * _US))

    def _count(self, sums: serving_pb2.ServingSums) -> None:
        for method, calls in sums.calls.items():
            self._metrics.call(CALLS[FromProxy(method)], "OK", calls)
        replicas = {**self._former, **self._compiler.replicas}
        for each in sums.sums:
            if (replica := replicas.get(each.store)) is not None:
                if (kind := _KINDS[each.read]) in _OF_A_KEY:
                    replica.lookups += sum(each.reads)
                replica.metrics.reads[kind].add_counted(each.reads, each.took_ns * _NS, each.bytes)
