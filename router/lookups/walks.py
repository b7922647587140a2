"""Keeps the moment of a walk at all replicas of its store for as long as its pages come.

A replica keeps a moment that was read lately (`statehouse/contract/moment_leases.py`). A walk that goes through
partition after partition reads the last one late, and may go on at a standby. So a router that answers pages of a walk
has all replicas read one entry of its moment, once a second. The router that has the next page does the same.
A walk that is over soon costs nothing. A replica that has not reached the moment yet is asked again a second later.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from router.calls.concurrency import map_bounded
from router.calls.group_calls import GroupCalls
from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutedNode, StoreRoutes
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.contract.paging import RangeRequest
from statehouse.rpc.deadline import Deadline
from statehouse.runtime.background import BackgroundWork
from statehouse.v1 import query_service_pb2, types_pb2

RENEW_S: Final = 1.0
WALKS_MAX: Final = 1_024
"""The walks that are remembered. The one whose replicas were asked the longest ago is forgotten first."""
UNDER_WAY_MAX: Final = 16
"""The walks whose replicas are asked at a time. The others' are asked with their next page."""
_AT_ONCE: Final = 4

_Walk = tuple[str, str, int]


class Walks:
    """The walks whose pages come. Lives on the event loop."""

    def __init__(self, tables: CurrentTable, calls: GroupCalls) -> None:
        self._tables, self._calls = tables, calls
        self._asked_at: dict[_Walk, float] = {}
        self._background = BackgroundWork()

    def note(self, store: StoreRoutes, request: RangeRequest, moment: types_pb2.Moment) -> None:
        """Note that a page of a walk showed a moment."""
        walk = store.spec.name, moment.query_id, moment.batch_id
        now = asyncio.get_running_loop().time()
        asked_at = self._asked_at.get(walk)
        if asked_at is not None and (now - asked_at < RENEW_S or len(self._background) >= UNDER_WAY_MAX):
            return
        self._asked_at.pop(walk, None)
        self._asked_at[walk] = now
        if len(self._asked_at) > WALKS_MAX:
            del self._asked_at[next(iter(self._asked_at))]
        if asked_at is not None:
            self._background.start(self._ask_all(store, type(request), moment), "lease of a moment")

    async def _ask_all(self, store: StoreRoutes, kind: type[RangeRequest], moment: types_pb2.Moment) -> None:
        by_node: dict[RoutedNode, list[int]] = {}
        for routes in store.partitions:
            for replica in routes.restored:
                if replica.node is not None and replica.instance_id not in self._calls.suspects:
                    by_node.setdefault(replica.node, []).append(routes.partition)
        bound = MomentBound(Asked.EXACTLY, MomentToken({moment.query_id: moment.batch_id}))
        request = kind(
            store=store.spec.name, page_size=1, raw=True, freshness=types_pb2.Freshness(moment=bound.to_proto())
        )
        method, body = kind.DESCRIPTOR.name.removesuffix("Request"), request.SerializeToString()
        await map_bounded(partial(self._ask, method, body), list(by_node.items()), at_once=_AT_ONCE)

    async def _ask(self, method: str, body: bytes, asked: tuple[RoutedNode, list[int]]) -> None:
        """Have a node read partitions together; if it can't read all of them, each by itself."""
        node, partitions = asked
        timeout_s = self._calls.attempt_timeout_s
        parts = [query_service_pb2.ScanRequest(partition=each) for each in partitions]
        together = query_service_pb2.ScanRequest(partitions=partitions)
        for part in (together, *parts) if len(parts) > 1 else parts:
            data = body + part.SerializeToString() + self._tables.current().page_forwarding
            outcome = await self._calls.make(node, method, data, Deadline.after(timeout_s), timeout_s, kind=None)
            if part is together and isinstance(outcome, bytes):
                return
