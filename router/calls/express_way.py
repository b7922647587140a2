"""The express way: the proxy is given what it may send to nodes by itself, and says what came of it.

The rule is in `router/choice/express.py`. Here it is kept up to date: a new table, a node that comes under suspicion or
is free of it, and another hedge delay make a new snapshot. Changes of health and tables go at once.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from google.protobuf.message import DecodeError

from router.calls.health import NodeHealth
from router.choice.answer_times import AnswerTimes
from router.choice.budget import RetryBudget
from router.choice.express import ExpressCompiler
from router.fleet.current_table import CurrentTable
from router.fleet.table import StoreRoutes
from router.telemetry.metrics import RouterMetrics
from statehouse.control.v1 import express_pb2
from statehouse.rpc.link import Link, ToProxy
from statehouse.topology import Role

_REFRESH_S: Final = 0.25
# The proxy acts on no snapshot of which it has not heard for three seconds (proxy/express.go).
_ALIVE_S: Final = 1.0
_GET: Final = "Get"
_MICROSECOND: Final = 1e-6


class ExpressWay:
    """Keeps a proxy's snapshot as the router's table and health are. Lives on the event loop.

    `attempt_timeout_s`: after how long an answer is late where there is nobody else to ask.
    """

    def __init__(
        self,
        link: Link,
        tables: CurrentTable,
        health: NodeHealth,
        answer_times: AnswerTimes,
        budget: RetryBudget,
        metrics: RouterMetrics,
        *,
        attempt_timeout_s: float,
        max_lookups: int,
    ) -> None:
        self._link, self._tables, self._health = link, tables, health
        self._answer_times, self._budget, self._metrics = answer_times, budget, metrics
        self._attempt_timeout_s = attempt_timeout_s
        self._compiler = ExpressCompiler(self._late_after_s, max_lookups=max_lookups)
        link.on_sums = self._take_sums

    def refresh(self) -> None:
        """Give the proxy another snapshot, if anything has changed."""
        snapshot = self._compiler.changed(self._tables.table, self._health.suspects)
        if snapshot is not None:
            self._link.send(ToProxy.ROUTES, 0, snapshot.SerializeToString())

    async def run(self) -> None:
        """Refresh the snapshot, and say that it holds, for ever."""
        for nth in itertools.count():
            self.refresh()
            if nth % round(_ALIVE_S / _REFRESH_S) == 0:
                self._link.send(ToProxy.ALIVE, self._compiler.number)
            await asyncio.sleep(_REFRESH_S)

    def _late_after_s(self, store: StoreRoutes) -> float:
        if not store.has_standbys:
            return self._attempt_timeout_s
        return min(self._answer_times.hedge_delay_s((store.spec.name, _GET)), self._attempt_timeout_s)

    def _take_sums(self, data: bytes) -> None:
        """Note lookups that nodes answered in time, as if each had come through here."""
        try:
            sums = express_pb2.ExpressSums.FromString(data)
        except DecodeError:
            return
        table = self._tables.table
        now = asyncio.get_running_loop().time()
        for lookups in sums.shared:
            self._metrics.coalesced(lookups)
        for each in sums.sums:
            known = each.store if table is not None and each.store in table.stores else ""
            times_s = [took_us * _MICROSECOND for took_us in each.took_us]
            self._metrics.express(known, Role(each.role), times_s, each.count)
            self._budget.lookups(each.count, now)
            node = None if table is None else table.nodes.get(each.instance_id)
            if node is None:
                continue
            kind = (each.store, _GET)
            for took_s in times_s:
                self._health.answered(node, took_s)
                if self._answer_times.answered(kind, each.instance_id, took_s):
                    self._health.slow(node, self._answer_times.late_after_s(kind))
