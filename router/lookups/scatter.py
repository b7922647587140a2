"""Scan, ScanWindows, ScanSessions and Count: every partition through the same dispatch, put together in key order.

Nodes decode; their pages go on as bytes. The router asks them to send, with each entry, the bytes by which entries
are in order; where a node of an earlier version gives none, its entries are read for them.
Each partition is read in one call, so each page reads one snapshot per partition. A page is bounded in bytes, too:
a partition may have more than it returned.

For a page a node is called once for all partitions whose first candidate it is. If it can't answer for all of them,
each is read by its own call, like a lookup, so that a failure names its partition. Counts may take long: they use one
call for each partition, so that a failed call loses as little as possible.

If the caller asks for a moment, partitions are read again until all show the same batch. A page's token names it, so
that all pages show the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

from router.calls.concurrency import map_bounded
from router.calls.group_calls import GroupCalls
from router.choice.attempt_log import OF_NODE
from router.choice.candidates import ask_order
from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutedNode, StoreRoutes
from router.lookups.dispatch import NONE_FAILED, Call, Dispatcher, naming
from router.lookups.locate import freshness_of, refuse_forwarded
from router.lookups.pages import joined
from router.lookups.stamps import checked, stamps_in
from router.lookups.walk_shares import WalkShares, walked_in
from router.lookups.walks import Walks
from router.telemetry.metrics import RouterMetrics
from statehouse.contract.agreement import Agreement, ask_for, batch_shown, is_gone
from statehouse.contract.consistency import Freshness
from statehouse.contract.moments import Asked, MomentBound
from statehouse.contract.paging import RangeRequest, bound_of_page, page_size, refuse_other_version
from statehouse.contract.scan_ranges import entry_key_range, key_range
from statehouse.control.v1 import frames_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.link.handed import HandedLookup
from statehouse.rpc.deadline import Deadline
from statehouse.v1 import query_service_pb2, types_pb2

PartitionRequest = RangeRequest | query_service_pb2.CountRequest

_AT_ONCE = 16
# A call for several partitions gets one of so many equal shares of the time left, because calls may follow it.
_SHARES = 3
# Room that an answer keeps free for the token, the replicas' stamps and framing.
_RESERVED_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a request reads: these partitions of a store; `partitions` None: one copy of a global store as a whole.

    `body`: what nodes are asked, serialized, without the partitions.
    """

    store: StoreRoutes
    request: type[PartitionRequest]
    body: bytes
    freshness: Freshness
    partitions: Sequence[int] | None

    @property
    def method(self) -> str:
        return self.request.DESCRIPTOR.name.removesuffix("Request")

    @property
    def is_page(self) -> bool:
        return self.request is not query_service_pb2.CountRequest

    def of_batch(self, bound: MomentBound) -> _Scope:
        """Return the same for another batch."""
        request = self.request.FromString(self.body)
        ask_for(request.freshness, bound)
        return replace(self, body=request.SerializeToString(), freshness=replace(self.freshness, moment=bound))


@dataclass(frozen=True, slots=True)
class _Group:
    """Partitions that a node is asked for in one call, or if it is None, each in its own. `handed`: it was made."""

    node: RoutedNode | None
    partitions: Sequence[int]
    handed: HandedLookup | None = None


class _Answer:
    """A node's answer for some partitions, and what it shows of each."""

    def __init__(self, scope: _Scope, data: bytes) -> None:
        self.data = data
        self.moments = {stamp.partition: stamp.moment for stamp in stamps_in(scope.method, data)}


def _scope(store: StoreRoutes, request: PartitionRequest, body: bytes) -> _Scope:
    freshness = freshness_of(request.freshness).in_version(store.spec.name, store.version)
    if not isinstance(request, query_service_pb2.CountRequest) and request.page_token:
        freshness = replace(freshness, moment=bound_of_page(request))
    partitions: Sequence[int] | None = None if store.spec.is_global else range(len(store.partitions))
    if request.HasField("partition"):
        partitions = [store.partition(request.partition).partition]
    return _Scope(store, type(request), body, freshness, partitions)


