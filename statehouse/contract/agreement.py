"""How the parts of a read come to show one batch, though nobody tells replicas which. Pure.

Each part is asked for its newest batch. Mostly all show the same. Those that don't are asked again, as `moments.again`
says, so neither routers nor clients must know which batches there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from statehouse.contract.moments import NONE, Again, Asked, MomentBound, MomentToken, again
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import errors_pb2, types_pb2

ROUNDS: Final = 5
"""So often parts are asked at most.

For the newest; for at least what all bounds say; for the earliest of these; if one has not kept that, for at least the
newest of these, and for the earliest of those.
"""
_NAMED_MAX: Final = 10

Part = TypeVar("Part", bound=Hashable)


class Agreement(Generic[Part]):
    """The parts of a read of one query's stores, and the batch that each one shows."""

    def __init__(self, query_id: str, bounds: Iterable[MomentBound]) -> None:
        """Begin; `bounds` are those of the parts: none of them names exactly one batch of the query."""
        self._query_id = query_id
        self._least = max((each.least(query_id) for each in bounds), default=0)
        self._newest = NONE
        self._rounds = 0
        self._found: dict[Part, int | None] = {}
        self._names: dict[Part, str] = {}

    def shows(self, part: Part, name: str, batch_id: int | None) -> None:
        """Take which batch a part's answer is of; None: it has not kept the one that it was asked for.

        `name`: what the part is, for people.
        """
        self._found[part], self._names[part] = batch_id, name
        self._newest = max(self._newest, NONE if batch_id is None else batch_id)

    def leaves(self, part: Part) -> None:
        """Take that a part can't be answered, so that the others need not agree with it."""
        self._found.pop(part, None)

    @property
    def parts(self) -> Sequence[Part]:
        """The parts."""
        return list(self._found)

    def next(self) -> tuple[Sequence[Part], MomentBound] | None:
        """Return the parts to ask again, and for what; None if all show the same batch.

        Raises:
            LookupFailure: MOMENT_NOT_REACHED, they still don't.

        """
        parts = self.parts
        step = again(list(self._found.values()), self._newest)
        if step is not None and step.exactly and step.batch_id < self._least:
            step = Again(range(len(parts)), self._least, exactly=False)
        if step is None:
            return None
        self._rounds += 1
        if self._rounds == ROUNDS:
            raise self._failure()
        asked = Asked.EXACTLY if step.exactly else Asked.AT_LEAST
        return [parts[each] for each in step.parts], MomentBound(asked, MomentToken({self._query_id: step.batch_id}))

    def _failure(self) -> LookupFailure:
        had = sorted(
            {
                f"{self._names[part]} showed {'none of them' if batch_id is None else batch_id}"
                for part, batch_id in self._found.items()
            }
        )
        more = ", …" if len(had) > _NAMED_MAX else ""
        message = f"the parts of the read show no batch that all of them have: {', '.join(had[:_NAMED_MAX])}{more}"
        return LookupFailure(
            Reason.MOMENT_NOT_REACHED, message, {"query_id": self._query_id, "newest": str(self._newest)}
        )


def is_gone(failure: LookupFailure) -> bool:
    """Whether a part could not be answered because its batch is not kept, at least at one of the nodes asked."""
    return failure.reason is Reason.MOMENT_GONE or any(
        each.reason == errors_pb2.ERROR_REASON_MOMENT_GONE for each in failure.candidates
    )


def batch_shown(moment: types_pb2.Moment, query_id: str) -> int | None:
    """Return the batch that an answer is of; None if it is another query's: the store has been made anew."""
    return moment.batch_id if moment.query_id == query_id else None


def ask_for(freshness: types_pb2.Freshness, bound: MomentBound) -> None:
    """Have a request ask for another batch. For how long it may wait stays."""
    wait_ms = freshness.moment.wait_ms if freshness.moment.HasField("wait_ms") else None
    freshness.moment.CopyFrom(bound.to_proto())
    if wait_ms is not None:
        freshness.moment.wait_ms = wait_ms
