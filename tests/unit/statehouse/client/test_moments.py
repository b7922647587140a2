"""Reads of a moment by the client, against a router in this process, and straight at nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from statehouse.client import (
    Answer,
    Asked,
    AsyncClient,
    Client,
    Freshness,
    Lookup,
    MomentBound,
    MomentToken,
)
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.partitioning import partition_for
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fake_router import FakeRouter, fake_router
from tests.unit.router.conftest import start as start  # noqa: PLC0414 - the router's own fleets
from tests.unit.router.fake_nodes import FakeNode, Fleet
from tests.unit.router.fleets import STORE
from tests.unit.statehouse.client.test_sessions import READS

Start = Callable[..., Awaitable[Fleet]]
NEWEST = MomentBound()
OF_MOMENT = Freshness(moment=NEWEST)
OF_A_MOMENT = READS.keys() - {"query_store"}
KEYS = [f"key-{number}" for number in range(12)]


def exactly(batch_id: int) -> MomentBound:
    return MomentBound(Asked.EXACTLY, MomentToken({"q": batch_id}))


def at_least(batch_id: int) -> MomentBound:
    return MomentBound(Asked.AT_LEAST, MomentToken({"q": batch_id}))


class Shown:
    """What a router shows: the batch that is asked for, or the newest one, which is another each time."""

    def __init__(self, newest: int = 4) -> None:
        self.newest = newest

    def __call__(self, bound: MomentBound) -> types_pb2.Moment:
        self.newest += 1
        batch_id = bound.exactly("q")
        return types_pb2.Moment(query_id="q", batch_id=self.newest if batch_id is None else batch_id)


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with fake_router() as router:
        router.values = {"1": {"score": 1}, "6": {"score": 6}}
        router.shows = Shown()
        yield router


@pytest.fixture
def client(router: FakeRouter) -> Iterator[Client]:
    with Client(router.target, direct=False) as client:
        yield client


def asked(router: FakeRouter, nth: int = -1) -> MomentBound:
    """Return the moment that a request, the last one say, asks for."""
    request = router.requests[nth]
    request = request.requests[0] if isinstance(request, query_service_pb2.BatchGetRequest) else request
    return MomentBound.from_proto(request.freshness.moment)


def test_answers_name_the_batch_that_they_are_of(client: Client) -> None:
    found = [
        client.get("boards", "1", freshness=OF_MOMENT).moment,
        client.get_as_of("boards", "1", freshness=OF_MOMENT).moment,
        next(client.pages("boards", freshness=OF_MOMENT)).moment,
        next(client.window_pages("boards", freshness=OF_MOMENT)).moment,
        next(client.session_pages("boards", freshness=OF_MOMENT)).moment,
        client.count("boards", freshness=OF_MOMENT).moment,
    ]
    assert found == [MomentToken({"q": batch_id}) for batch_id in range(5, 11)]
    assert client.get("boards", "1").moment is None
    (outcome,) = client.batch_get([Lookup("boards", "1", OF_MOMENT)])
    assert isinstance(outcome, Answer)
    assert outcome.moment == MomentToken({"q": 11})


@pytest.mark.parametrize("name", sorted(READS))
def test_an_answer_without_the_moment_that_was_asked_for_is_none(client: Client, router: FakeRouter, name: str) -> None:
    """The router, or a node behind it, is of an earlier version."""
    router.shows = None

    class OfMoment:
        def __getattr__(self, method: str) -> Any:
            return lambda *arguments: getattr(client, method)(*arguments, freshness=OF_MOMENT)

    if name == "batch_get":
        (outcome,) = client.batch_get([Lookup("boards", "1", OF_MOMENT)])
        assert isinstance(outcome, LookupFailure)
        assert outcome.reason is Reason.MOMENTS_UNAVAILABLE
        return
    with pytest.raises(LookupFailure, match="earlier version") as caught:
        READS[name](OfMoment())
    assert caught.value.reason is Reason.MOMENTS_UNAVAILABLE


@pytest.mark.parametrize("name", sorted(OF_A_MOMENT))
def test_all_reads_in_a_moment_are_of_the_batch_of_the_first(client: Client, router: FakeRouter, name: str) -> None:
    with client.moment() as moment:
        READS[name](moment)
        assert asked(router, 0) == NEWEST
        assert moment.moment == MomentToken({"q": 5})
        assert moment.get("boards", "1").moment == MomentToken({"q": 5})
        READS[name](moment)
        assert asked(router) == exactly(5)
        assert moment.moment == MomentToken({"q": 5})


def test_pages_are_of_one_batch_though_a_router_of_an_earlier_version_gives_tokens_without_it(
    client: Client, router: FakeRouter
) -> None:
    of_newest = Freshness(moment=replace(NEWEST, wait_ms=7))
    shown = [page.moment for page in client.pages("boards", page_size=1, freshness=of_newest)]
    assert shown == [MomentToken({"q": 5})] * 2
    assert asked(router, 0) == replace(NEWEST, wait_ms=7)
    assert asked(router, 1) == replace(exactly(5), wait_ms=7)


def test_a_later_moment_is_none_before_those_that_the_client_has_seen(client: Client, router: FakeRouter) -> None:
    client.get("boards", "1", freshness=OF_MOMENT)
    with client.moment() as moment:
        moment.get("boards", "1")
        assert asked(router) == at_least(5)
    with client.moment(at_least=MomentToken({"q": 3, "r": 9})) as moment:
        assert not moment.moment
        moment.count("boards")
        assert asked(router) == MomentBound(Asked.AT_LEAST, MomentToken({"q": 6, "r": 9}))
        assert repr(moment) == f"MomentReads({router.target!r}, moment={str(MomentToken({'q': 7}))!r})"


def test_a_moment_of_one_query_leaves_another_query_to_find_its_own(client: Client, router: FakeRouter) -> None:
    client.get("boards", "1", freshness=OF_MOMENT)
    router.shows = lambda bound: types_pb2.Moment(query_id="r", batch_id=bound.exactly("r") or 9)
    with client.moment() as moment:
        moment.get("boards", "1")
        assert asked(router) == at_least(5), "as the client knows, the store is q's"
        moment.get("boards", "1")
        assert asked(router) == MomentBound(Asked.EXACTLY, MomentToken({"r": 9}))


def test_a_moment_has_other_bounds_but_no_other_moment(client: Client, router: FakeRouter) -> None:
    with client.moment() as moment:
        moment.get("boards", "1", freshness=Freshness(max_lag=5))
        assert router.requests[-1].freshness.max_lag == 5
        assert asked(router) == NEWEST
        with pytest.raises(ValueError, match="a moment of their own"):
            moment.get("boards", "1", freshness=OF_MOMENT)


async def test_reads_that_begin_together_are_of_one_batch(router: FakeRouter) -> None:
    async with AsyncClient(router.target, direct=False) as client, client.moment() as moment:
        reads = [moment.get("boards", "1"), moment.count("boards"), moment.get("boards", "6")]
        found = await asyncio.gather(*reads)
        assert {each.moment for each in found} == {MomentToken({"q": 5})}
        assert [entry.key async for entry in moment.scan("boards")] == ["1", "6"]
        assert repr(moment).startswith("AsyncMomentReads(")


def test_a_moment_that_is_gone_fails_and_another_one_begins(client: Client, router: FakeRouter) -> None:
    with client.moment() as moment:
        moment.get("boards", "1")
        router.passing.append(LookupFailure(Reason.MOMENT_GONE, "not kept"))
        with pytest.raises(LookupFailure) as caught:
            moment.get("boards", "1")
        assert caught.value.reason is Reason.MOMENT_GONE
    assert client.moment().get("boards", "1").found


def test_the_keys_of_several_calls_are_of_one_batch(client: Client, router: FakeRouter) -> None:
    """As of a router of an earlier version, or where keys are too many for one call."""
    outcomes = client.batch_get([Lookup("boards", key, OF_MOMENT) for key in KEYS])
    assert {outcome.moment for outcome in outcomes if isinstance(outcome, Answer)} == {MomentToken({"q": 5})}
    assert len(outcomes) == len(KEYS)
    assert asked(router) == exactly(5)
    assert len(router.requests[-1].requests) == len(KEYS) - 1


def test_a_batch_may_ask_for_several_moments(client: Client, router: FakeRouter) -> None:
    router.shows = Shown(newest=20)
    bounds = [ANY_MOMENT, Freshness(moment=exactly(3)), Freshness(moment=exactly(4)), OF_MOMENT, OF_MOMENT]
    outcomes = client.batch_get([Lookup("boards", "1", bound) for bound in bounds])
    assert [outcome.moment for outcome in outcomes if isinstance(outcome, Answer)] == [
        None,
        *(MomentToken({"q": batch_id}) for batch_id in (3, 4, 23, 23)),
    ]


ANY_MOMENT = Freshness()


def test_keys_that_never_agree_fail(client: Client, router: FakeRouter) -> None:
    shown = Shown()
    router.shows = lambda _bound: shown(NEWEST)
    outcomes = client.batch_get([Lookup("boards", key, OF_MOMENT) for key in KEYS])
    assert {outcome.reason for outcome in outcomes if isinstance(outcome, LookupFailure)} == {Reason.MOMENT_NOT_REACHED}
    assert len(outcomes) == len(KEYS)


@pytest.fixture
async def spread(start: Start) -> AsyncIterator[tuple[AsyncClient, FakeNode, FakeNode]]:
    """Partitions 0 and 2 on a, 1 on b, which shows fewer batches; and a client that goes straight to both."""
    fleet = await start("a", "b")
    await fleet.publish(TaskAssignment("a"), TaskAssignment("b"), TaskAssignment("a"), epoch=2)
    a, b = fleet.nodes["a"], fleet.nodes["b"]
    a.kept, b.kept = [5, 6, 7], [5, 6]
    for name in fleet.nodes:
        fleet.heartbeat(name, 3)
    async with AsyncClient(f"127.0.0.1:{fleet.router.port}") as client:
        async with asyncio.timeout(10):
            while 0 not in hops(a) & hops(b):
                await asyncio.gather(*(client.get(STORE, key) for key in KEYS))
        for node in (a, b):
            node.gets.clear()
            node.batches.clear()
        yield client, a, b


def hops(node: FakeNode) -> set[int]:
    return {each.forwarding.hops for each in [*node.gets, *(each for batch in node.batches for each in batch)]}


async def test_keys_at_several_nodes_are_of_one_batch(spread: tuple[AsyncClient, FakeNode, FakeNode]) -> None:
    client, a, b = spread
    outcomes = await client.batch_get([Lookup(STORE, key, OF_MOMENT) for key in KEYS])
    assert {outcome.moment for outcome in outcomes if isinstance(outcome, Answer)} == {MomentToken({"q": 6})}
    assert len(outcomes) == len(KEYS)
    assert hops(a) == hops(b) == {0}


async def test_a_node_that_has_not_kept_the_batch_has_the_others_wait_for_it(
    spread: tuple[AsyncClient, FakeNode, FakeNode],
) -> None:
    client, a, b = spread
    a.kept = [40]

    def goes_on() -> None:
        b.kept = [5, 6, 40]

    b.on_shown = goes_on
    outcomes = await client.batch_get([Lookup(STORE, key, OF_MOMENT) for key in KEYS])
    assert {outcome.moment for outcome in outcomes if isinstance(outcome, Answer)} == {MomentToken({"q": 40})}
    assert len(outcomes) == len(KEYS)


async def test_what_a_node_of_an_earlier_version_says_is_left_to_the_router(
    spread: tuple[AsyncClient, FakeNode, FakeNode],
) -> None:
    client, a, _ = spread
    a.kept = None
    key = next(key for key in KEYS if partition_for(key.encode(), 3) != 1)
    with pytest.raises(LookupFailure) as caught:
        await client.get(STORE, key, freshness=OF_MOMENT)
    assert caught.value.reason is Reason.MOMENTS_UNAVAILABLE
    assert hops(a) == {0, 1}
    (failure,) = await client.batch_get([Lookup(STORE, key, OF_MOMENT)])
    assert isinstance(failure, LookupFailure)
    assert failure.reason is Reason.MOMENTS_UNAVAILABLE
    assert (await client.get(STORE, key)).host.instance_id == "a"
