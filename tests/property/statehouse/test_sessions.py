"""A session over replicas that lag as they like: what it sees of a partition never goes back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.client import Answer, AsyncReadSession, Token
from statehouse.client.conversion import from_get
from statehouse.client.moments import SeenMoments
from statehouse.contract.consistency import Freshness, ReplicaFreshness, violation
from statehouse.contract.topology import Role
from statehouse.errors import LookupFailure
from statehouse.v1 import query_service_pb2, types_pb2

REPLICAS, PARTITIONS = 3, 2


@dataclass
class Replicas:
    """Stands for the lookups: the replica whose turn it is answers by the real rule, from wherever it has got to."""

    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    positions: list[list[int]] = field(default_factory=lambda: [[0] * PARTITIONS for _ in range(REPLICAS)])
    turn: int = 0

    async def wire_key(self, store: str, key: str, seconds: float) -> types_pb2.Key:  # noqa: ARG002 - the lookups'
        return types_pb2.Key(text=key)

    async def get(self, request: query_service_pb2.GetRequest, seconds: float) -> Answer:  # noqa: ARG002 - the lookups'
        partition = int(request.key.text)
        position = self.positions[self.turn][partition]
        known = ReplicaFreshness(Role.STANDBY, confirmed=True, lag=None, staleness_ms=None, position=position)
        broken = violation(Freshness.from_proto(request.freshness), known, request.store, partition)
        if broken is not None:
            raise LookupFailure(*broken)
        stamp = types_pb2.ReplicaStamp(partition=partition, position=position)
        return from_get(query_service_pb2.GetResponse(found=False, replica=stamp), request.store)


actions = st.one_of(
    st.tuples(st.just("write"), st.integers(0, PARTITIONS - 1), st.integers(1, 5)),
    st.tuples(st.just("replicate"), st.integers(0, REPLICAS - 1), st.integers(0, PARTITIONS - 1), st.integers(1, 5)),
    st.tuples(st.just("wipe"), st.integers(0, REPLICAS - 1)),
    st.tuples(st.just("read"), st.integers(0, REPLICAS - 1), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("resume")),
)


@pytest.mark.feature("least-position-read")
@given(st.lists(actions, max_size=60))
def test_what_a_session_sees_never_goes_back(steps: list[tuple[Any, ...]]) -> None:
    replicas = Replicas()

    def begin(token: Token | None = None) -> AsyncReadSession:
        return AsyncReadSession(
            cast("Any", SimpleNamespace(router=None, lookups=replicas, moments=SeenMoments())), 1.0, token
        )

    async def run() -> None:
        session = begin()
        seen = [0] * PARTITIONS
        for step in steps:
            match step:
                case ("write", partition, count):
                    replicas.ends[partition] += count
                case ("replicate", replica, partition, count):
                    reached = replicas.positions[replica][partition] + count
                    replicas.positions[replica][partition] = min(replicas.ends[partition], reached)
                case ("wipe", replica):
                    replicas.positions[replica] = [0] * PARTITIONS
                case ("resume",):
                    session = begin(Token.parse(str(session.token)))
                case ("read", replica, partition):
                    replicas.turn = replica
                    try:
                        answer = await session.get("s", str(partition))
                    except LookupFailure:
                        assert replicas.positions[replica][partition] < seen[partition]
                        continue
                    assert answer.position is not None
                    assert answer.position >= seen[partition]
                    seen[partition] = answer.position

    asyncio.run(run())
