"""Lookups of one key: at the replicas of its partition, or of all partitions where records of the store are misplaced.

Where a key may be in any partition, a Get is asked of each, within the caller's bounds, and the value with the latest
timestamp is the answer. "Not found" is the answer of the key's own partition, once no other one has the key. Whatever
else is asked of a key there, its windows or its history, can't be put together and is refused.

Nodes know of misplaced records first, and refuse; then the partitions are asked after that refusal.
"""

from __future__ import annotations

from typing import Final

from router.calls.concurrency import map_bounded
from router.choice.attempt_log import AttemptLog
from router.fleet.current_table import CurrentTable
from router.lookups.dispatch import Call, Dispatcher, NodeAnswer, naming
from statehouse.contract.placement import misplaced_failure
from statehouse.errors import LookupFailure, Reason
from statehouse.link.handed import HandedLookup
from statehouse.rpc.deadline import Deadline
from statehouse.v1 import query_service_pb2, types_pb2

_GET: Final = "Get"
_AT_ONCE: Final = 16

PartitionAnswer = tuple[query_service_pb2.GetResponse, NodeAnswer]
"""What a partition says of a key, parsed and as it came."""


class KeyLookups:
    """Answers what is asked about one key. Lives on the event loop."""

    def __init__(self, tables: CurrentTable, dispatcher: Dispatcher) -> None:
        self._tables, self._dispatcher = tables, dispatcher

    async def answer(
        self,
        call: Call,
        deadline: Deadline,
        attempt_log: AttemptLog | None = None,
        *,
        handed: HandedLookup | None = None,
    ) -> NodeAnswer:
        """Return the answer to a call about one key; the arguments are those of `Dispatcher.dispatch`.

        Raises:
            LookupFailure: as `Dispatcher.dispatch` does; KEYS_MISPLACED if only one partition can be asked.

        """
        placement = self._tables.current().scattered(call.store)
        if placement is None:
            try:
                return await self._dispatcher.dispatch(call, deadline, attempt_log, handed=handed)
            except LookupFailure as failure:
                if failure.reason is not Reason.KEYS_MISPLACED or call.method != _GET:
                    raise
        elif call.method != _GET:
            raise misplaced_failure(call.store, placement)
        return await self._from_all(call, deadline, attempt_log)

    async def _from_all(self, call: Call, deadline: Deadline, attempt_log: AttemptLog | None) -> NodeAnswer:
        async def ask(partition: int) -> PartitionAnswer:
            # The attempts of the key's own partition are shown, as for any lookup.
            shown = attempt_log if partition == call.partition else None
            return await self._of_partition(call, partition, deadline, shown)

        partitions = range(len(self._tables.current().store(call.store).partitions))
        others = [partition for partition in partitions if partition != call.partition]
        best, *rest = await map_bounded(ask, [call.partition, *others], at_once=_AT_ONCE)
        for other in rest:
            best = later(best, other)
        return best[1]

    async def _of_partition(
        self, call: Call, partition: int, deadline: Deadline, attempt_log: AttemptLog | None
    ) -> PartitionAnswer:
        there = query_service_pb2.GetRequest(forwarding=types_pb2.Forwarding(partition=partition)).SerializeToString()
        alone = Call(_GET, call.store, partition, call.body + there, call.freshness)
        with naming(partition):
            answer = await self._dispatcher.dispatch(alone, deadline, attempt_log)
        response = query_service_pb2.GetResponse.FromString(answer.data)
        if response.replica.partition != partition:
            raise LookupFailure(
                Reason.KEYS_MISPLACED,
                f"records of {call.store} are misplaced, and node {response.replica.host.instance_id} is of a version "
                "that looks a key up in its own partition only: upgrade it",
                {"store": call.store, "partition": str(partition)},
            )
        return response, answer


def later(one: PartitionAnswer, other: PartitionAnswer) -> PartitionAnswer:
    """Return the answer whose value has the later timestamp; the first one if none is later."""
    if not other[0].found or (one[0].found and one[0].timestamp_ms >= other[0].timestamp_ms):
        return one
    return other
