"""The proxy sends plain lookups to nodes on its own, as the router has told it, and hands over what doesn't go well."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import grpc.aio
import pytest
from google.protobuf.message import DecodeError

from router.choice.express import Decided, ExpressCompiler, ExpressLimits, decided
from statehouse.contract.topology import Role
from statehouse.control.v1.express_pb2 import KEY_FORM_TEXT, ExpressSnapshot, ExpressSums
from statehouse.errors import LookupFailure, Reason
from statehouse.link.handed import HandedLookup
from statehouse.link.link import CallFailed, LinkContext, ToProxy
from statehouse.local.ports import free_port
from statehouse.rpc.channels import channel
from statehouse.rpc.failures import from_rpc_error
from statehouse.serdes.wire import framed, frames, result_of
from statehouse.v1 import query_service_pb2, types_pb2
from tests.integration.proxy.served import GET, MAX_BYTES, TWICE, Served, call, served
from tests.support.express_cases import made_request, made_table
from tests.support.polling import poll_until_async

CASES, FLEETS = 20_000, 100
AT_ONCE = 64
# The beginning of an answer that is of a batch.
OF_BATCH = query_service_pb2.GetResponse(
    replica=types_pb2.ReplicaStamp(moment=types_pb2.Moment(query_id="q", batch_id=7))
).SerializeToString()


@asynccontextmanager
async def nodes(count: int) -> AsyncIterator[dict[str, Served]]:
    """Give nodes that answer with their name and the request."""
    async with AsyncExitStack() as stack:
        found = {f"n{number}": await stack.enter_async_context(served()) for number in range(count)}
        for name, each in found.items():
            each.get = answering(name)  # type: ignore[method-assign]
            each.batch_get = answering_batch(name)  # type: ignore[method-assign]
        yield found


def answer_of(name: str, request: bytes) -> bytes:
    """Return what a node answers, which is of a batch if the request asks for one."""
    answer = name.encode() + b" " + request
    return OF_BATCH + answer if asks_for_batch(request) else answer


def asks_for_batch(request: bytes) -> bool:
    try:
        return query_service_pb2.GetRequest.FromString(request).freshness.HasField("moment")
    except DecodeError:
        return False


def answering(name: str):
    return lambda request, _context: answer_of(name, request)


def answering_batch(name: str):
    async def batch(request: bytes) -> bytes:
        return framed(result_of(answer_of(name, each)) for each in frames(request))

    return lambda request, _context: batch(request)


async def tell(router: Served, snapshot: ExpressSnapshot, node: Served) -> None:
    """Give the router's proxy a snapshot, and wait until it has it: it takes frames in their order."""
    link = router.proxy.link
    link.send(ToProxy.ROUTES, 0, snapshot.SerializeToString())
    with pytest.raises(CallFailed):
        await link.call(node.target, "/no.Service/No", b"", 5.0)


async def is_answered_as_decided(
    at: grpc.aio.Channel, snapshot: ExpressSnapshot, places: asyncio.Semaphore, request: bytes
) -> bool:
    """Look a key up; return whether it is answered by a node that the function decides for."""
    expected = decided(snapshot, request)
    async with places:
        answer = await call(at, GET, request)
    if isinstance(expected, Decided) and expected.of_batch == asks_for_batch(request):
        assert answer == [answer_of(expected.node.instance_id, request + snapshot.forwarding)], request
        return True
    assert answer == [answer_of("router", request)], request
    return False


