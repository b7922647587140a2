"""BatchGet: lookups grouped by the node to ask, each with an outcome of its own, in the caller's order.

A node gets one BatchGet with everything it can answer; what does not fit into one message or one batch is split,
never failed. When a whole call fails, its entries are grouped again by their next candidates, as ksqlDB's rounds
do. When one entry fails in a way that another replica may help with, it goes on alone, like a Get.

Entries that ask for a moment show one batch of each query, the newest that all of them can show; the others are asked
again until they do.

Once the results are more than the answer's message holds, nothing further is asked or kept: a short request could else
have the router hold gigabytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from google.protobuf.message import DecodeError

from router.calls.batch_calls import ENTRY_OVERHEAD, failure_in, halving, results, room_of_call
from router.calls.concurrency import map_bounded
from router.calls.group_calls import GroupCalls
from router.choice.answer_times import CallKind
from router.choice.candidates import ask_order
from router.choice.round_robin import RoundRobin
from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutedNode, RoutingTable
from router.lookups.dispatch import Call
from router.lookups.keyed import KeyLookups
from router.lookups.locate import keyed_call
from router.lookups.overload import LookupLimit, OpenLookups
from router.lookups.stamps import too_old
from router.telemetry.metrics import RouterMetrics
from statehouse.contract.agreement import Agreement, ask_for, batch_shown, is_gone
from statehouse.contract.moments import MomentBound
from statehouse.errors import LookupFailure, Reason
from statehouse.link.handed import HandedLookup
from statehouse.rpc.deadline import Deadline
from statehouse.runtime.batches import chunks, is_too_big, kept_within, too_large
from statehouse.serdes.wire import framed, lookups_of, result_of
from statehouse.v1 import query_service_pb2, types_pb2

_GROUP_ROUNDS = 2
_AT_ONCE = 32
_KIND: CallKind = ("", "BatchGet")


@dataclass(slots=True, eq=False)
class _BatchEntry:
    """One lookup of the batch; `result` is a serialized BatchGetResult, empty until there is one."""

    call: Call
    failures: dict[str, LookupFailure] = field(default_factory=dict)
    goes_alone: bool = False
    """A node refused this entry alone, or would have made it wait: it goes on like a Get."""
    result: bytes = b""
    outcome: str = "OK"

    @property
    def moment(self) -> types_pb2.Moment | None:
        """The batch that the entry's answer is of; None if there is no answer, or it is of none."""
        response = query_service_pb2.BatchGetResult.FromString(self.result).response
        return response.replica.moment if response.replica.HasField("moment") else None

    def ask_again(self, bound: MomentBound) -> None:
        """Begin anew, for another batch."""
        request = query_service_pb2.GetRequest.FromString(self.call.body)
        ask_for(request.freshness, bound)
        freshness = replace(self.call.freshness, moment=bound)
        self.call = replace(self.call, body=request.SerializeToString(), freshness=freshness)
        self.failures, self.goes_alone, self.result, self.outcome = {}, False, b"", "OK"


@dataclass(slots=True, eq=False)
class _GroupCall:
    """A call to a node for these entries; `handed` if the proxy has made it already."""

    node: RoutedNode
    entries: Sequence[_BatchEntry]
    handed: HandedLookup | None = None

    def take_handed(self) -> HandedLookup | None:
        """Return the call that was made already, once: what is asked after it, such as halves, are new calls."""
        handed, self.handed = self.handed, None
        return handed


