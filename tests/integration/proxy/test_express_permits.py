"""Where callers are judged, the proxy sends lookups to nodes only with a permit, and shows what the caller may see."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import grpc.aio
import pytest
from google.protobuf.message import Message

from statehouse.control.v1 import serving_pb2
from statehouse.control.v1.express_pb2 import ExpressSnapshot
from statehouse.link.link import CallFailed, FromProxy, ToProxy
from statehouse.rpc.channels import channel
from statehouse.security.concealed import concealed_answer
from statehouse.serdes.wire import framed, frames, result_of
from statehouse.v1 import query_service_pb2, types_pb2
from tests.integration.proxy.served import BATCH_GET, GET, MAX_BYTES, SCAN, Served, call, served
from tests.integration.proxy.test_express import REQUEST, Router, by_the_node, snapshot_of, tell
from tests.integration.proxy.test_express_pages import ByRouter, scan_of

ANSWERS: Final = 3_000
AT_ONCE: Final = 50
Batch: Final = query_service_pb2.BatchGetResponse
FOREVER_US: Final = 2**62


@asynccontextmanager
async def judging(late_after_s: float = 5.0) -> AsyncIterator[tuple[Served, Served, Router, grpc.aio.Channel]]:
    """Give a node, a server that judges callers, the router behind it, and a channel, whose caller is known."""
    async with served() as node, served() as it, channel(it.target, MAX_BYTES) as at:
        node.get = partial(by_the_node, node)  # type: ignore[assignment,method-assign]
        await tell(it, judged_snapshot(node, late_after_s), node)
        router = Router(it)
        router.may_answer.set()
        assert await call(at, GET, REQUEST) == [b"by the router"]
        assert router.handed.get_nowait() is None
        yield node, it, router, at


def judged_snapshot(node: Served, late_after_s: float) -> ExpressSnapshot:
    snapshot = snapshot_of(node, late_after_s)
    snapshot.needs_permits = True
    snapshot.max_batch_entries, snapshot.batch_late_after_us = 1_000, 5_000_000
    return snapshot


async def permit(it: Served, node: Served, kind: FromProxy = FromProxy.GET, **changed: Any) -> None:
    """Give a permit, to the caller if nobody else is named."""
    given = {"caller": caller_of(it), "call": kind, "store": "s", "until_us": FOREVER_US, **changed}
    it.proxy.link.send(ToProxy.PERMIT, 0, serving_pb2.ServingPermit(**given).SerializeToString())
    await taken(it, node)


def caller_of(it: Served) -> int:
    """Return the number of the one caller: each connection has one of its own, also without TLS."""
    (number,) = it.proxy.link.callers.keys() - {0}
    return number


async def withdraw(it: Served, node: Served) -> None:
    it.proxy.link.send(ToProxy.WITHDRAW)
    await taken(it, node)


async def taken(it: Served, node: Served) -> None:
    """Wait until the proxy has taken what it was sent."""
    with pytest.raises(CallFailed):
        await it.proxy.link.call(node.target, "/no.Service/No", b"", 5.0)


async def test_nobody_is_answered_by_a_node_without_a_permit() -> None:
    async with judging() as (node, it, _router, at):
        node.may_go_on.set()
        for other in (0, caller_of(it) + 1):
            await permit(it, node, caller=other)
        await permit(it, node, FromProxy.BATCH_GET)
        await permit(it, node, store="t")
        await permit(it, node, until_us=int(time.monotonic() * 1e6))
        assert await call(at, GET, REQUEST) == [b"by the router"]
        assert not node.arrived.is_set()
        await permit(it, node)
        assert await call(at, GET, REQUEST) == [b"by the node"]
        await withdraw(it, node)
        assert await call(at, GET, REQUEST) == [b"by the router"]
        await permit(it, node)
        assert await call(at, GET, REQUEST) == [b"by the node"]
        await permit(it, node, until_us=int(time.monotonic() * 1e6))
        assert await call(at, GET, REQUEST) == [b"by the router"]


async def test_who_loses_a_right_meanwhile_is_judged_by_the_router_as_if_nobody_had_been_asked() -> None:
    async with judging() as (node, it, router, at):
        await permit(it, node)
        asked = asyncio.ensure_future(call(at, GET, REQUEST))
        await asyncio.wait_for(node.arrived.wait(), 5)
        await withdraw(it, node)
        node.may_go_on.set()
        assert await asked == [b"by the router"]
        assert router.handed.get_nowait() is None


async def test_a_late_answer_is_the_routers_to_give() -> None:
    async with judging(late_after_s=0.05) as (node, it, router, at):
        router.may_answer.clear()
        await permit(it, node)
        asked = asyncio.ensure_future(call(at, GET, REQUEST))
        handed = await asyncio.wait_for(router.handed.get(), 5)
        assert handed is not None
        node.may_go_on.set()
        assert await asyncio.wait_for(handed.came, 5) == b"by the node"
        await taken(it, node)
        assert not asked.done()
        router.may_answer.set()
        assert await asked == [b"by the router"]


async def test_lookups_of_a_batch_that_have_no_permit_are_the_routers() -> None:
    async with judging() as (node, it, _router, at):
        of_node: list[bytes] = []

        async def batch(request: bytes) -> bytes:
            of_node.extend(frames(request))
            return framed(result_of(b"by the node") for _ in frames(request))

        async def rest(request: bytes) -> bytes:
            return framed(result_of(b"by the router") for _ in frames(request))

        node.batch_get = lambda request, context: batch(request)  # type: ignore[method-assign] # noqa: ARG005
        it.batch_get = lambda request, context: rest(request)  # type: ignore[method-assign] # noqa: ARG005
        request = framed([REQUEST, of_store("t"), REQUEST])

        async def said() -> Sequence[bytes]:
            answers = await call(at, BATCH_GET, request)
            assert isinstance(answers, list)
            return frames(answers[0])

        assert await said() == [result_of(b"by the router")] * 3
        assert not of_node
        await permit(it, node)
        assert await said() == [result_of(b"by the router")] * 3, "it is for another method"
        await permit(it, node, FromProxy.BATCH_GET)
        assert await said() == [result_of(b"by the " + who) for who in (b"node", b"router", b"node")]
        assert len(of_node) == 2


def of_store(name: str) -> bytes:
    return query_service_pb2.GetRequest(store=name, key=types_pb2.Key(text="k")).SerializeToString()


def made_answer(rng: random.Random) -> bytes:
    """Return what a node may answer: of this version, or of another, with fields that nobody here knows."""
    answer = query_service_pb2.GetResponse(found=rng.random() < 0.8)
    match rng.randrange(4):
        case 0:
            answer.value.text = "127.0.0.1:9001 " * rng.randrange(30)
        case 1:
            answer.value.json.struct_value.update({"host": "h", "port": 1, "n": rng.random()})
        case 2:
            answer.value.raw = rng.randbytes(rng.randrange(300))
    stamp = answer.replica
    stamp.partition, stamp.epoch = rng.randrange(300), rng.randrange(2**40)
    stamp.role = rng.choice([types_pb2.REPLICA_ROLE_ACTIVE, types_pb2.REPLICA_ROLE_STANDBY])
    if rng.random() < 0.9:
        stamp.host.instance_id = rng.choice(["", "n1", "h:1"])
        stamp.host.host = rng.choice(["", "127.0.0.1", "node.example"])
        stamp.host.port = rng.choice([0, 1, 65_535])
    if rng.random() < 0.5:
        answer.timestamp_ms = rng.randrange(2**50)
    data = answer.SerializeToString()
    if rng.random() < 0.3:  # protobuf merges what comes twice
        data += query_service_pb2.GetResponse(replica=stamp).SerializeToString()
    if rng.random() < 0.3:
        newer = types_pb2.Host(host="new", port=3).SerializeToString() + b"\x7a\x03new"
        merged = b"\x1a" + bytes((len(newer),)) + newer
        data += b"\x1a" + bytes((len(merged),)) + merged + b"\xa2\x06\x01x"
    return data


async def test_who_may_not_see_the_fleet_sees_what_python_would_show() -> None:
    rng = random.Random(5)
    made = [made_answer(rng) for _ in range(ANSWERS)]
    async with judging() as (node, it, _router, at):

        def answer(request: bytes) -> bytes:
            return made[int(query_service_pb2.GetRequest.FromString(request[:-1]).key.text)]

        async def batch(request: bytes) -> bytes:
            return framed(result_of(answer(each)) for each in frames(request))

        node.get = lambda request, context: answer(request)  # type: ignore[method-assign] # noqa: ARG005
        node.batch_get = lambda request, context: batch(request)  # type: ignore[method-assign] # noqa: ARG005
        for kind in (FromProxy.GET, FromProxy.BATCH_GET):
            await permit(it, node, kind, conceals=True)
        shown: list[bytes] = []
        for first in range(0, ANSWERS, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, ANSWERS))
            for said in await asyncio.gather(*(call(at, GET, lookup(number)) for number in numbers)):
                assert isinstance(said, list)
                shown += said
            said = await call(at, BATCH_GET, framed(map(lookup, numbers)))
            assert isinstance(said, list)
            concealed = concealed_answer(BATCH_GET, framed(result_of(made[number]) for number in numbers))
            assert told(said[0], Batch) == told(concealed, Batch)
            await tell(it, judged_snapshot(node, late_after_s=5.0), node)  # one holds for three seconds
        assert [told(each) for each in shown] == [told(concealed_answer(GET, each)) for each in made]
        assert not any(host.host or host.port for host in map(_host_in, shown))
        assert any(_host_in(each).host for each in made)


async def test_pages_need_a_permit_and_show_what_the_caller_may_see() -> None:
    asked = query_service_pb2.ScanRequest(store="s").SerializeToString()
    stamp = types_pb2.ReplicaStamp(host=types_pb2.Host(instance_id="n", host="127.0.0.1", port=9_001))
    page = query_service_pb2.ScanResponse(
        entries=[query_service_pb2.Entry(key=types_pb2.Key(text="k"))], entry_keys=[b"k"], replicas=[stamp]
    )
    async with judging() as (node, it, _router, at):
        scan_of(node, page.SerializeToString())
        ByRouter(it).may_answer.set()
        snapshot = judged_snapshot(node, late_after_s=5.0)
        snapshot.stores[0].pages = True
        await tell(it, snapshot, node)
        by_router = [b"router " + asked]
        await permit(it, node, FromProxy.GET)
        assert await call(at, SCAN, asked) == by_router
        assert not node.arrived.is_set()
        await permit(it, node, FromProxy.SCAN)
        of_one_who_leaves = asyncio.ensure_future(call(at, SCAN, asked))
        await asyncio.wait_for(node.arrived.wait(), 5)
        await withdraw(it, node)
        node.may_go_on.set()
        assert await of_one_who_leaves == by_router, "they have lost the right meanwhile"
        await tell(it, snapshot, node)
        page.ClearField("entry_keys")
        for conceals in (False, True):
            await permit(it, node, FromProxy.SCAN, conceals=conceals)
            expected = concealed_answer(SCAN, page.SerializeToString()) if conceals else page.SerializeToString()
            assert await call(at, SCAN, asked) == [expected]


def lookup(number: int) -> bytes:
    return query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text=str(number))).SerializeToString()


def told(data: bytes, kind: type[Message] = query_service_pb2.GetResponse) -> bytes:
    """Return an answer in the one form that it has: the order of fields and of a mapping's keys doesn't count."""
    return kind.FromString(data).SerializeToString(deterministic=True)


def _host_in(answer: bytes) -> types_pb2.Host:
    return query_service_pb2.GetResponse.FromString(answer).replica.host