class Scatter:
    """Answers Scan, ScanWindows, ScanSessions and Count. Lives on the event loop."""

    def __init__(
        self,
        tables: CurrentTable,
        calls: GroupCalls,
        dispatcher: Dispatcher,
        metrics: RouterMetrics,
        *,
        max_message_bytes: int,
        newest_moment: Callable[[str], tuple[str, int] | None],
    ) -> None:
        """`newest_moment`: a store's query, and its newest batch whose end is known; None if none is."""
        self._tables, self._calls, self._dispatcher, self._metrics = tables, calls, dispatcher, metrics
        self._max_entry_bytes = max_message_bytes - _RESERVED_BYTES
        self._walks, self._shares, self._newest_moment = Walks(tables, calls), WalkShares(), newest_moment

    async def page(
        self, request: RangeRequest, deadline: Deadline, handed: Sequence[HandedLookup] = (), address: str = ""
    ) -> bytes:
        """Return a page of a scan over all partitions, or over the one the request names: its response, serialized.

        `handed`: calls that the proxy has made for it; what comes of them is what comes of our own. `address`: the
        caller's.

        Raises:
            LookupFailure: the request is wrong, or a partition failed; the message names it. OVERLOADED: the caller
                walks at too many old moments.

        """
        store = self._store(request)
        refuse_other_version(request, store.version)
        # Refuses a wrong range or token before any node is asked.
        if isinstance(request, query_service_pb2.ScanRequest):
            key_range(request, store.key_serde)
        else:
            entry_key_range(request, store.key_serde)
        walked = walked_in(store.spec.name, bound_of_page(request), self._newest_moment(store.spec.name))
        if walked is not None:
            self._shares.enter(address, walked, asyncio.get_running_loop().time())
        try:
            pages, moment = await self._read_page(store, request, deadline, handed)
        except LookupFailure as failure:
            if walked is not None and is_gone(failure):
                self._shares.leave(address, walked)
            raise
        if moment is not None:
            self._walks.note(store, request, moment)
        page = joined(request, pages, self._max_entry_bytes, store.key_serde, moment, store.version)
        if walked is not None and not frames_pb2.PageFrames.FromString(page).next_page_token:
            self._shares.leave(address, walked)
        return page

    async def count(
        self, request: query_service_pb2.CountRequest, deadline: Deadline
    ) -> query_service_pb2.CountResponse:
        """Return the sum over all partitions, or the count of the one the request names.

        Raises:
            LookupFailure: the request is wrong, or a partition failed; the message names it.

        """
        store = self._store(request)
        scope = _scope(store, request, request.SerializeToString())
        if scope.partitions is None:
            answers = [await self._ask_copy(scope, deadline)]
        else:
            answers = await self._ask_each(scope, scope.partitions, deadline)
            answers, _ = await self._agreed(scope, answers, lambda again, its: self._ask_each(again, its, deadline))
        counts = [query_service_pb2.CountResponse.FromString(answer) for answer in answers]
        return query_service_pb2.CountResponse(
            count=sum(part.count for part in counts),
            exact=all(part.exact for part in counts),
            replicas=[stamp for part in counts for stamp in part.replicas],
        )

    def _store(self, request: PartitionRequest) -> StoreRoutes:
        refuse_forwarded(request.forwarding)
        return self._tables.current().store(request.store)

    async def _read_page(
        self, store: StoreRoutes, request: RangeRequest, deadline: Deadline, handed: Sequence[HandedLookup]
    ) -> tuple[list[bytes], types_pb2.Moment | None]:
        """Return nodes' pages that together cover all partitions, or the one the request names, and what they show.

        Raises:
            LookupFailure: INVALID_REQUEST; or a partition failed, and the message names it.

        """
        if request.partitions:
            raise LookupFailure(
                Reason.INVALID_REQUEST, "partitions is for nodes: to a router, name one partition or none for all"
            )
        # A node's program reads requests that have each field once.
        asked = deepcopy(request)
        asked.ClearField("partition")
        asked.page_size = page_size(request)
        scope = _scope(store, request, asked.SerializeToString())
        if scope.partitions is None:
            return [await self._ask_copy(scope, deadline)], None
        groups = _made_already(self._tables.current().nodes, scope.partitions, handed) if handed else []
        begun = {partition for group in groups for partition in group.partitions}
        groups += self._by_node(scope, [each for each in scope.partitions if each not in begun])
        answers = await self._ask_groups(scope, deadline, groups)
        return await self._agreed(
            scope, answers, lambda again, its: self._ask_groups(again, deadline, self._by_node(again, its))
        )

    async def _agreed(
        self, scope: _Scope, answers: list[bytes], ask: Callable[[_Scope, Sequence[int]], Awaitable[list[bytes]]]
    ) -> tuple[list[bytes], types_pb2.Moment | None]:
        """Return answers that show the same batch, if the request asks for one, and which.

        `ask` reads partitions again, for another batch.

        Raises:
            LookupFailure: MOMENT_NOT_REACHED, there is no such batch; or a partition failed, and the message names it.

        """
        bound = scope.freshness.moment
        if bound is None:
            return answers, None
        found = asked = [_Answer(scope, answer) for answer in answers]
        moment = next(iter(found[0].moments.values()))
        agreement = Agreement[int](moment.query_id, [] if bound.asked is Asked.EXACTLY else [bound])
        while True:
            for answer in asked:
                for partition, shown in answer.moments.items():
                    agreement.shows(partition, f"partition {partition}", batch_shown(shown, moment.query_id))
            step = agreement.next()
            if step is None:
                return [answer.data for answer in found], next(iter(found[0].moments.values()))
            differing, bound = step
            # An answer for several partitions can be replaced only as a whole.
            kept = [answer for answer in found if answer.moments.keys().isdisjoint(differing)]
            read = sorted({each for answer in found if answer not in kept for each in answer.moments})
            try:
                asked = [_Answer(scope, answer) for answer in await ask(scope.of_batch(bound), read)]
            except LookupFailure as failure:
                if not is_gone(failure):
                    raise
                asked = []
                for partition in read:
                    agreement.shows(partition, f"partition {partition}", None)
            else:
                found = kept + asked

    async def _ask_groups(self, scope: _Scope, deadline: Deadline, groups: Sequence[_Group]) -> list[bytes]:
        answers = await map_bounded(partial(self._ask_group, scope, deadline), groups, at_once=_AT_ONCE)
        return [answer for group in answers for answer in group]

    def _by_node(self, scope: _Scope, partitions: Sequence[int]) -> list[_Group]:
        """Return the partitions by the node to ask first."""
        if scope.freshness.at_least is not None:
            return [_Group(None, partitions)]  # one that must wait for its position would hold up the others
        groups: dict[RoutedNode | None, list[int]] = {}
        for partition in partitions:
            order = ask_order(scope.store.partitions[partition], scope.freshness, self._calls.suspects)
            groups.setdefault(order[0].node if order else None, []).append(partition)
        return [_Group(node, its) for node, its in groups.items()]

    async def _ask_group(self, scope: _Scope, deadline: Deadline, group: _Group) -> list[bytes]:
        """Ask a node for several partitions in one call; if it can't answer for all, read each by its own call."""
        node, partitions = group.node, group.partitions
        if node is None or len(partitions) == 1:
            return await self._ask_each(scope, partitions, deadline, handed=group.handed)
        # A share of the time, as each candidate of a partition gets one.
        timeout_s = max(min(deadline.remaining_s, self._calls.attempt_timeout_s), deadline.remaining_s / _SHARES)
        # All three scans have the same field for it.
        body = (
            scope.body
            + query_service_pb2.ScanRequest(partitions=partitions).SerializeToString()
            + self._tables.current().page_forwarding
        )
        if scope.freshness.moment is not None:
            deadline = Deadline.after(timeout_s)  # the node says in time that it would wait for longer
        outcome = await self._calls.make(node, scope.method, body, deadline, timeout_s, kind=None, handed=group.handed)
        if isinstance(outcome, bytes):
            outcome = checked(scope.method, scope.store.spec.name, scope.freshness, node.instance_id, outcome)
        self._metrics.attempt("OK" if isinstance(outcome, bytes) else outcome.reason.name)
        if isinstance(outcome, bytes):
            return [outcome]
        is_nodes = outcome.reason in OF_NODE or outcome.reason is Reason.MOMENTS_UNAVAILABLE
        failed_before = {node.instance_id: outcome} if is_nodes else {}
        return await self._ask_each(scope, partitions, deadline, failed_before)

    async def _ask_copy(self, scope: _Scope, deadline: Deadline) -> bytes:
        """Read a global store: every node has all partitions, so one node answers for them together."""
        call = Call(
            scope.method,
            scope.store.spec.name,
            0,
            scope.body,
            scope.freshness,
            is_patient=True,
            is_page=scope.is_page,
        )
        return (await self._dispatcher.dispatch(call, deadline)).data

    async def _ask_each(
        self,
        scope: _Scope,
        partitions: Sequence[int],
        deadline: Deadline,
        failed_before: Mapping[str, LookupFailure] = NONE_FAILED,
        handed: HandedLookup | None = None,
    ) -> list[bytes]:
        """Return the answers for these partitions, each by a call of its own; `handed`: the first of a single one."""

        async def read(partition: int) -> bytes:
            part = scope.request(partition=partition).SerializeToString()
            call = Call(
                scope.method,
                scope.store.spec.name,
                partition,
                scope.body + part,
                scope.freshness,
                is_patient=True,
                is_page=scope.is_page,
                failed_before=failed_before,
            )
            with naming(partition):
                return (await self._dispatcher.dispatch(call, deadline, handed=handed)).data

        return await map_bounded(read, partitions, at_once=_AT_ONCE)


def _made_already(
    nodes: Mapping[str, RoutedNode], partitions: Sequence[int], handed: Sequence[HandedLookup]
) -> list[_Group]:
    """Return the calls that the proxy has made; not those that the table has nothing more to do with."""
    left = set(partitions)
    groups = []
    for each in handed:
        node = nodes.get(each.instance_id)
        if node is not None and each.was_made_to(node.instance_id, node.target) and left.issuperset(each.partitions):
            groups.append(_Group(node, each.partitions, each))
            left.difference_update(each.partitions)
    return groups
