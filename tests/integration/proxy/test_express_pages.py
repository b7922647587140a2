"""Pages that the proxy puts together are those of a router without a proxy."""

from __future__ import annotations

import asyncio
import itertools
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

import grpc.aio
import pytest

from router.choice.express import ExpressCompiler, ExpressLimits
from router.choice.express_pages import PageCall, decided_page
from router.lookups.pages import joined
from statehouse.contract.paging import page_size
from statehouse.contract.topology import Role
from statehouse.control.v1.express_pb2 import KEY_FORM_TEXT, ExpressSnapshot, ExpressSums
from statehouse.errors import LookupFailure, Reason
from statehouse.link.handed import HandedLookup
from statehouse.link.link import FromProxy, LinkContext, ToProxy
from statehouse.link.proxy import ProxyLimits
from statehouse.local.ports import free_port
from statehouse.rpc.channels import channel
from statehouse.rpc.failures import from_rpc_error
from statehouse.serdes import SERDES
from statehouse.v1 import query_service_pb2, types_pb2
from tests.integration.proxy.served import MAX_BYTES, SCAN, Served, call, served
from tests.integration.proxy.test_express import reason_of, tell
from tests.integration.proxy.test_express_batches import KEYS, NAMES, PARTITIONS, Pair, Passed, pair
from tests.support.express_cases import made_page_request, made_table, spoiled, with_token
from tests.support.polling import poll_until_async
from tests.unit.router.fleets import STORE

CASES, FLEETS, AT_ONCE = 20_000, 100, 64
# As the router has it (router/lookups/scatter.py).
RESERVED_BYTES: Final = 32 * 1024
# Pages of some entries fill it.
SMALL: Final = ProxyLimits(1 << 16, 100, 100, 1 << 16)


def serialized(request: bytes) -> bytes:
    return query_service_pb2.ScanRequest.FromString(request).SerializeToString()


def made_page(name: str, request: bytes) -> tuple[bytes, bool]:
    """Return the page that a node gives, which its name and the request decide; and whether the proxy can merge it."""
    rng = random.Random(zlib.crc32(name.encode() + serialized(request)))
    asked = query_service_pb2.ScanRequest.FromString(request)
    assert asked.forwarding.hops == 1
    most, sizes = min(page_size(asked), 150), rng.choice(((0, 30), (0, 30), (200, 300)))
    count = rng.choice((0, 1, rng.randrange(most + 1), most, most + 3))
    keys = sorted({b"key-%d" % rng.randrange(200) for _ in range(count)}, reverse=asked.reverse)
    entries = [
        query_service_pb2.Entry(
            key=types_pb2.Key(raw=key), value=types_pb2.Value(raw=rng.randbytes(rng.randint(*sizes)))
        )
        for key in keys
    ]
    page = query_service_pb2.ScanResponse(
        entries=entries,
        entry_keys=keys,
        next_page_token="more" if keys and rng.random() < 0.5 else "",
        replicas=[
            types_pb2.ReplicaStamp(partition=each, host=types_pb2.Host(instance_id=name), lag=rng.randrange(3))
            for each in asked.partitions or (asked.partition,)
        ],
    )
    if asked.freshness.HasField("moment"):
        for stamp in page.replicas:
            if rng.random() < 0.98:
                stamp.moment.CopyFrom(types_pb2.Moment(query_id="q", batch_id=7 if rng.random() < 0.95 else 8))
    odd = rng.random()
    if odd < 0.02:
        page.next_page_token = "more"  # noqa: S105 - what it says doesn't matter
        del page.entries[:], page.entry_keys[:]
    elif odd < 0.04:
        page.entry_keys.append(b"z")
    elif odd < 0.06 and len(keys) > 1:
        page.entry_keys[0], page.entry_keys[-1] = page.entry_keys[-1], page.entry_keys[0]
    else:
        return page.SerializeToString(), True
    return page.SerializeToString(), False


