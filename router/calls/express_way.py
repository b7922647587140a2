"""The express way: the router tells the proxy what it may send to nodes on its own, and hears what came of it.

The rule is in `router/choice/express.py`. Here it is kept up to date: a new table, a node that comes under suspicion or
is free of it, and another hedge delay make a new snapshot. Changes of health and tables are
sent immediately.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from router.calls.health import NodeHealth
from router.choice.answer_times import AnswerTimes, CallKind
from router.choice.budget import RetryBudget
from router.choice.express import NO_SNAPSHOT, ExpressCompiler, ExpressLimits, Obstacle, obstacle_to
from router.fleet.current_table import CurrentTable
from router.fleet.table import PartitionRoutes, StoreRoutes
from router.telemetry.metrics import RouterMetrics
from statehouse.contract.topology import Role
from statehouse.control.v1 import express_pb2
from statehouse.errors import LookupFailure
from statehouse.link.handed import HandedLookup
from statehouse.link.link import Link, ToProxy
from statehouse.rpc.failures import from_rpc_error

_REFRESH_S: Final = 0.25
# The proxy ignores a snapshot if it has heard nothing of it for three seconds (dataplane/express.go).
_ALIVE_S: Final = 1.0
_GET: Final = "Get"
_BATCH_GET: Final[CallKind] = ("", "BatchGet")
_MICROSECOND: Final = 1e-6
_LATE, _PARTLY, _UNKNOWN = "LATE", "PARTLY", "UNKNOWN"


def why_handed(handed: HandedLookup) -> str:
    """Return why the proxy hands over what it has sent to a node: LATE, a reason, PARTLY or UNKNOWN."""
    if not handed.came.done():
        return _LATE
    if isinstance(error := handed.came.exception(), grpc.RpcError):
        return from_rpc_error(error).reason.name
    came = handed.came.result()
    if isinstance(came, LookupFailure):
        return came.reason.name
    return _UNKNOWN if came is None else _PARTLY


def why_page_handed(calls: Sequence[HandedLookup]) -> str:
    """Return why the proxy hands over a page: for a call that went wrong, else LATE; UNKNOWN if all were answered."""
    found = [why for each in calls if (why := why_handed(each)) != _PARTLY] or [_UNKNOWN]
    return next((why for why in found if why != _LATE), _LATE)


class ExpressWay:
    """Keeps a proxy's snapshot as the router's table and health are. Lives on the event loop.

    `bounds`: as the router has them. A batch is late, and so is an answer where there is nobody else to ask, when the
    router would give a call up. `version`, `after`: as for `ExpressCompiler`.
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
        bounds: ExpressLimits,
        version: str = "",
        after: int = 0,
    ) -> None:
        self._link, self._tables, self._health = link, tables, health
        self._answer_times, self._budget, self._metrics = answer_times, budget, metrics
        self._attempt_timeout_s = bounds.batch_late_after_s
        self._compiler = ExpressCompiler(self._late_after_s, bounds, version=version, after=after)
        link.on_sums = self._take_sums

    @property
    def number(self) -> int:
        """The number of the last snapshot."""
        return self._compiler.latest.number

    def refresh(self) -> None:
        """Give the proxy another snapshot, if anything has changed."""
        snapshot = self._compiler.changed(self._tables.table, self._health.suspects)
        if snapshot is not None:
            self._link.send(ToProxy.ROUTES, 0, snapshot.SerializeToString())

    def obstacle_to(self, request: bytes, routes: PartitionRoutes) -> Obstacle | None:
        """Return what keeps a serialized GetRequest from the express way now, None if nothing does."""
        return obstacle_to(self._compiler.latest, request, routes, self._health.suspects)

    async def run(self) -> None:
        """Refresh the snapshot, and say that it holds, for ever."""
        for nth in itertools.count():
            self.refresh()
            if nth % round(_ALIVE_S / _REFRESH_S) == 0:
                self._link.send(ToProxy.ALIVE, self._compiler.latest.number)
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
        now = asyncio.get_running_loop().time()
        for lookups in sums.shared:
            self._metrics.coalesced(lookups)
        for each in sums.sums:
            self._metrics.express(self._known(each), Role(each.role), _seconds(each), each.count)
            self._take_times(each, (each.store, _GET), now)
        for each in sums.batch_calls:
            self._metrics.attempt("OK", each.count)
            self._take_times(each, _BATCH_GET, now)
        for each in sums.batch_lookups:
            self._metrics.express_batches(self._known(each), each.count)
        for each in sums.page_calls:
            self._metrics.attempt("OK", each.count)
            self._take_times(each, None, now)
        for each in sums.pages:
            self._metrics.express_pages(self._known(each), _seconds(each), each.count)

    def _known(self, of: express_pb2.ExpressSum) -> str:
        table = self._tables.table
        return of.store if table is not None and of.store in table.stores else ""

    def _take_times(self, of: express_pb2.ExpressSum, kind: CallKind | None, now: float) -> None:
        """Note that a node has answered calls; `kind` None: of those that may take any time."""
        self._budget.lookup(now, of.count)
        table = self._tables.table
        node = None if table is None else table.nodes.get(of.instance_id)
        if node is None:
            return
        weight = of.count / max(1, len(of.took_us))
        for took_s in _seconds(of):
            # A node under suspicion is sent nothing on the express way: these answers came before that.
            if of.instance_id not in self._health.suspects:
                self._health.answered(node, took_s)
            if kind is not None and self._answer_times.answered(kind, of.instance_id, took_s, weight):
                self._health.slow(node, self._answer_times.late_after_s(kind))


def _seconds(of: express_pb2.ExpressSum) -> list[float]:
    return [took_us * _MICROSECOND for took_us in of.took_us]


class ExpressDoor:
    """The express way from when it is open, and until then why there is none.

    Attributes:
        obstacle: what keeps all lookups from it as long as the process lives; None if nothing does.

    """

    def __init__(self, obstacle: Obstacle | None) -> None:
        self.obstacle = obstacle
        self._way: ExpressWay | None = None
        self._link: Link | None = None

    def open(self, way: ExpressWay, link: Link) -> None:
        """Use the way, over this link, from now on."""
        self._way, self._link = way, link

    def close(self) -> None:
        """Use no way from now on: the proxy is given another one's snapshots."""
        self._way = None

    def refresh(self) -> None:
        """Give the proxy another snapshot, if there is a way and anything has changed."""
        if self._way is not None:
            self._way.refresh()

    def obstacle_to(self, request: bytes, routes: PartitionRoutes) -> Obstacle | None:
        """Return what keeps a serialized GetRequest from the express way now, None if nothing does."""
        if self._way is None:
            return self.obstacle or NO_SNAPSHOT
        return self._way.obstacle_to(request, routes)

    def lookups_elsewhere(self) -> int:
        """Return how many lookups are under way that the proxy has sent to nodes on its own."""
        return 0 if self._link is None else self._link.elsewhere