class _AnswerCapacity:
    """The room for a batch's results in the message of its answer. Once it is exceeded, no further result is kept.

    `refused` is kept in the place of those.
    """

    def __init__(self, lookups: int, max_bytes: int, refused: bytes) -> None:
        self._left, self._refused = max_bytes - ENTRY_OVERHEAD * lookups, refused

    @property
    def is_exceeded(self) -> bool:
        """Whether the results are more than the message holds, so that nothing should be asked any more."""
        return self._left < 0

    def take(self, result: bytes) -> None:
        self._left -= len(result)

    def end(self, entry: _BatchEntry, result: bytes, outcome: str = "OK") -> None:
        """Give an entry its result, or refuse it."""
        if self._left < 0:
            self.refuse(entry)
            return
        self._left -= len(result)
        entry.result, entry.outcome = result, outcome

    def give_back(self, entry: _BatchEntry) -> None:
        """Make room for another result in the place of an entry's."""
        self._left += len(entry.result)

    def refuse(self, entry: _BatchEntry) -> None:
        """End an entry for which there is no room."""
        entry.result, entry.outcome = self._refused, Reason.MESSAGE_TOO_LARGE.name


class BatchGetter:
    """Answers BatchGet. Lives on the event loop."""

    def __init__(
        self,
        tables: CurrentTable,
        limit: LookupLimit,
        calls: GroupCalls,
        keys: KeyLookups,
        metrics: RouterMetrics,
        *,
        max_entries: int,
        max_message_bytes: int,
        on_failed: Callable[[str, str, int], None] = lambda _store, _reason, _lookups: None,
    ) -> None:
        """`on_failed(store, reason, lookups)` is called for lookups of a batch that failed."""
        self._on_failed = on_failed
        self._tables, self._limit, self._calls = tables, limit, calls
        self._keys, self._metrics = keys, metrics
        self._max_entries, self._max_bytes = max_entries, max_message_bytes
        self._too_large = result_of(too_large(max_message_bytes))
        self._turns = RoundRobin()

    async def batch_get(self, data: bytes, deadline: Deadline, handed: Sequence[HandedLookup] | None = None) -> bytes:
        """Answer a serialized BatchGetRequest with a serialized BatchGetResponse.

        `handed`: calls that the proxy has made for the first lookups, if it has admitted the batch; what comes of them
        is what comes of our own.

        Raises:
            LookupFailure: INVALID_REQUEST, ROUTING_NOT_READY or OVERLOADED.

        """
        try:
            requests = lookups_of(data, self._max_entries)
        except DecodeError as error:
            raise LookupFailure(Reason.INVALID_REQUEST, f"not a BatchGetRequest: {error}") from error
        with self._limit.admitted(len(data), len(requests), is_under_way=handed is not None) as place:
            return await self._answer(requests, place, deadline, handed or ())

    async def _answer(
        self, requests: Sequence[bytes], place: OpenLookups, deadline: Deadline, handed: Sequence[HandedLookup]
    ) -> bytes:
        table = self._tables.current()
        room = _AnswerCapacity(len(requests), self._max_bytes, self._too_large)
        entries: list[_BatchEntry | bytes] = []
        for request in requests:
            try:
                entries.append(_BatchEntry(keyed_call(table, "Get", request)))
            except LookupFailure as failure:
                self._metrics.lookups("", failure.reason.name, 1)
                self._on_failed("", failure.reason.name, 1)
                refusal = result_of(failure)
                room.take(refusal)
                entries.append(refusal)
        pending = [entry for entry in entries if isinstance(entry, _BatchEntry)]
        if patient := [len(entry.call.body) for entry in pending if entry.call.freshness.may_wait]:
            place.wait_for_positions(sum(patient), len(patient))
        await self._ask_all(pending, room, deadline, _made_already(table, entries, handed))
        for query_id, its in _of_queries(pending).items():
            await self._agree(query_id, its, room, deadline)
        outcomes = Counter((entry.call.store, entry.outcome) for entry in entries if isinstance(entry, _BatchEntry))
        for (store, outcome), lookups in outcomes.items():
            self._metrics.lookups(store, outcome, lookups)
            if outcome != "OK":
                self._on_failed(store, outcome, lookups)
        results = [entry if isinstance(entry, bytes) else entry.result for entry in entries]
        return framed(self._with_refusals(results) if room.is_exceeded else results)

    async def _ask_all(
        self,
        pending: Sequence[_BatchEntry],
        room: _AnswerCapacity,
        deadline: Deadline,
        calls: Sequence[_GroupCall] = (),
    ) -> None:
        """Give each entry a result."""
        for _ in range(_GROUP_ROUNDS):
            await self._grouped_round(pending, room, deadline, calls)
            calls = []
            pending = [entry for entry in pending if not entry.result]
        await map_bounded(lambda entry: self._alone(entry, room, deadline), pending, at_once=_AT_ONCE)

    async def _agree(
        self, query_id: str, entries: Sequence[_BatchEntry], room: _AnswerCapacity, deadline: Deadline
    ) -> None:
        """Ask for entries again until all show the same batch of their query."""
        bounds = [entry.call.freshness.moment for entry in entries]
        agreement = Agreement[_BatchEntry](query_id, [bound for bound in bounds if bound is not None])
        asked = entries
        while True:
            for entry in asked:
                moment, failure = entry.moment, failure_in(entry.result)
                if failure is not None and not is_gone(failure):
                    agreement.leaves(entry)
                else:
                    name = f"store {entry.call.store}, partition {entry.call.partition}"
                    agreement.shows(entry, name, None if moment is None else batch_shown(moment, query_id))
            try:
                step = agreement.next()
            except LookupFailure as failure:
                for entry in agreement.parts:
                    room.give_back(entry)
                    room.end(entry, result_of(failure), failure.reason.name)
                return
            if step is None:
                return
            asked, bound = step
            for entry in asked:
                room.give_back(entry)
                entry.ask_again(bound)
            await self._ask_all(asked, room, deadline)

    def _with_refusals(self, results: list[bytes]) -> list[bytes]:
        """Replace results with refusals, as many as it takes for all to fit into the answer."""
        sizes = [len(result) for result in results]
        kept = kept_within(sizes, len(self._too_large), self._max_bytes, ENTRY_OVERHEAD)
        return [result if is_kept else self._too_large for result, is_kept in zip(results, kept, strict=True)]

    async def _grouped_round(
        self,
        pending: Sequence[_BatchEntry],
        room: _AnswerCapacity,
        deadline: Deadline,
        calls: Sequence[_GroupCall],
    ) -> None:
        """Ask each node once for all entries whose first untried candidate it is; `calls` have been made already."""
        table = self._tables.current()
        groups: dict[str, tuple[RoutedNode, list[_BatchEntry]]] = {}
        turns: dict[str, int] = {}  # one for each store, so that its entries stay together
        asked = {entry for call in calls for entry in call.entries}
        for entry in pending:
            if entry in asked:
                continue
            store = table.stores.get(entry.call.store)
            if entry.goes_alone or store is None or entry.call.partition >= len(store.partitions):
                continue
            if table.scattered(entry.call.store) is not None:
                continue  # each of them is asked of all partitions
            routes = store.partitions[entry.call.partition]
            if routes.store not in turns:
                turns[routes.store] = self._turns.take(routes)
            for replica in ask_order(routes, entry.call.freshness, self._calls.suspects, turns[routes.store]):
                if replica.node is not None and replica.instance_id not in entry.failures:
                    groups.setdefault(replica.instance_id, (replica.node, []))[1].append(entry)
                    break
        calls = [
            *calls,
            *(
                _GroupCall(node, chunk)
                for node, group in groups.values()
                for chunk in chunks(group, lambda entry: len(entry.call.body), partial(room_of_call, self._max_bytes))
            ),
        ]
        await map_bounded(
            lambda call: halving(partial(self._ask_for, call, table.forwarding, room, deadline), call.entries),
            calls,
            at_once=_AT_ONCE,
        )

    async def _ask_for(
        self,
        call: _GroupCall,
        forwarding: bytes,
        room: _AnswerCapacity,
        deadline: Deadline,
        entries: Sequence[_BatchEntry],
    ) -> bool:
        """Make one call for these entries; False if it or its answer was too big."""
        if room.is_exceeded:
            for entry in entries:
                room.refuse(entry)
            return True
        node, handed = call.node, call.take_handed()
        body = framed(entry.call.body + forwarding for entry in entries)
        had_s = 0.0 if handed is None else asyncio.get_running_loop().time() - handed.sent_at
        timeout_s = min(self._calls.attempt_timeout_s, deadline.remaining_s + had_s)
        moments = (entry.call.freshness.moment for entry in entries)
        kind = None if any(moment is not None and moment.may_wait for moment in moments) else _KIND
        answer = await self._calls.make(node, "BatchGet", body, deadline, timeout_s, kind=kind, handed=handed)
        failure = self._take(node, entries, room, answer) if isinstance(answer, bytes) else answer
        self._metrics.attempt("OK" if failure is None else failure.reason.name)
        if failure is None:
            return True
        if is_too_big(failure, len(entries)):
            return False
        for entry in entries:
            if failure.elsewhere:
                entry.failures[node.instance_id] = failure
            else:
                room.end(entry, result_of(failure), failure.reason.name)
        return True

    def _take(
        self, node: RoutedNode, entries: Sequence[_BatchEntry], room: _AnswerCapacity, answer: bytes
    ) -> LookupFailure | None:
        """Give each entry its result; return a failure if the answer does not fit the batch."""
        try:
            found = results(answer, len(entries))
        except LookupFailure as unreadable:
            return unreadable
        for entry, result in zip(entries, found, strict=True):
            failure = failure_in(result)
            if failure is None and entry.call.freshness.moment is not None and _shows_none(result):
                failure = too_old(entry.call.store, node.instance_id)
            if failure is None:
                room.end(entry, result)
            elif failure.reason in {Reason.WOULD_WAIT, Reason.KEYS_MISPLACED}:
                entry.goes_alone = True  # maybe to the same node, which then lets it wait; or to all partitions
            elif failure.elsewhere or failure.reason is Reason.UNKNOWN_STORE:
                entry.failures[node.instance_id] = failure
                entry.goes_alone = True
            else:
                room.end(entry, result, failure.reason.name)
        return None

    async def _alone(self, entry: _BatchEntry, room: _AnswerCapacity, deadline: Deadline) -> None:
        if room.is_exceeded:
            room.refuse(entry)
            return
        call = entry.call
        alone = Call(call.method, call.store, call.partition, call.body, call.freshness, failed_before=entry.failures)
        try:
            answer = await self._keys.answer(alone, deadline)
        except LookupFailure as failure:
            room.end(entry, result_of(failure), failure.reason.name)
        else:
            room.end(entry, result_of(answer.data))