def as_python_makes_it(request: bytes, calls: Sequence[PageCall]) -> bytes | None:
    """Return the page that the router makes of what these calls bring; None if the proxy can't."""
    pages = [made_page(each.node.instance_id, each.request) for each in calls]
    if not all(can_merge for _, can_merge in pages):
        return None
    asked, moment = query_service_pb2.ScanRequest.FromString(request), None
    if asked.freshness.HasField("moment"):
        stamps = [each for page, _ in pages for each in query_service_pb2.ScanResponse.FromString(page).replicas]
        moment = stamps[0].moment
        if not all(each.HasField("moment") and each.moment == moment for each in stamps):
            return None
    most = SMALL.max_message_bytes - RESERVED_BYTES
    return joined(asked, [page for page, _ in pages], most, SERDES["bytes"], moment)


class ByRouter:
    """A router that answers pages with their request, and keeps what it is handed with them."""

    def __init__(self, it: Served) -> None:
        self.handed: asyncio.Queue[tuple[bytes, tuple[HandedLookup, ...] | None]] = asyncio.Queue()
        self.may_answer = asyncio.Event()
        it.batch_get = self._scan  # type: ignore[assignment,method-assign]

    def _scan(self, request: bytes, context: LinkContext) -> Awaitable[bytes]:
        self.handed.put_nowait((request, context.handed))

        async def later() -> bytes:
            await self.may_answer.wait()
            return b"router " + request

        return later()


@asynccontextmanager
async def nodes(names: Sequence[str]) -> AsyncIterator[dict[str, Served]]:
    """Give nodes whose pages their names and the requests decide."""

    def answering(name: str) -> Callable[[bytes, LinkContext], Awaitable[bytes]]:
        async def scan(request: bytes, _context: LinkContext) -> bytes:
            return made_page(name, request)[0]

        return scan

    async with AsyncExitStack() as stack:
        found = {name: await stack.enter_async_context(served(bounds=SMALL)) for name in names}
        for name, each in found.items():
            each.batch_get = answering(name)  # type: ignore[method-assign]
        yield found


async def is_answered_as_decided(
    it: Served, at: grpc.aio.Channel, snapshot: ExpressSnapshot, places: asyncio.Semaphore, rng: random.Random
) -> tuple[bool, bool]:
    """Ask for a page; return whether it is decided, and whether the proxy has put it together."""
    request = made_page_request(rng)
    if rng.random() < 0.3:
        request = with_token(rng, request)
    if is_spoiled := rng.random() < 0.05:
        request = spoiled(rng, request)
    calls = decided_page(snapshot, request)
    expected = None if calls is None else as_python_makes_it(request, calls)
    async with places:
        it.proxy.link.send(ToProxy.ALIVE, snapshot.number)  # on a busy machine all of them take more than three seconds
        answer = await call(at, SCAN, request)
    by_router = b"router " + request
    allowed = [by_router if expected is None else expected]
    if is_spoiled:  # what isn't as a serializer writes it may be the router's
        allowed.append(by_router)
    assert answer in ([each] for each in allowed), request
    return calls is not None, answer != [by_router]


