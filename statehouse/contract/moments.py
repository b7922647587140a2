"""Moments: the stores of a query as they were when one of its batches was whole, and how reads name them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, Self

from statehouse.contract.token_texts import data_in, packed, text_of, unpacked
from statehouse.contract.topology import STORE_KINDS, StoreSpec
from statehouse.contract.version_names import version_of
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import types_pb2

NONE: Final = -1
"""In place of a batch's id: the newest record names no batch, or there is no record."""
_MOMENTS_MAX: Final = 100
_TOKEN_BYTES_MAX: Final = _MOMENTS_MAX * 300
_WHAT: Final = "moment"


class MomentToken:
    """An immutable set of moments, one per query.

    `a | b` has the newer one of each. `str` gives text for a header or a URL; `parse` reads it.
    """

    __slots__ = ("_batches",)

    def __init__(self, batches: Mapping[str, int] | None = None) -> None:
        """Take batch ids by query id.

        Raises:
            ValueError: one is negative, or there are more than a hundred.

        """
        self._batches = dict(batches or {})
        if len(self._batches) > _MOMENTS_MAX:
            raise ValueError(f"{len(self._batches)} moments, where {_MOMENTS_MAX} are the most")
        for query_id, batch_id in self._batches.items():
            if batch_id < 0:
                raise ValueError(f"batch {batch_id} of query {query_id}: batches must not be negative")

    @classmethod
    def from_proto(cls, message: types_pb2.Moments) -> Self:
        """Read the wire form; of several of a query the newest counts.

        Raises:
            ValueError: as the constructor.

        """
        if len(message.moments) > _MOMENTS_MAX:
            raise ValueError(f"{len(message.moments)} moments, where {_MOMENTS_MAX} are the most")
        batches: dict[str, int] = {}
        for each in message.moments:
            if each.batch_id < 0:
                raise ValueError(f"batch {each.batch_id} of query {each.query_id}: batches must not be negative")
            batches[each.query_id] = max(each.batch_id, batches.get(each.query_id, 0))
        return cls(batches)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote.

        Raises:
            ValueError: it is no token.

        """
        data = data_in(text, _WHAT)
        return cls.from_proto(unpacked(data, types_pb2.Moments, _TOKEN_BYTES_MAX, _WHAT)) if data else cls()

    def __iter__(self) -> Iterator[str]:
        """Yield the queries."""
        return iter(self._batches)

    def batch(self, query_id: str) -> int | None:
        """Return the batch of a query, None if none is named."""
        return self._batches.get(query_id)

    def to_proto(self) -> types_pb2.Moments:
        """Return the wire form."""
        moments = [types_pb2.Moment(query_id=name, batch_id=batch) for name, batch in sorted(self._batches.items())]
        return types_pb2.Moments(moments=moments)

    def __str__(self) -> str:
        return text_of(packed(self.to_proto())) if self else ""

    def __repr__(self) -> str:
        return f"MomentToken({self._batches!r})"

    def __or__(self, other: MomentToken) -> MomentToken:
        if not other or self is other:
            return self
        merged = dict(self._batches)
        for query_id, batch_id in other._batches.items():
            merged[query_id] = max(batch_id, merged.get(query_id, 0))
        return MomentToken(merged)

    def __len__(self) -> int:
        return len(self._batches)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MomentToken) and self._batches == other._batches

    def __hash__(self) -> int:
        return hash(frozenset(self._batches.items()))


class Asked(Enum):
    """How a read names its batch."""

    NEWEST = auto()
    AT_LEAST = auto()
    EXACTLY = auto()


@dataclass(frozen=True, slots=True)
class MomentBound:
    """Which batch of its store's query a read is of: the newest one, that or a later one, or exactly one.

    `wait_ms` bounds how long a replica may wait for it; None: within the deadline.
    """

    asked: Asked = Asked.NEWEST
    token: MomentToken = field(default_factory=MomentToken)
    wait_ms: int | None = None

    @classmethod
    def from_proto(cls, message: types_pb2.MomentBound) -> Self:
        """Read the wire form.

        Raises:
            ValueError: it names nothing, or a negative batch.

        """
        wait_ms = message.wait_ms if message.HasField("wait_ms") else None
        match message.WhichOneof("bound"):
            case "newest":
                return cls(Asked.NEWEST, wait_ms=wait_ms)
            case "at_least":
                return cls(Asked.AT_LEAST, MomentToken.from_proto(message.at_least), wait_ms)
            case "exactly":
                return cls(Asked.EXACTLY, MomentToken.from_proto(message.exactly), wait_ms)
            case _:
                raise ValueError("the moment is missing: set newest, at_least or exactly")

    @property
    def may_wait(self) -> bool:
        """Whether a replica that is well may have to wait for it: hardly ever for its newest batch."""
        return self.asked is not Asked.NEWEST

    def to_proto(self) -> types_pb2.MomentBound:
        """Return the wire form."""
        if self.asked is Asked.NEWEST:
            return types_pb2.MomentBound(newest=True, wait_ms=self.wait_ms)
        moments: Any = {self.asked.name.lower(): self.token.to_proto()}
        return types_pb2.MomentBound(wait_ms=self.wait_ms, **moments)

    def is_of(self, version: str) -> bool:
        """Whether all batches that it names are of a version of the application; `version`: as stamps have it.

        Ids of queries end with the version, if it isn't the first one.
        """
        return all(version_of(query_id) == version for query_id in self.token)

    def exactly(self, query_id: str) -> int | None:
        """Return the only batch of a query that the read may be of, None if there are several."""
        return self.token.batch(query_id) if self.asked is Asked.EXACTLY else None

    def least(self, query_id: str) -> int:
        """Return the earliest batch of a query that the read may be of."""
        return self.token.batch(query_id) or 0


NEWEST: Final = MomentBound()
NEWEST_TEXT: Final = "newest"
"""What people write for it, in the place of a token."""


def bound_of_texts(moment: str | None, at_least: str | None) -> MomentBound | None:
    """Return the bound that people write: which moment, as a token or `NEWEST_TEXT`, and none before which.

    Raises:
        ValueError: a text is no token, or both say which.

    """
    if at_least is not None:
        if moment not in {None, NEWEST_TEXT}:
            raise ValueError("give a moment, or one that it must not be before, not both")
        return MomentBound(Asked.AT_LEAST, _token_of(at_least))
    if moment is None:
        return None
    return NEWEST if moment == NEWEST_TEXT else MomentBound(Asked.EXACTLY, _token_of(moment))


def _token_of(text: str) -> MomentToken:
    token = MomentToken.parse(text)
    if not token:
        raise ValueError("not a moment: it names no batch")
    return token


def why_none(spec: StoreSpec) -> str:
    """Return why a store shows no batches, whatever is written into it; empty if it shows some."""
    if spec.is_global:
        return "it is global"
    if spec.ephemeral:
        return "it is ephemeral"
    if spec.foreign or not spec.committed:
        return "no processor of ours writes it"
    return "" if spec.kind in STORE_KINDS else f"stores of kind {spec.kind} keep none"


def began_anew(store: str) -> LookupFailure:
    """Return the failure of a watch that goes on after a batch which is none of the store's any more."""
    return LookupFailure(
        Reason.MOMENT_GONE,
        f"the batches of store {store} began anew: its query has another checkpoint; watch it anew",
        {"store": store},
    )


