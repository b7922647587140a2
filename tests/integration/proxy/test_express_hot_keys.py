"""Lookups of a key that is asked for very often go to all good copies, as far as their bounds allow that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import grpc.aio

from statehouse.control.v1.express_pb2 import ExpressSnapshot
from statehouse.errors import LookupFailure, Reason
from statehouse.link.link import LinkContext
from statehouse.rpc.channels import channel
from statehouse.serdes.wire import framed, frames, result_of
from statehouse.v1 import query_service_pb2, types_pb2
from tests.integration.proxy.served import BATCH_GET, GET, MAX_BYTES, Served, call, served
from tests.integration.proxy.test_express import snapshot_of, tell

AT_ONCE: Final = 32
WITHIN: Final = types_pb2.Freshness(max_staleness_ms=60_000)
HOUR_US: Final = 3_600_000_000


def lookup(key: str, bound: types_pb2.Freshness | None = WITHIN) -> bytes:
    request = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text=key), freshness=bound)
    return request.SerializeToString()


class Copy:
    """What a node is asked for; it answers with its name while it may, and refuses what is beyond a bound."""

    def __init__(self, name: str, node: Served) -> None:
        self.name, self.asked, self.refuses = name, 0, False
        self.was_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        node.get = self.get  # type: ignore[assignment,method-assign]
        node.batch_get = self.batch_get  # type: ignore[method-assign]

    async def _answer(self) -> bytes:
        self.asked += 1
        self.was_asked.set()
        await self.may_answer.wait()
        if self.refuses:
            raise LookupFailure(Reason.LAG_EXCEEDS_BOUND, "too far behind")
        return self.name.encode()

    def get(self, request: bytes, context: LinkContext) -> Awaitable[bytes]:  # noqa: ARG002 - each is answered alike
        return self._answer()

    def batch_get(self, request: bytes, context: LinkContext) -> Awaitable[bytes]:  # noqa: ARG002 - likewise
        async def results() -> bytes:
            answers = await asyncio.gather(*(self._answer() for _ in frames(request)), return_exceptions=True)
            return framed(result_of(each) for each in answers if isinstance(each, bytes | LookupFailure))

        return results()


@dataclass
class Spread:
    """A router whose proxy may send lookups of a partition to two copies."""

    router: Served
    first: Copy
    other: Copy
    at: grpc.aio.Channel
    by_router: int = 0

    async def ask(self, request: bytes) -> bytes:
        answer = await call(self.at, GET, request)
        assert isinstance(answer, list)
        self.by_router += answer[0] == b"router"
        return answer[0]

    async def many(self, request: bytes, times: int = 40) -> None:
        """Ask very often, many at a time."""
        for _ in range(times):
            await asyncio.gather(*(self.ask(request) for _ in range(AT_ONCE)))


@asynccontextmanager
async def spread(pause_us: int = HOUR_US) -> AsyncIterator[Spread]:
    async with served() as one, served() as two, served() as router, channel(router.target, MAX_BYTES) as at:
        found = Spread(router, Copy("first", one), Copy("other", two), at)
        router.get = lambda request, context: b"router"  # type: ignore[method-assign] # noqa: ARG005
        snapshot: ExpressSnapshot = snapshot_of(one, 5.0, two)
        snapshot.max_batch_entries, snapshot.batch_late_after_us = 1_000, 5_000_000
        snapshot.spread.percent, snapshot.spread.least, snapshot.spread.half_life_us = 20, 10, HOUR_US
        snapshot.spread.pause_us = pause_us
        await tell(router, snapshot, one)
        yield found


async def test_both_copies_are_asked_for_a_key_that_is_asked_for_very_often() -> None:
    async with spread() as it:
        await it.many(lookup("hot"))
        assert it.by_router == 0
        assert min(it.first.asked, it.other.asked) > 0.2 * (it.first.asked + it.other.asked)


async def test_a_copy_that_answers_nothing_gets_no_more_than_the_others_have_under_way() -> None:
    async with spread() as it:
        await it.many(lookup("hot"), 1)
        it.first.may_answer.clear()
        it.first.was_asked.clear()
        before = it.first.asked
        stuck = asyncio.ensure_future(it.ask(lookup("hot")))
        await asyncio.wait_for(it.first.was_asked.wait(), 10)
        for _ in range(50):
            assert await it.ask(lookup("hot")) == b"other"
        assert it.first.asked == before + 1
        it.first.may_answer.set()
        assert await stuck == b"first"


async def test_other_lookups_go_to_the_first_copy_alone() -> None:
    async with spread() as it:
        await it.many(lookup("hot", None))
        assert it.other.asked == 0, "without a bound the active answers"
        for number in range(20):
            await asyncio.gather(*(it.ask(lookup(f"k{number}-{each}")) for each in range(AT_ONCE)))
        assert it.other.asked == 0, "no key is asked for very often"
        assert it.by_router == 0


async def test_lookups_of_a_batch_with_a_bound_go_to_the_first_copy_until_it_refuses() -> None:
    async with spread() as it:
        asked: list[int] = []

        async def rest(request: bytes) -> bytes:
            asked.append(len(frames(request)))
            return framed(result_of(b"router") for _ in frames(request))

        async def answers(*lookups: bytes) -> list[bytes]:
            answer = await call(it.at, BATCH_GET, framed(lookups))
            assert isinstance(answer, list)
            return frames(answer[0])

        it.router.batch_get = lambda request, context: rest(request)  # type: ignore[method-assign] # noqa: ARG005
        some = (lookup("a"), lookup("b", None), lookup("c"))
        assert await answers(*some) == [result_of(b"first")] * 3
        assert asked == []
        it.first.refuses = True
        assert await answers(*some) == [result_of(b"router")] * 3
        before = it.first.asked
        it.first.refuses = False
        assert await answers(*some) == [result_of(each) for each in (b"router", b"first", b"router")]
        assert await it.ask(lookup("a")) == b"router", "a lookup alone knows of it, too"
        assert it.first.asked == before + 1
        assert it.other.asked == 0
        assert asked == [3, 2]


async def test_a_copy_beyond_the_bound_is_the_routers_to_ask_for_a_while() -> None:
    """The router answers what it has refused."""
    async with spread() as it:
        it.other.refuses = True
        await it.many(lookup("hot"))
        assert 0 < it.other.asked == it.by_router <= AT_ONCE
        it.first.refuses = True
        assert await it.ask(lookup("hot")) == b"router"
        before = it.first.asked
        assert await it.ask(lookup("hot")) == b"router"
        assert await it.ask(lookup("cold")) == b"router"
        assert it.first.asked == before
        assert await it.ask(lookup("hot", None)) == b"router", "who has no bound is refused, too, by this node"
        assert it.first.asked == before + 1


async def test_a_copy_is_asked_again_after_its_pause() -> None:
    async with spread(pause_us=1_000) as it:
        it.first.refuses = True
        assert await it.ask(lookup("cold")) == b"router"
        it.first.refuses = False
        async with asyncio.timeout(10):
            while await it.ask(lookup("cold")) != b"first":
                pass