def _made_already(
    table: RoutingTable, entries: Sequence[_BatchEntry | bytes], handed: Sequence[HandedLookup]
) -> list[_GroupCall]:
    """Return the calls that the proxy has made; not those that the table has nothing more to do with."""
    calls = []
    at = 0
    for each in handed:
        its = [entry for entry in entries[at : at + each.lookups] if isinstance(entry, _BatchEntry)]
        at += each.lookups
        node = table.nodes.get(each.instance_id)
        if node is not None and each.was_made_to(node.instance_id, node.target) and len(its) == each.lookups:
            calls.append(_GroupCall(node, its, each))
    return calls


def _shows_none(result: bytes) -> bool:
    """Whether an answer is of no batch, though one was asked for."""
    return not query_service_pb2.BatchGetResult.FromString(result).response.replica.HasField("moment")


def _of_queries(entries: Sequence[_BatchEntry]) -> dict[str, list[_BatchEntry]]:
    """Return the entries that must agree on a batch, by query: not those that ask for exactly one."""
    found: defaultdict[str, list[_BatchEntry]] = defaultdict(list)
    for entry in entries:
        bound = entry.call.freshness.moment
        moment = None if bound is None else entry.moment
        if bound is not None and moment is not None and bound.exactly(moment.query_id) is None:
            found[moment.query_id].append(entry)
    return found