def unavailable(store: str, why: str) -> LookupFailure:
    """Return the failure of a read of a store that shows no batch."""
    return LookupFailure(
        Reason.MOMENTS_UNAVAILABLE, f"store {store} can't be read as of a batch: {why}", {"store": store}
    )


@dataclass(frozen=True, slots=True)
class Again:
    """Which parts of a read are to be asked again, and for which batch of the query."""

    parts: Sequence[int]
    batch_id: int
    exactly: bool


def again(found: Sequence[int | None], newest: int = NONE) -> Again | None:
    """Return what is missing until all parts of a read are of one batch; None if they are.

    Parts answer with the newest batch that they show. All stand at or beyond the earliest of these, and are asked for
    that. If one of them has not kept it, because it is too far beyond or has restored since, all are asked for what
    the newest of them showed, or a later one: those that were behind wait for it.

    Args:
        found: the batch that each part's answer is of; None: it has not kept the one that it was asked for.
        newest: the newest batch that any answer has shown.

    """
    batches = [each for each in found if each is not None]
    if len(batches) < len(found):
        return Again(range(len(found)), max([newest, *batches]), exactly=False)
    target = min(batches, default=NONE)
    parts = [part for part, batch_id in enumerate(found) if batch_id != target]
    return Again(parts, target, exactly=True) if parts else None
