"""Which batch a replica shows to a read that asks for one, and reads of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

from query_service.reads.position_waits import ReplicaBehind
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.stores.engine import MomentGone
from statehouse.contract.committed_moments import (
    Chosen,
    CommittedMoments,
    KnownMoments,
    Missed,
    chosen,
    gone,
    not_reached,
)
from statehouse.contract.consistency import Freshness
from statehouse.contract.moments import Asked, MomentBound, MomentToken, again, unavailable, why_none
from statehouse.errors import LookupFailure
from statehouse.v1 import types_pb2

_AS_IT_IS: Final = nullcontext()


@dataclass(frozen=True, slots=True)
class Admitted:
    """A replica that may answer, and its stamp, taken before the read.

    `moment` is the batch that the answer is of, None if it is of what the replica has. `is_open`: the caller would take
    another one, too. `failed` makes the failure of a read whose batch the engine doesn't keep.
    """

    replica: StoreReplica
    stamp: types_pb2.ReplicaStamp
    moment: Chosen | None = None
    is_open: bool = False
    failed: Callable[[], LookupFailure] | None = None

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which this thread reads the replica's store as of the batch.

        Raises:
            ReplicaBehind, LookupFailure: MOMENT_GONE, as it is entered or by a read.

        """
        return _AS_IT_IS if self.moment is None else self._reading(self.moment)

    @contextmanager
    def _reading(self, moment: Chosen) -> Iterator[None]:
        try:
            with self.replica.at(moment):
                yield
        except MomentGone as error:
            assert self.failed is not None  # noqa: S101 - it comes with the moment
            raise self.failed() from error


class ReplicaMoments:
    """Chooses batches, by what the commits topic says of them."""

    def __init__(self, committed: CommittedMoments) -> None:
        self._committed = committed

    @property
    def read_at_s(self) -> float | None:
        """Up to which time all that the commits topic had is known, on the monotonic clock; None before that."""
        return self._committed.read_at_s

    def known(self, replica: StoreReplica) -> KnownMoments:
        """Return the batches of a replica's store.

        Raises:
            LookupFailure: MOMENTS_UNAVAILABLE.

        """
        if not replica.keeps_moments:
            raise unavailable(replica.spec.name, why_none(replica.spec) or "its engine keeps none")
        return self._committed.of(replica.spec.name)

    def admitted(
        self,
        bound: Freshness,
        moment: MomentBound,
        task: TaskReplica,
        replica: StoreReplica,
        stamp: types_pb2.ReplicaStamp,
    ) -> Admitted:
        """Return a replica with the batch that it shows, and have its stamp say so.

        Raises:
            ReplicaBehind: it may show one a little later.
            LookupFailure: MOMENTS_UNAVAILABLE; MOMENT_GONE.

        """
        spec, partition = replica.spec, replica.partition
        found = self._choice(bound, moment, replica)
        if isinstance(found, Missed):
            if not found.passes:
                raise found.failure

            def is_reached() -> bool:
                return not isinstance(self._choice(bound, moment, replica), Missed)

            raise ReplicaBehind(found.failure, task, replica, is_reached, moment.wait_ms)
        position = stamp.position
        found.mark(stamp)

        is_open = moment.exactly(found.query_id) is None

        def failed() -> LookupFailure:
            """Its engine has dropped the batch: for what was written since, or it was closed meanwhile."""
            known = self._committed.of(spec.name)
            if not is_open:
                return gone(known, spec.name, partition, found.batch_id)
            failure = not_reached(known, spec.name, partition, found.batch_id + 1)
            return ReplicaBehind(failure, task, replica, lambda: replica.position != position, moment.wait_ms)

        return Admitted(replica, stamp, found, is_open, failed)

    def _choice(self, bound: Freshness, moment: MomentBound, replica: StoreReplica) -> Chosen | Missed:
        store, partition = replica.spec.name, replica.partition
        known = self.known(replica)
        least = 0 if bound.at_least is None else bound.at_least.position(store, partition)

        def shows(_batch_id: int, end: int) -> bool:
            return end >= least and replica.is_exact(end, lambda: known.end_after(end, partition))

        return chosen(moment, known, store, partition, replica.position, shows)


def moment_in(stamp: types_pb2.ReplicaStamp) -> types_pb2.Moment | None:
    """Return the batch that an answer is of, None if it was asked for none."""
    return stamp.moment if stamp.HasField("moment") else None


def agreed(found: Sequence[Admitted], ask_again: Callable[[int, MomentBound], Admitted]) -> Sequence[Admitted]:
    """Return the parts of a read that one node answers so that all of a query's are of one batch.

    Args:
        found: the parts.
        ask_again: admits one of them for exactly this batch.

    Raises:
        ReplicaBehind, LookupFailure: as `ReplicaMoments.admitted`.

    """
    parts = list(found)
    batches: dict[str, dict[int, int]] = {}  # by query and place
    for place, each in enumerate(found):
        if each.moment is not None and each.is_open:
            batches.setdefault(each.moment.query_id, {})[place] = each.moment.batch_id
    for query_id, by_place in batches.items():
        places = list(by_place)
        step = again(list(by_place.values()))
        if step is not None:
            bound = MomentBound(Asked.EXACTLY, MomentToken({query_id: step.batch_id}))
            for part in step.parts:
                parts[places[part]] = ask_again(places[part], bound)
    return parts
