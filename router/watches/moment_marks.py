"""Marks of moments: when a batch has ended in all partitions of a watch, and which of them must wait until then. Pure.

Each partition's node sends changes up to the end of a batch, and says which. Mostly all name the same one. A node that
knows fewer batches leaves some out; so the next mark is the latest batch that a partition has begun to lead up to, and
the others go on to it. A partition that has reached it waits: what it has next belongs to a later batch. Nothing is
kept meanwhile: what is not read stays in the nodes' logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from statehouse.contract.moments import NONE, began_anew
from statehouse.v1 import query_service_pb2, types_pb2


@dataclass(frozen=True, slots=True)
class _Partition:
    """How far a partition is: the batch at whose end it stood last, and where that was."""

    batch_id: int
    position: query_service_pb2.WatchPosition | None = None


class MomentMarks:
    """The marks of a watch of several partitions of a store."""

    def __init__(
        self, store: str, partitions: Iterable[int], resumed: Mapping[int, query_service_pb2.WatchPosition]
    ) -> None:
        """Begin; `resumed`: where partitions go on, at what an earlier watch said."""
        self._store = store
        self._query_id: str | None = None
        self._is_certain = False  # whether it is of this watch
        self._last = self._goal = NONE
        self._partitions = {each: _Partition(NONE) for each in partitions}
        for each, position in resumed.items():
            if each in self._partitions and position.HasField("after"):
                self._query_id = position.after.query_id
                self._last = self._goal = max(self._last, position.after.batch_id)

    @property
    def goal(self) -> int:
        """The batch that is marked next, or was last."""
        return self._goal

    @property
    def last(self) -> types_pb2.Moment | None:
        """The batch that was marked last, here or before the watch was resumed; None if there is none."""
        if self._last == NONE or self._query_id is None:
            return None
        return types_pb2.Moment(query_id=self._query_id, batch_id=self._last)

    def may_pass(self, partition: int, moment: types_pb2.Moment, *, begins: bool) -> bool:
        """Whether events that lead up to a batch's end may be sent now. `begins`: they replace what was sent before.

        Raises:
            LookupFailure: MOMENT_GONE, the batch is of another query than those before.

        """
        if self._query_id != moment.query_id and not self._is_certain:
            self._query_id, self._last, self._goal = moment.query_id, NONE, NONE
        self._is_certain = True
        if self._query_id != moment.query_id:
            raise began_anew(self._store)
        standing = self._partitions[partition]
        if begins:
            self._partitions[partition] = _Partition(NONE)
        elif standing.batch_id == self._goal and self._goal > self._last:
            return False
        self._goal = max(self._goal, moment.batch_id)
        return True

    def ended(
        self, partition: int, moment: types_pb2.Moment, position: query_service_pb2.WatchPosition
    ) -> query_service_pb2.WatchMark | None:
        """Note that everything up to a batch's end was sent; return the mark that is due now, None if none is."""
        self._partitions[partition] = _Partition(moment.batch_id, position)
        if self._goal == self._last or any(each.batch_id != self._goal for each in self._partitions.values()):
            return None
        self._last = self._goal
        positions = [each.position for each in self._partitions.values() if each.position is not None]
        return query_service_pb2.WatchMark(moment=moment, positions=positions)
