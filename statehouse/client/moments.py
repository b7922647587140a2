"""Moments in the client: what its reads have seen of them, and whether an answer shows one that was asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from statehouse.client.answers import Answer
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2


@dataclass(slots=True)
class SeenMoments:
    """The newest batch of each query that a client's reads have seen, and each store's query."""

    token: MomentToken = field(default_factory=MomentToken)
    query_of: dict[str, str] = field(default_factory=dict)

    def note(self, store: str, moment: MomentToken | None) -> None:
        """Note the batch that an answer is of; None: it is of none."""
        if moment is not None:
            self.token |= moment
            (self.query_of[store],) = moment


@dataclass(slots=True)
class PinnedMoment:
    """The batches of a moment, one of each query: the one that the first answer showed. None is before `least`."""

    least: MomentToken
    seen: SeenMoments
    token: MomentToken = field(default_factory=MomentToken)

    def is_pinned(self, store: str) -> bool:
        """Whether it is known which batch reads of a store are of."""
        return self.token.batch(self.seen.query_of.get(store, "")) is not None

    def bound(self, store: str) -> MomentBound:
        """Return the bound of a read of a store."""
        query_id = self.seen.query_of.get(store)
        if self.token and (query_id is None or self.token.batch(query_id) is not None):
            return MomentBound(Asked.EXACTLY, self.token)
        return MomentBound(Asked.AT_LEAST, self.least) if self.least else MomentBound()

    def note(self, store: str, moment: MomentToken | None) -> None:
        """Note the batch that an answer is of."""
        self.seen.note(store, moment)
        if moment is not None and not self.is_pinned(store):
            self.token |= moment


def shown_by(store: str, bounds: types_pb2.Freshness, stamps: Iterable[types_pb2.ReplicaStamp]) -> MomentToken | None:
    """Return the batch that an answer is of; None if the read asked for none.

    Raises:
        LookupFailure: MOMENTS_UNAVAILABLE, its parts show several, or none. Routers and nodes of earlier versions
            ignore what they don't know, and answer with what there is.

    """
    if not bounds.HasField("moment"):
        return None
    shown = {(each.moment.query_id, each.moment.batch_id) if each.HasField("moment") else None for each in stamps}
    moment = shown.pop() if len(shown) == 1 else None
    if moment is None:
        raise unshown(store)
    return MomentToken(dict([moment]))


def is_unshown(request: query_service_pb2.GetRequest, outcome: Answer | LookupFailure) -> bool:
    """Whether an answer is of no batch, though one was asked for."""
    return isinstance(outcome, Answer) and outcome.moment is None and request.freshness.HasField("moment")


def unshown(store: str) -> LookupFailure:
    """Return the failure of a read that was answered without the moment that it asked for."""
    return LookupFailure(
        Reason.MOMENTS_UNAVAILABLE,
        f"the answer about store {store} is of no batch: the router or a node is of an earlier version",
        {"store": store},
    )
