"""Batches that the proxy splits by node are answered as a router without a proxy answers them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc.aio
import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.control.v1.express_pb2 import ExpressSnapshot, ExpressSums
from statehouse.errors import LookupFailure, Reason
from statehouse.link.handed import HandedLookup
from statehouse.link.link import CallFailed, FromProxy, LinkContext
from statehouse.local.ports import free_port
from statehouse.rpc.channels import channel
from statehouse.rpc.failures import from_rpc_error
from statehouse.serdes.wire import delimited, framed, frames, result_of
from statehouse.v1 import query_service_pb2, types_pb2
from tests.integration.proxy.served import BATCH_GET, MAX_BYTES, Served, call, served
from tests.integration.proxy.test_express import REQUEST, by_the_node, snapshot_of, tell
from tests.support.polling import poll_until_async
from tests.support.proxy import PROXY
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.fleets import STORE

BATCHES, NAMES, PARTITIONS = 400, ("a", "b", "c", "d"), 6
KEYS: Final = tuple(f"key-{number}" for number in range(60))
WITHIN: Final = (types_pb2.Freshness(max_lag=100), types_pb2.Freshness(max_staleness_ms=60_000))
# Each way on: to the next copy, to the same one alone, and to the caller.
REFUSALS: Final = (Reason.NOT_ACTIVE, Reason.PARTITION_RESTORING, Reason.WOULD_WAIT, Reason.INVALID_KEY)


class Passed:
    """Counts how requests of a kind come to a router: `whole` as their callers sent them, or `handed` with calls."""

    def __init__(self, fleet: Fleet, kind: FromProxy) -> None:
        self.whole = self.handed = 0
        link = fleet.router._proxy.link  # type: ignore[union-attr]
        name, handler = link._handlers[kind]

        def counting(data: bytes, context: LinkContext) -> bytes | Awaitable[bytes]:
            self.handed += bool(context.handed)
            self.whole += context.handed is None
            return handler(data, context)

        link._handlers[kind] = (name, counting)


class Pair:
    """A fleet, a router that has it on the express way, and one that has not; and how batches came to the former."""

    def __init__(self, express: Fleet, plain: Fleet) -> None:
        self.express, self.plain = express, plain
        self.batches = Passed(express, FromProxy.BATCH_GET)

    async def answers(self, request: bytes) -> tuple[object, object]:
        """Return what the two say."""
        return await asyncio.gather(*(_said(each, request) for each in (self.express, self.plain)))

    def count(self, metric: str, **labels: str) -> float:
        return self.express.router.metrics.registry.get_sample_value(f"statehouse_router_{metric}", labels) or 0.0


async def _said(fleet: Fleet, request: bytes) -> object:
    ask: Any = fleet.channel.unary_unary(BATCH_GET)
    try:
        said = query_service_pb2.BatchGetResponse.FromString(await ask(request, timeout=20))
    except grpc.aio.AioRpcError as error:
        failure = from_rpc_error(error)
        return failure.reason, failure.message
    for result in said.results:
        # In which words a connection is refused is not the router's to say.
        if any(each.reason == Reason.UNREACHABLE.value for each in result.error.candidates):
            result.error.ClearField("message")
        for each in result.error.candidates:
            if each.reason == Reason.UNREACHABLE.value:
                each.ClearField("detail")
    return said


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[Pair]:
    """Give both routers the same nodes; each node holds some partitions as active and some as standby."""
    express = Fleet(proxy=str(PROXY), express=True, **options)
    plain = Fleet(**options)
    plain.nodes = express.nodes
    for name in NAMES:
        await express.node(name)
    holders = [TaskAssignment(NAMES[at % 4], (NAMES[(at + 1) % 4],)) for at in range(PARTITIONS)]
    try:
        for fleet in (express, plain):
            await fleet.router.start()
            for name in NAMES:
                fleet.heartbeat(name, PARTITIONS)
            await fleet.publish(*holders)
        both = Pair(express, plain)

        asked, by_router = 0, both.batches
        until = asyncio.get_running_loop().time() + 10
        while asked == by_router.whole + by_router.handed:
            assert asyncio.get_running_loop().time() < until
            await both.answers(batch_of(KEYS[:1]))
            asked += 1
        # The program tells its router of lookups a little later.
        await poll_until_async(
            lambda: both.count("express_lookups_total", store=STORE, role="") == 1, 10, "the first one to be counted"
        )
        yield both
    finally:
        await plain.channel.close()
        await plain.router.stop(0.1)
        await express.stop()


def lookup(key: str, **fields: Any) -> bytes:
    return query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key), **fields).SerializeToString()


def batch_of(keys: Sequence[str]) -> bytes:
    return framed(map(lookup, keys))


def made_batch(rng: random.Random) -> bytes:
    """Return a serialized batch: mostly plain lookups."""

    def made_lookup() -> bytes:
        data = lookup(rng.choice(KEYS), raw=rng.random() < 0.2)
        odd = rng.random()
        if odd < 0.03:
            return lookup(rng.choice(KEYS), freshness=types_pb2.Freshness(active_only=True))
        if odd < 0.05:
            return query_service_pb2.GetRequest(store="no", key=types_pb2.Key(text="k")).SerializeToString()
        if odd < 0.07:
            return data[: rng.randrange(len(data))]
        if odd < 0.3:
            return lookup(rng.choice(KEYS), freshness=rng.choice(WITHIN))
        return data

    data = framed(made_lookup() for _ in range(rng.choice((0, 1, 5, 30, 100))))
    odd = rng.random()
    if odd < 0.03:
        return data + b"\x98\x06\x01"  # a field of a newer version
    return data[: rng.randrange(len(data))] if odd < 0.06 and data else data


async def test_batches_are_answered_as_by_a_router_without_a_proxy() -> None:
    rng = random.Random(7)
    async with pair() as both:
        nodes = both.express.nodes
        for nth in range(BATCHES):
            for node in nodes.values():
                refused = rng.sample(KEYS, 3) if rng.random() < 0.4 else []
                node.failures = {key: LookupFailure(rng.choice(REFUSALS), "not now") for key in refused}
                node.batch_limit = 2 if rng.random() < 0.05 else 1_000
            if nth == BATCHES // 2:
                await nodes["c"].kill()
            express, plain = await both.answers(made_batch(rng))
            assert express == plain, nth
        assert both.count("express_lookups_total", store=STORE, role="") > BATCHES
        assert both.batches.handed > BATCHES * 0.1
        assert both.batches.whole < BATCHES * 0.4


def made_batch_of_one(rng: random.Random) -> bytes:
    """Return a serialized batch whose lookups mostly ask for a batch of their query: for any, or for one with an id."""
    moments = types_pb2.Moments(moments=[types_pb2.Moment(query_id="q", batch_id=rng.choice((3, 4)))])
    bound = rng.choice(
        (
            types_pb2.MomentBound(newest=True),
            types_pb2.MomentBound(newest=True),
            types_pb2.MomentBound(at_least=moments),
            types_pb2.MomentBound(exactly=moments),
        )
    )
    of_one = types_pb2.Freshness(moment=bound)
    plain = 0.2 if rng.random() < 0.2 else 0.0
    keys = [rng.choice(KEYS) for _ in range(rng.choice((1, 5, 30, 100)))]
    return framed(lookup(key, freshness=None if rng.random() < plain else of_one) for key in keys)


async def test_batches_that_are_to_be_of_one_are_answered_as_by_a_router_without_a_proxy() -> None:
    rng = random.Random(13)
    async with pair() as both:
        nodes = both.express.nodes
        for nth in range(BATCHES):
            for node in nodes.values():
                node.kept = None if rng.random() < 0.02 else rng.choice(([3, 4], [3, 4], [3, 4], [4, 5]))
                refused = rng.sample(KEYS, 1) if rng.random() < 0.1 else []
                node.failures = {key: LookupFailure(rng.choice(REFUSALS), "not now") for key in refused}
            express, plain = await both.answers(made_batch_of_one(rng))
            assert express == plain, nth
            assert isinstance(express, query_service_pb2.BatchGetResponse)
            stamps = [each.response.replica for each in express.results if each.HasField("response")]
            assert len({each.moment.batch_id for each in stamps if each.HasField("moment")}) <= 1
        assert both.batches.handed > BATCHES * 0.1
        assert both.batches.handed + both.batches.whole < BATCHES * 0.8


async def test_answers_too_large_for_a_message_are_the_routers_to_choose() -> None:
    async with pair(max_message_bytes=100_000) as both:
        for node in both.express.nodes.values():
            node.padding = 4_000
        before, passed = both.count("express_lookups_total", store=STORE, role=""), both.batches.whole
        express, plain = await both.answers(batch_of(KEYS))
        for each in (express, plain):
            assert isinstance(each, query_service_pb2.BatchGetResponse)
            refused = [result for result in each.results if result.HasField("error")]
            assert 0 < len(refused) < len(KEYS)
            assert each.ByteSize() <= 100_000
        assert both.batches.whole == passed + 1
        assert both.count("express_lookups_total", store=STORE, role="") == before


async def test_a_batch_of_too_many_is_refused_by_the_router() -> None:
    async with pair(router_max_batch_entries=1_000) as both:
        express, plain = await both.answers(framed([lookup("k")] * 1_001))
        assert express == plain
        assert isinstance(express, tuple)
        assert express[0] is Reason.INVALID_REQUEST
        express, plain = await both.answers(framed([lookup("k")] * 1_000))
        assert express == plain
        assert isinstance(express, query_service_pb2.BatchGetResponse)


async def test_a_batch_at_a_frozen_node_is_answered_by_others_and_the_node_is_suspected() -> None:
    async with pair(attempt_timeout_ms=300, hedge_min_ms=300) as both:
        nodes = both.express.nodes
        nodes["a"].freeze()
        began = asyncio.get_running_loop().time()
        said = await _said(both.express, batch_of(KEYS))
        assert isinstance(said, query_service_pb2.BatchGetResponse)
        assert all(result.HasField("response") for result in said.results)
        assert [result.response.value.text.split(":")[1] for result in said.results] == list(KEYS)
        assert 0.3 <= asyncio.get_running_loop().time() - began < 5
        assert both.batches.handed == 1
        assert both.express.router.health.suspects["a"].reason is Reason.ATTEMPT_TIMED_OUT
        await poll_until_async(lambda: nodes["a"].left_held, 5, "the call to be given up")
        assert both.count("attempts_total", reason="ATTEMPT_TIMED_OUT") == 1


class Router:
    """What a router is handed with a batch; it answers each lookup when `may_answer` is set."""

    def __init__(self, it: Served) -> None:
        self.handed: asyncio.Queue[tuple[bytes, tuple[HandedLookup, ...] | None]] = asyncio.Queue()
        self.may_answer = asyncio.Event()
        it.batch_get = self._batch_get  # type: ignore[assignment,method-assign]

    async def calls(self) -> tuple[bytes, tuple[HandedLookup, ...]]:
        """Return the request that is handed over next, and the calls that were made for it."""
        request, handed = await asyncio.wait_for(self.handed.get(), 5)
        assert handed is not None
        return request, handed

    def _batch_get(self, request: bytes, context: LinkContext) -> Awaitable[bytes]:
        self.handed.put_nowait((request, context.handed))

        async def later() -> bytes:
            await self.may_answer.wait()
            return framed(result_of(b"router " + each) for each in frames(request))

        return later()


@asynccontextmanager
async def scripted(
    batch: Callable[[bytes], bytes] | None = None,
    late_after_s: float = 5.0,
    change: Callable[[ExpressSnapshot], object] = id,
) -> AsyncIterator[tuple[Served, Served, Router, grpc.aio.Channel]]:
    """Give a node that answers batches, when it may, and a router whose proxy sends all lookups of "s" to it."""
    async with served() as node, served() as it, channel(it.target, MAX_BYTES) as at:

        async def answer(request: bytes, context: LinkContext) -> bytes:
            await by_the_node(node, request, context)
            return framed(result_of(b"node " + each) for each in frames(request)) if batch is None else batch(request)

        node.batch_get = answer  # type: ignore[assignment,method-assign]
        snapshot = snapshot_of(node, late_after_s)
        snapshot.max_batch_entries, snapshot.batch_late_after_us = 1_000, round(late_after_s * 1e6)
        change(snapshot)
        await tell(it, snapshot, node)
        yield node, it, Router(it), at


OTHER: Final = query_service_pb2.GetRequest(store="other", key=types_pb2.Key(text="k")).SerializeToString()


def by_node(request: bytes) -> bytes:
    return result_of(b"node " + request + b"!")


def by_router(request: bytes) -> bytes:
    return result_of(b"router " + request)


async def test_what_is_not_decided_is_the_routers_and_comes_back_in_its_place() -> None:
    async with scripted() as (node, _it, router, at):
        node.may_go_on.set()
        router.may_answer.set()
        asked = framed([OTHER, REQUEST, REQUEST, OTHER])
        assert await call(at, BATCH_GET, asked) == [
            framed([by_router(OTHER), by_node(REQUEST), by_node(REQUEST), by_router(OTHER)])
        ]
        assert await router.handed.get() == (framed([OTHER, OTHER]), ())
        assert await call(at, BATCH_GET, framed([OTHER])) == [framed([by_router(OTHER)])]
        assert await call(at, BATCH_GET, framed([])) == [framed([])]


async def test_what_a_node_refuses_is_handed_over_with_what_it_said() -> None:
    refusal = result_of(LookupFailure(Reason.NOT_ACTIVE, "not here"))
    second = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text="2")).SerializeToString()

    def batch(request: bytes) -> bytes:
        return framed(refusal if second in each else by_node(each[:-1]) for each in frames(request))

    async with scripted(batch) as (node, _it, router, at):
        node.may_go_on.set()
        router.may_answer.set()
        answer = await call(at, BATCH_GET, framed([REQUEST, second, OTHER]))
        assert answer == [framed([by_node(REQUEST), by_router(second), by_router(OTHER)])]
        request, (handed,) = await router.calls()
        assert request == framed([second, OTHER])
        assert handed.was_made_to("n", node.target)
        assert handed.lookups == 1
        assert await handed.came == framed([refusal])


@pytest.mark.parametrize("answer", [b"\x08\x01", framed([b""]), framed([b"", b"", b""])])
async def test_an_answer_that_cant_be_read_is_handed_over_as_it_is(answer: bytes) -> None:
    async with scripted(lambda _request: answer) as (node, _it, router, at):
        node.may_go_on.set()
        router.may_answer.set()
        said = await call(at, BATCH_GET, framed([REQUEST, REQUEST]))
        assert said == [framed([by_router(REQUEST), by_router(REQUEST)])]
        _, (handed,) = await router.calls()
        assert (handed.lookups, await handed.came) == (2, answer)


async def test_stores_with_large_answers_are_the_routers_as_long_as_the_snapshot_lasts() -> None:
    snapshots: list[ExpressSnapshot] = []

    def batch(request: bytes) -> bytes:
        return framed(result_of(bytes(5_000)) for _ in frames(request))

    async with scripted(batch, change=snapshots.append) as (node, it, router, at):
        node.may_go_on.set()
        router.may_answer.set()
        asked, by_routers = framed([REQUEST] * 2), [framed([by_router(REQUEST)] * 2)]
        assert await call(at, BATCH_GET, asked) == by_routers
        _, (handed,) = await router.calls()
        assert (handed.lookups, await handed.came) == (2, None)
        assert await call(at, BATCH_GET, asked) == by_routers
        assert await router.handed.get() == (asked, None)
        await tell(it, snapshots[0], node)
        assert await call(at, BATCH_GET, asked) == by_routers
        assert len((await router.calls())[1]) == 1


async def test_batches_are_the_routers_when_there_is_no_room_for_their_answers() -> None:
    def change(snapshot: ExpressSnapshot) -> None:
        snapshot.max_lookups = 1_000_000

    async with scripted(change=change) as (node, _it, router, at):
        router.may_answer.set()
        asked = framed([REQUEST] * 1_000)
        calls = [asyncio.ensure_future(call(at, BATCH_GET, asked)) for _ in range(100)]
        # A connection alone may have a third of 192 MiB, and each answer has up to a message of 1 MB.
        for _ in range(30):
            assert await asyncio.wait_for(router.handed.get(), 5) == (asked, None)
        node.may_go_on.set()
        answers = await asyncio.gather(*calls)
        by_routers = answers.count([framed([by_router(REQUEST)] * 1_000)])
        assert 30 <= by_routers <= 40
        assert answers.count([framed([by_node(REQUEST)] * 1_000)]) == 100 - by_routers


async def test_a_late_batch_is_handed_over_and_the_router_hears_of_the_answer() -> None:
    async with scripted(late_after_s=0.05) as (node, it, router, at):
        asked = asyncio.ensure_future(call(at, BATCH_GET, framed([REQUEST, REQUEST])))
        request, (handed,) = await router.calls()
        assert request == framed([REQUEST, REQUEST])
        assert (handed.instance_id, handed.lookups, handed.came.done()) == ("n", 2, False)
        assert 0.05 <= asyncio.get_running_loop().time() - handed.sent_at < 5
        node.may_go_on.set()
        assert await asyncio.wait_for(handed.came, 5) == framed([by_node(REQUEST)] * 2)
        assert not asked.done(), "which of them counts is the router's to say"
        router.may_answer.set()
        assert await asked == [framed([by_router(REQUEST)] * 2)]
        assert it.proxy.link._handed._under_way == {}


async def test_a_call_that_fails_is_handed_over_at_once_beside_one_that_is_under_way() -> None:
    def change(snapshot: ExpressSnapshot) -> None:
        snapshot.nodes.add(instance_id="gone", address=f"127.0.0.1:{free_port()}", role=1)
        snapshot.stores.add(name="other", key_form=1, first=[2], late_after_us=5_000_000)

    async with scripted(change=change) as (node, _it, router, at):
        asked = asyncio.ensure_future(call(at, BATCH_GET, framed([OTHER, REQUEST, OTHER])))
        request, handed = await router.calls()
        of = {each.instance_id: each for each in handed}
        assert sorted(of) == ["gone", "n"]
        assert sorted(frames(request)) == sorted([OTHER, OTHER, REQUEST])
        with pytest.raises(CallFailed) as caught:
            await of["gone"].came
        assert from_rpc_error(caught.value).reason is Reason.UNREACHABLE
        assert (of["gone"].lookups, of["n"].lookups, of["n"].came.done()) == (2, 1, False)
        await asyncio.wait_for(node.arrived.wait(), 5)  # a call that ends on its way leaves nothing
        router.may_answer.set()
        assert await asked == [framed([by_router(OTHER), by_router(REQUEST), by_router(OTHER)])]
        await asyncio.wait_for(node.left.wait(), 5)


@pytest.mark.parametrize("is_late", [True, False])
async def test_for_who_leaves_nobody_works(is_late: bool) -> None:
    async with scripted(late_after_s=0.05 if is_late else 5.0) as (node, _it, router, at):
        asked = at.unary_unary(BATCH_GET)(framed([REQUEST]), timeout=20)
        await asyncio.wait_for(node.arrived.wait(), 5)
        if is_late:
            await asyncio.wait_for(router.handed.get(), 5)
        asked.cancel()
        await asyncio.wait_for(node.left.wait(), 5)


async def test_a_deadline_leaves_the_router_its_share() -> None:
    async with scripted(late_after_s=60) as (_node, _it, router, at):
        router.may_answer.set()
        said = await call(at, BATCH_GET, framed([REQUEST]), timeout_s=1.0)
        assert said == [framed([by_router(REQUEST)])]


async def test_traced_and_large_batches_and_those_beyond_the_bounds_are_the_routers() -> None:
    def change(snapshot: ExpressSnapshot) -> None:
        snapshot.max_batch_entries = 3

    async with scripted(change=change) as (node, it, router, at):
        node.may_go_on.set()
        router.may_answer.set()
        assert await call(at, BATCH_GET, framed([REQUEST] * 3)) == [framed([by_node(REQUEST)] * 3)]
        traced = await call(at, BATCH_GET, framed([REQUEST]), metadata=(("traceparent", "00-1-2-01"),))
        assert traced == [framed([by_router(REQUEST)])]
        assert await call(at, BATCH_GET, framed([REQUEST] * 4)) == [framed([by_router(REQUEST)] * 4)]
        large = delimited(b"\x0a", b"s") + delimited(b"\x12", delimited(b"\x0a", b"k" * 70_000))
        assert await call(at, BATCH_GET, framed([large])) == [framed([by_router(large)])]
        full = snapshot_of(node, 5)
        full.max_lookups, full.max_batch_entries, full.batch_late_after_us = 0, 3, 5_000_000
        await tell(it, full, node)
        assert await call(at, BATCH_GET, framed([REQUEST])) == [framed([by_router(REQUEST)])]


async def test_each_lookup_of_a_batch_takes_a_place_wherever_it_is() -> None:
    def change(snapshot: ExpressSnapshot) -> None:
        snapshot.max_lookups = 5

    async with scripted(change=change) as (node, it, router, at):
        for first, is_express in ((framed([REQUEST] * 5), True), (framed([OTHER] * 5), False)):
            node.arrived.clear()
            under_way = asyncio.ensure_future(call(at, BATCH_GET, first))
            if is_express:
                await asyncio.wait_for(node.arrived.wait(), 5)
            else:
                await asyncio.wait_for(router.handed.get(), 5)
            second = asyncio.ensure_future(call(at, BATCH_GET, framed([REQUEST])))
            request, handed = await asyncio.wait_for(router.handed.get(), 5)
            assert (request, handed) == (framed([REQUEST]), None), "there is no room"
            assert it.proxy.link.elsewhere == (5 if is_express else 0)
            node.may_go_on.set()
            router.may_answer.set()
            await asyncio.gather(under_way, second)
            node.may_go_on.clear()
            router.may_answer.clear()


async def test_sums_have_calls_and_lookups_of_batches() -> None:
    async with scripted() as (node, it, router, at):
        node.may_go_on.set()
        router.may_answer.set()
        sums: list[ExpressSums] = []
        it.proxy.link.on_sums = lambda data: sums.append(ExpressSums.FromString(data))
        for _ in range(10):
            await call(at, BATCH_GET, framed([REQUEST, OTHER, REQUEST]))
        await poll_until_async(lambda: sum(each.count for one in sums for each in one.batch_lookups) >= 20, 5, "sums")
        calls = [each for one in sums for each in one.batch_calls]
        assert sum(each.count for each in calls) == 10
        assert {(each.store, each.instance_id, each.role) for each in calls} == {("", "n", 0)}
        assert sum(len(each.took_us) for each in calls) == 10
        lookups = [each for one in sums for each in one.batch_lookups]
        assert sum(each.count for each in lookups) == 20
        assert {(each.store, each.instance_id, len(each.took_us)) for each in lookups} == {("s", "", 0)}
        assert not any(one.sums for one in sums)