async def test_the_program_decides_as_the_function_does() -> None:
    rng = random.Random(2)
    async with nodes(3) as fleet, served() as router, channel(router.target, MAX_BYTES) as at:
        router.get = answering("router")  # type: ignore[method-assign]
        ports = {name: each.server.port for name, each in fleet.items()}
        express = 0
        for _ in range(FLEETS):
            snapshot = ExpressCompiler(
                lambda _store: 5.0, ExpressLimits(1_000, 1_000, 5.0, needs_permits=False)
            ).changed(*made_table(rng, ports))
            assert snapshot is not None
            snapshot.spread.percent = 0  # no key is asked for very often
            await tell(router, snapshot, fleet["n0"])
            one = partial(is_answered_as_decided, at, snapshot, asyncio.Semaphore(AT_ONCE))
            express += sum(await asyncio.gather(*(one(made_request(rng)) for _ in range(CASES // FLEETS))))
        assert express > CASES * 0.2


class Router:
    """What a router is handed, and its answer, which it gives when `may_answer` is set."""

    def __init__(self, it: Served) -> None:
        self.handed: asyncio.Queue[HandedLookup | None] = asyncio.Queue()
        self.may_answer = asyncio.Event()
        it.get = self._get  # type: ignore[assignment,method-assign]

    def _get(self, _request: bytes, context: LinkContext) -> Awaitable[bytes]:
        self.handed.put_nowait(context.handed[0] if context.handed else None)

        async def later() -> bytes:
            await self.may_answer.wait()
            return b"by the router"

        return later()


async def by_the_node(node: Served, _request: bytes, _context: LinkContext) -> bytes:
    node.arrived.set()
    try:
        await node.may_go_on.wait()
    except asyncio.CancelledError:
        node.left.set()
        raise
    return b"by the node"


@asynccontextmanager
async def one_node(late_after_s: float) -> AsyncIterator[tuple[Served, Served, Router, grpc.aio.Channel]]:
    """Give a node that answers when it may, and a router whose proxy sends all lookups of STORE to it."""
    async with served() as node, served() as it, channel(it.target, MAX_BYTES) as at:
        node.get = partial(by_the_node, node)  # type: ignore[assignment,method-assign]
        await tell(it, snapshot_of(node, late_after_s), node)
        yield node, it, Router(it), at


def snapshot_of(node: Served, late_after_s: float, *others: Served) -> ExpressSnapshot:
    """Return a snapshot that has lookups of STORE sent to a node, and those with a bound to any of these nodes."""
    snapshot = ExpressSnapshot(number=1, forwarding=b"!", max_lookups=1_000)
    snapshot.nodes.add(instance_id="n", address=node.target, role=Role.ACTIVE.value)
    for number, other in enumerate(others):
        snapshot.nodes.add(instance_id=f"o{number}", address=other.target, role=Role.STANDBY.value)
    late_after_us, copies = round(late_after_s * 1e6), range(1, 2 + len(others))
    snapshot.stores.add(name="s", key_form=KEY_FORM_TEXT, first=[1], late_after_us=late_after_us, copies=copies)
    return snapshot


REQUEST = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text="k")).SerializeToString()


async def test_a_late_lookup_is_handed_over_and_the_nodes_answer_may_still_come_first() -> None:
    async with one_node(late_after_s=0.05) as (node, it, router, at):
        asked = asyncio.ensure_future(call(at, GET, REQUEST))
        handed = await asyncio.wait_for(router.handed.get(), 5)
        assert handed is not None
        assert handed.was_made_to("n", node.target)
        assert 0.05 <= asyncio.get_running_loop().time() - handed.sent_at < 5
        assert not handed.came.done()
        node.may_go_on.set()
        assert await asked == [b"by the node"]
        assert await asyncio.wait_for(handed.came, 5) == b"by the node"
        router.may_answer.set()
        assert await call(at, TWICE, b"x") == [b"x", b"x"], "an answer that nobody waits for harms nobody"
        assert it.broken == []


async def test_the_routers_answer_counts_if_it_comes_first_and_the_node_need_not_go_on() -> None:
    async with one_node(late_after_s=0.05) as (node, _it, router, at):
        router.may_answer.set()
        assert await call(at, GET, REQUEST) == [b"by the router"]
        await asyncio.wait_for(node.left.wait(), 5)


async def test_who_leaves_is_not_worked_for_by_either() -> None:
    async with one_node(late_after_s=0.05) as (node, _it, router, at):
        asked = at.unary_unary(GET)(REQUEST, timeout=20)
        handed = await asyncio.wait_for(router.handed.get(), 5)
        assert handed is not None
        asked.cancel()
        await asyncio.wait_for(node.left.wait(), 5)


async def test_a_refusal_is_handed_over_with_what_the_node_said() -> None:
    async with one_node(late_after_s=5) as (node, _it, router, at):

        def refuse(_request: bytes, _context: LinkContext) -> bytes:
            raise LookupFailure(Reason.NOT_ACTIVE, "not here")

        node.get = refuse  # type: ignore[method-assign]
        router.may_answer.set()
        assert await call(at, GET, REQUEST) == [b"by the router"]
        assert await reason_of(router.handed.get_nowait()) is Reason.NOT_ACTIVE


async def test_a_refusal_in_a_call_that_lookups_share_is_handed_over_alone() -> None:
    async with one_node(late_after_s=5) as (node, _it, router, at):
        shared: list[int] = []

        async def batch(request: bytes, _context: LinkContext) -> bytes:
            failure = LookupFailure(Reason.NOT_ACTIVE, "not here")
            shared.append(len(frames(request)))
            return framed(result_of(failure if nth else b"by the node") for nth in range(shared[-1]))

        node.batch_get = batch  # type: ignore[assignment,method-assign]
        router.may_answer.set()
        for _ in range(100):
            holds_up = asyncio.ensure_future(call(at, GET, REQUEST))
            await asyncio.wait_for(node.arrived.wait(), 5)
            # That call makes these wait for a moment only. A busy machine may be too slow for it: then each goes alone.
            lookups = [asyncio.ensure_future(call(at, GET, REQUEST)) for _ in range(3)]
            node.may_go_on.set()
            answers = await asyncio.gather(*lookups)
            assert await holds_up == [b"by the node"]
            if shared == [3]:
                break
            shared.clear()
            node.arrived.clear()
            node.may_go_on.clear()
            while not router.handed.empty():
                router.handed.get_nowait()
        assert sorted(map(str, answers)) == ["[b'by the node']", "[b'by the router']", "[b'by the router']"]
        for _ in range(2):
            assert await reason_of(router.handed.get_nowait()) is Reason.NOT_ACTIVE


async def reason_of(handed: HandedLookup | None) -> Reason:
    assert handed is not None
    try:
        came = await handed.came
    except CallFailed as error:
        return from_rpc_error(error).reason
    assert isinstance(came, LookupFailure)
    return came.reason


async def test_a_node_that_is_gone_is_handed_over_at_once() -> None:
    async with served() as node, served() as it, channel(it.target, MAX_BYTES) as at:
        router = Router(it)
        router.may_answer.set()
        gone = snapshot_of(node, late_after_s=10)
        gone.nodes[0].address = f"127.0.0.1:{free_port()}"
        await tell(it, gone, node)
        assert await call(at, GET, REQUEST) == [b"by the router"]
        handed = router.handed.get_nowait()
        assert await reason_of(handed) is Reason.UNREACHABLE
        assert handed is not None
        assert handed.was_made_to("n", gone.nodes[0].address), "the router may know that the node is elsewhere"


async def test_a_traced_lookup_and_one_too_many_and_one_after_an_old_snapshot_are_the_routers() -> None:
    async with one_node(late_after_s=5) as (node, it, router, at):
        node.may_go_on.set()
        router.may_answer.set()
        assert await call(at, GET, REQUEST) == [b"by the node"]
        assert await call(at, GET, REQUEST, metadata=(("traceparent", "00-1-2-01"),)) == [b"by the router"]
        full = snapshot_of(node, late_after_s=5)
        full.max_lookups = 0
        await tell(it, full, node)
        assert await call(at, GET, REQUEST) == [b"by the router"]
        await tell(it, snapshot_of(node, late_after_s=5), node)
        assert await call(at, GET, REQUEST) == [b"by the node"]

        async def is_old() -> bool:
            return await call(at, GET, REQUEST) == [b"by the router"]

        until = asyncio.get_running_loop().time() + 10
        while not await is_old():
            assert asyncio.get_running_loop().time() < until
        it.proxy.link.send(ToProxy.ALIVE, 2)
        assert await is_old(), "another snapshot is said to hold"
        it.proxy.link.send(ToProxy.ALIVE, 1)
        await it.proxy.link.call(node.target, GET, b"", 5.0)
        assert not await is_old()


async def test_sums_have_each_lookup_once() -> None:
    async with one_node(late_after_s=5) as (node, it, _router, at):
        node.may_go_on.set()
        node.batch_get = answering_batch("n")  # type: ignore[method-assign]
        sums: list[ExpressSums] = []
        it.proxy.link.on_sums = lambda data: sums.append(ExpressSums.FromString(data))
        await asyncio.gather(*(call(at, GET, REQUEST) for _ in range(500)))
        await poll_until_async(lambda: sum(each.count for one in sums for each in one.sums) >= 500, 5, "all sums")
        found = [each for one in sums for each in one.sums]
        assert sum(each.count for each in found) == 500
        assert {(each.store, each.instance_id, each.role) for each in found} == {("s", "n", Role.ACTIVE.value)}
        assert all(0 < len(each.took_us) <= min(32, each.count) for each in found)
        assert sum(lookups for one in sums for lookups in one.shared) <= 500


async def test_a_snapshot_that_cant_be_read_ends_the_proxy_with_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    async with served() as it:
        it.proxy.link.send(ToProxy.ROUTES, 0, b"\x22\x03\x0a\x01")
        await poll_until_async(lambda: it.broken, 5, "the end of the proxy")
        assert "a snapshot can't be read: " in capfd.readouterr().err
