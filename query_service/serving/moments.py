"""What the data plane learns of the batches that replicas show."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import islice
from typing import Final

from query_service.replicas.replica import StoreReplica
from statehouse.contract.committed_moments import CommittedMoments, KnownMoments
from statehouse.control.v1 import serving_pb2

SHOWN_MAX: Final = 64
"""A read that wants an older batch is Python's."""


class ShownMoments:
    """The batches that the data plane knows to be shown, by the numbers of stores. Lives on the event loop.

    They only become more: a state that was all of its log at one time stays right. Once a store is lost, or its batches
    begin anew, nothing of it is shown.
    """

    def __init__(self, committed: CommittedMoments) -> None:
        """`committed` is what the commits topic says."""
        self._committed = committed
        self._told: dict[int, serving_pb2.ServingMoments] = {}

    def keep(self, numbers: Collection[int]) -> None:
        """Forget what it learned of all other stores."""
        self._told = {number: told for number, told in self._told.items() if number in numbers}

    def changed(self, number: int, replica: StoreReplica) -> serving_pb2.ServingMoments | None:
        """Return what the replica of a number shows; None if the data plane knows it."""
        told = self._told.get(number)
        known = self._committed.known(replica.spec.name)
        shown = serving_pb2.ServingMoments(store=number)
        if known is not None and replica.keeps_moments and replica.loss is None:
            shown.query_id = known.query_id
            if told is not None and told.query_id == known.query_id and _newest(told) <= known.newest:
                if _newest(told) == known.newest:
                    return None
                shown.batch_ids.extend(told.batch_ids)
                shown.ends.extend(told.ends)
            _extend(shown, known, replica)
        if shown == told:
            return None
        self._told[number] = shown
        return shown


def _newest(shown: serving_pb2.ServingMoments) -> int:
    return shown.batch_ids[-1] if shown.batch_ids else -1


def _extend(shown: serving_pb2.ServingMoments, known: KnownMoments, replica: StoreReplica) -> None:
    """Add the batches behind the newest that is shown."""
    newest, found = _newest(shown), []
    for batch_id, ends in islice(reversed(known.batches), SHOWN_MAX):
        if batch_id <= newest:
            break
        end = ends.get(replica.partition, 0)
        following = partial(known.end_after, end, replica.partition)
        if end <= replica.position and replica.is_exact(end, following):
            found.append((batch_id, end))
    for batch_id, end in reversed(found):
        shown.batch_ids.append(batch_id)
        shown.ends.append(end)
    del shown.batch_ids[:-SHOWN_MAX], shown.ends[:-SHOWN_MAX]