async def test_the_program_puts_pages_together_as_python_does() -> None:
    rng = random.Random(3)
    names = ("n0", "n1", "n2")
    async with nodes(names) as fleet, served(bounds=SMALL) as router, channel(router.target, MAX_BYTES) as at:
        ByRouter(router).may_answer.set()
        ports = {name: each.server.port for name, each in fleet.items()}
        decided, merged = 0, 0
        for _ in range(FLEETS):
            snapshot = ExpressCompiler(
                lambda _store: 5.0, ExpressLimits(1_000, 1_000, 10.0, needs_permits=False)
            ).changed(*made_table(rng, ports))
            assert snapshot is not None
            await tell(router, snapshot, fleet["n0"])
            one = partial(is_answered_as_decided, router, at, snapshot, asyncio.Semaphore(AT_ONCE))
            for found in await asyncio.gather(*(one(rng) for _ in range(CASES // FLEETS))):
                decided, merged = decided + found[0], merged + found[1]
        assert decided > CASES * 0.15
        assert merged > decided * 0.8


class Walks:
    """Pages of a pair of routers, each asked for at both, and gone on with by either's token."""

    def __init__(self, both: Pair, rng: random.Random) -> None:
        self._both, self._rng = both, rng
        self._open: list[query_service_pb2.ScanRequest] = []
        self.pages = Passed(both.express, FromProxy.SCAN)

    async def draw(self) -> None:
        """Ask both for a page: the next one of a walk, or the first of another."""
        rng = self._rng
        if self._open and rng.random() < 0.7:
            asked = self._open.pop(rng.randrange(len(self._open)))
            asked.page_size = rng.choice((1, 3, 10, 40, 0))
            request = asked.SerializeToString()
        else:
            request = made_page_request(rng, (STORE,) * 20 + ("no",))
            request = spoiled(rng, request) if rng.random() < 0.03 else request
        express, plain = await asyncio.gather(
            *(page_of(each, request) for each in (self._both.express, self._both.plain))
        )
        assert express == plain, request
        if isinstance(express, bytes) and (token := query_service_pb2.ScanResponse.FromString(express).next_page_token):
            asked = query_service_pb2.ScanRequest.FromString(request)
            asked.page_token = token
            self._open.append(asked)


async def page_of(fleet: Any, request: bytes) -> object:
    ask: Any = fleet.channel.unary_unary(SCAN)
    try:
        return await ask(request, timeout=20)
    except grpc.aio.AioRpcError as error:
        failure = from_rpc_error(error)
        # If several partitions fail, the first one is named, whichever that is.
        is_any = failure.reason in {Reason.NO_REPLICA_AVAILABLE, Reason.MOMENTS_UNAVAILABLE}
        return failure.reason, "" if is_any else failure.message


async def test_pages_are_answered_as_by_a_router_without_a_proxy() -> None:
    rng, draws = random.Random(11), 600
    async with pair() as both:
        fleet = both.express.nodes
        for name, at in itertools.product(NAMES, range(PARTITIONS)):
            held = [key.encode() for key in KEYS if zlib.crc32(key.encode()) % PARTITIONS == at]
            fleet[name].data[at] = {key: b"value of " + key for key in held}
        walks = Walks(both, rng)
        before = both.count("express_lookups_total", store=STORE, role="")
        for nth in range(draws):
            for node in fleet.values():
                node.page_limit = rng.choice((1_000_000, 1_000_000, 4))
                refuses = rng.random() < 0.05
                node.failure = LookupFailure(Reason.PARTITION_RESTORING, "not now") if refuses else None
                lacks_keys = rng.random() < 0.03
                node.change_page = (lambda page: page.ClearField("entry_keys")) if lacks_keys else id
            if nth == draws // 2:
                await fleet["c"].kill()
            await walks.draw()
        await poll_until_async(lambda: both.count("express_lookups_total", store=STORE, role="") > before, 5, "sums")
        assert both.count("express_lookups_total", store=STORE, role="") - before > draws * 0.2
        assert walks.pages.handed > draws * 0.03
        assert walks.pages.whole > draws * 0.05


ASKED: Final = query_service_pb2.ScanRequest(store="s", page_size=10).SerializeToString()


def snapshot_of(*addresses: str, late_after_s: float = 5.0) -> ExpressSnapshot:
    """Return one in which each node has one partition, and the first two."""
    snapshot = ExpressSnapshot(number=1, page_forwarding=b"\x7a\x04\x10\x01\x20\x01", max_lookups=1_000)
    snapshot.batch_late_after_us = round(late_after_s * 1e6)
    for nth, address in enumerate(addresses):
        snapshot.nodes.add(instance_id=f"n{nth}", address=address, role=Role.ACTIVE.value)
    first = [1, *range(1, len(addresses) + 1)]
    snapshot.stores.add(name="s", key_form=KEY_FORM_TEXT, first=first, pages=True)
    return snapshot


def page_with(keys: Sequence[bytes], size: int = 1) -> bytes:
    entries = [
        query_service_pb2.Entry(key=types_pb2.Key(raw=key), value=types_pb2.Value(raw=bytes(size))) for key in keys
    ]
    return query_service_pb2.ScanResponse(entries=entries, entry_keys=keys).SerializeToString()


def scan_of(node: Served, answer: bytes | LookupFailure) -> None:
    """Have a node give an answer when it may."""

    async def scan(_request: bytes, _context: LinkContext) -> bytes:
        node.arrived.set()
        try:
            await node.may_go_on.wait()
        except asyncio.CancelledError:
            node.left.set()
            raise
        if isinstance(answer, LookupFailure):
            raise answer
        return answer

    node.batch_get = scan  # type: ignore[assignment,method-assign]


@asynccontextmanager
async def scripted(
    *answers: bytes | LookupFailure, late_after_s: float = 5.0
) -> AsyncIterator[tuple[list[Served], Served, ByRouter, grpc.aio.Channel]]:
    """Give nodes with these answers, and a router whose proxy asks them for pages."""
    async with AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(served()) for _ in answers]
        it = await stack.enter_async_context(served())
        at = await stack.enter_async_context(channel(it.target, MAX_BYTES))
        for node, answer in zip(fleet, answers, strict=True):
            scan_of(node, answer)
        await tell(it, snapshot_of(*(node.target for node in fleet), late_after_s=late_after_s), fleet[0])
        yield fleet, it, ByRouter(it), at


async def test_a_refusal_is_handed_over_with_what_others_answered() -> None:
    there = page_with([b"a"])
    async with scripted(there, LookupFailure(Reason.NOT_ACTIVE, "not here")) as (fleet, _it, router, at):
        router.may_answer.set()
        asked = asyncio.ensure_future(call(at, SCAN, ASKED))
        fleet[0].may_go_on.set()
        await asyncio.wait_for(fleet[1].arrived.wait(), 5)
        await tell_when_answered(fleet[0])
        fleet[1].may_go_on.set()
        assert await asked == [b"router " + ASKED]
        request, calls = await router.handed.get()
        assert request == ASKED
        assert calls is not None
        assert [(each.instance_id, each.partitions, each.lookups) for each in calls] == [
            ("n0", (0, 1), 1),
            ("n1", (2,), 1),
        ]
        assert await asyncio.wait_for(calls[0].came, 5) == there
        assert await reason_of(calls[1]) is Reason.NOT_ACTIVE


async def tell_when_answered(node: Served) -> None:
    await asyncio.wait_for(node.arrived.wait(), 5)


async def test_a_call_that_fails_is_handed_over_beside_one_that_is_under_way() -> None:
    async with scripted(page_with([b"a"]), b"") as (fleet, it, router, at):
        gone = snapshot_of(fleet[0].target, f"127.0.0.1:{free_port()}")
        await tell(it, gone, fleet[0])
        asked = asyncio.ensure_future(call(at, SCAN, ASKED))
        _, calls = await asyncio.wait_for(router.handed.get(), 5)
        assert calls is not None
        assert await reason_of(calls[1]) is Reason.UNREACHABLE
        assert not calls[0].came.done()
        fleet[0].may_go_on.set()
        assert await asyncio.wait_for(calls[0].came, 5) == page_with([b"a"])
        assert not asked.done(), "the router puts the page together"
        router.may_answer.set()
        assert await asked == [b"router " + ASKED]


async def test_a_late_page_is_handed_over_and_who_leaves_is_not_worked_for() -> None:
    async with scripted(b"", late_after_s=0.05) as (fleet, _it, router, at):
        made = at.unary_unary(SCAN)(ASKED, timeout=20)
        _, calls = await asyncio.wait_for(router.handed.get(), 5)
        assert calls is not None
        assert [each.came.done() for each in calls] == [False]
        assert asyncio.get_running_loop().time() - calls[0].sent_at >= 0.05
        made.cancel()
        await asyncio.wait_for(fleet[0].left.wait(), 5)


async def test_after_large_answers_more_is_taken() -> None:
    # Ten entries of 3 KB: three times what they take at first.
    answer = page_with([b"key-%d" % nth for nth in range(10)], 3_000)
    async with scripted(answer) as (fleet, _it, router, at):
        fleet[0].may_go_on.set()
        router.may_answer.set()
        for _ in range(2):
            assert await call(at, SCAN, ASKED) == [b"router " + ASKED]
            _, calls = await router.handed.get()
            assert calls is not None
            assert [await each.came for each in calls] == [None]
        request = query_service_pb2.ScanRequest.FromString(ASKED)
        assert await call(at, SCAN, ASKED) == [joined(request, [answer], MAX_BYTES, SERDES["bytes"])]


async def test_pages_are_the_routers_when_there_is_no_room_for_answers() -> None:
    asked = query_service_pb2.ScanRequest(store="s", page_size=1_000).SerializeToString()
    async with scripted(page_with([b"a"])) as (fleet, _it, router, at):
        router.may_answer.set()
        # A connection alone may have a third of 192 MiB, and each answer has up to a message of 1 MB.
        calls = [asyncio.ensure_future(call(at, SCAN, asked)) for _ in range(100)]
        for _ in range(30):
            assert await asyncio.wait_for(router.handed.get(), 5) == (asked, None)
        fleet[0].may_go_on.set()
        answers = await asyncio.gather(*calls)
        by_router = answers.count([b"router " + asked])
        assert 30 <= by_router <= 40
        assert answers.count(
            [joined(query_service_pb2.ScanRequest(), [page_with([b"a"])], MAX_BYTES, SERDES["bytes"])]
        ) == (100 - by_router)


async def test_sums_have_pages_and_their_calls() -> None:
    async with scripted(page_with([b"a"]), page_with([b"b"])) as (fleet, it, _router, at):
        for node in fleet:
            node.may_go_on.set()
        sums: list[ExpressSums] = []
        it.proxy.link.on_sums = lambda data: sums.append(ExpressSums.FromString(data))
        for _ in range(10):
            await call(at, SCAN, ASKED)
        await poll_until_async(lambda: sum(each.count for one in sums for each in one.pages) >= 10, 5, "all sums")
        pages = [each for one in sums for each in one.pages]
        assert {(each.store, each.instance_id, each.role) for each in pages} == {("s", "", 0)}
        assert sum(len(each.took_us) for each in pages) == 10
        calls = [(each.instance_id, each.count) for one in sums for each in one.page_calls]
        assert {name: sum(count for its, count in calls if its == name) for name in ("n0", "n1")} == {
            "n0": 10,
            "n1": 10,
        }
        assert not any(one.sums or one.batch_calls for one in sums)


@pytest.mark.parametrize(
    "change", [lambda it: setattr(it.stores[0], "pages", False), lambda it: it.stores[0].first.__setitem__(1, 0)]
)
async def test_pages_that_are_not_decided_are_the_routers(change: Callable[[ExpressSnapshot], object]) -> None:
    async with scripted(page_with([b"a"])) as (fleet, it, router, at):
        snapshot = snapshot_of(fleet[0].target)
        change(snapshot)
        await tell(it, snapshot, fleet[0])
        router.may_answer.set()
        assert await call(at, SCAN, ASKED) == [b"router " + ASKED]
        assert await router.handed.get() == (ASKED, None)
