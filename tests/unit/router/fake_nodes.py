"""Nodes that do as a test says, and a router in front of them, all in this process on free ports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

import grpc
import grpc.aio
import pytest
from grpc_status import rpc_status

from router.server import RouterServer
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.moments import MomentBound
from statehouse.contract.paging import bound_of_page, next_page_token, page_size
from statehouse.contract.scan_ranges import key_range
from statehouse.errors import LookupFailure, Reason
from statehouse.errors.statuses import to_status
from statehouse.link.proxy import NONE
from statehouse.rpc.failures import from_rpc_error
from statehouse.serdes import SERDES, shown_key, shown_value
from statehouse.settings import RouterSettings
from statehouse.v1 import errors_pb2, query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.support.constants import settings_of
from tests.unit.router.fleets import STORE, assignment, member, report

Context = grpc.aio.ServicerContext[Any, Any]


class FakeNode(query_service_pb2_grpc.QueryServiceServicer):
    """Answers with its own name, or fails, or late, or not at all, as `failure`, `delay_s` and `freeze` say.

    `data` holds entries by partition, for scans, whose pages `change_page` may change, and for counts, which wait for
    `counts`. `gets`, `batches` and `scans` are the requests received, `times` how many seconds the callers of the gets
    would wait, `held` the calls of any kind that came while it was frozen, and `left_held` those of them whose caller
    left meanwhile. A lookup in a batch fails as `failures` says for its key; `lets_wait` has it fail because it would
    have to wait. `kept` are the batches that it shows, of all partitions or by partition; None: it is of an earlier
    version, and shows none. `on_shown` is called when it has shown one.
    """

    def __init__(self, instance_id: str) -> None:
        self.instance_id = instance_id
        self.version = ""
        self.failure: LookupFailure | Callable[[], LookupFailure | None] | None = None
        self.thaws = asyncio.Event()
        self.thaws.set()
        self.held = 0
        self.delay_s = 0.0
        self.data: dict[int, dict[bytes, bytes]] = {}
        self.value_serde = "string"
        self.page_limit = 1_000_000
        self.change_page: Callable[[query_service_pb2.ScanResponse], object] = id
        self.counts = asyncio.Event()
        self.counts.set()
        self.counts_begun = self.counts_cancelled = 0
        self.gets: list[query_service_pb2.GetRequest] = []
        self.times: list[float | None] = []
        self.batches: list[list[query_service_pb2.GetRequest]] = []
        self.scans: list[query_service_pb2.ScanRequest] = []
        self.batch_limit = 1_000
        self.padding = 0
        self.failures: dict[str, LookupFailure] = {}
        self.lets_wait = False
        self.kept: list[int] | dict[int, list[int]] | None = None
        self.query_of: dict[str, str] = {}
        self.on_shown: Callable[[], object] = int
        self.asked_for: list[MomentBound] = []
        self.left_held = 0
        self.watches: list[query_service_pb2.WatchRequest] = []
        self.feeds: dict[int, asyncio.Queue[query_service_pb2.WatchResponse | LookupFailure]] = {}
        self.feed_all: list[query_service_pb2.WatchResponse] = []  # what every watch is sent at its beginning
        self.left = 0
        self._server = self._new_server()
        self.port: int = self._server.add_insecure_port("127.0.0.1:0")

    def freeze(self) -> None:
        """Answer nothing more, health checks included."""
        self.thaws.clear()

    @property
    def lookups(self) -> int:
        """How many came, alone and in batches."""
        return len(self.gets) + sum(map(len, self.batches))

    @property
    def host(self) -> types_pb2.Host:
        return types_pb2.Host(instance_id=self.instance_id, host="127.0.0.1", port=self.port)

    async def start(self) -> Self:
        await self._server.start()
        return self

    async def kill(self) -> None:
        await self._server.stop(None)

    async def restart(self) -> None:
        self._server = self._new_server()
        assert self._server.add_insecure_port(f"127.0.0.1:{self.port}") == self.port
        await self._server.start()

    async def Get(self, request: query_service_pb2.GetRequest, context: Context) -> query_service_pb2.GetResponse:  # noqa: N802
        self.gets.append(request)
        self.times.append(context.time_remaining())
        await self._misbehave(context, request)
        try:
            return self._answer(request)
        except LookupFailure as failure:
            await _abort(context, failure)
            raise

    async def BatchGet(  # noqa: N802
        self, request: query_service_pb2.BatchGetRequest, context: Context
    ) -> query_service_pb2.BatchGetResponse:
        self.batches.append(list(request.requests))
        if len(request.requests) > self.batch_limit:
            await _abort(context, LookupFailure(Reason.MESSAGE_TOO_LARGE, "too large"))
        results = []
        for one in request.requests:
            failure = LookupFailure(Reason.WOULD_WAIT, "not there yet") if self.lets_wait else self._failure(one)
            try:
                if failure is not None:
                    raise failure
                results.append(query_service_pb2.BatchGetResult(response=self._answer(one)))
            except LookupFailure as why:
                results.append(query_service_pb2.BatchGetResult(error=why.to_proto()))
        return query_service_pb2.BatchGetResponse(results=results)

    async def Scan(self, request: query_service_pb2.ScanRequest, context: Context) -> query_service_pb2.ScanResponse:  # noqa: N802
        self.scans.append(request)
        await self._misbehave(context)
        assert request.forwarding.entry_keys
        partitions = list(request.partitions) or [request.partition]
        if missing := set(partitions) - self.data.keys():
            await _abort(context, LookupFailure(Reason.PARTITION_NOT_OWNED, f"no {min(missing)} here"))
        held = {key: value for partition in partitions for key, value in self.data[partition].items()}
        wanted = key_range(request, SERDES["string"])
        try:
            stamps = [self._stamp(bound_of_page(request), partition) for partition in partitions]
        except LookupFailure as failure:
            await _abort(context, failure)
            raise
        keys = sorted(held, reverse=request.reverse)
        keys = [key for key in keys if key >= wanted.start and (wanted.stop is None or key < wanted.stop)]
        limit = min(page_size(request), self.page_limit)
        serde, value_serde = SERDES["string"], SERDES[self.value_serde]
        page = query_service_pb2.ScanResponse(
            entries=[
                query_service_pb2.Entry(
                    key=shown_key(serde, key, raw=request.raw),
                    value=shown_value(value_serde, held[key], raw=request.raw),
                )
                for key in keys[:limit]
            ],
            entry_keys=keys[:limit],
            next_page_token=next_page_token(request, keys[limit - 1]) if len(keys) > limit else "",
            replicas=stamps,
        )
        self.change_page(page)
        return page

    async def Count(self, request: query_service_pb2.CountRequest, context: Context) -> query_service_pb2.CountResponse:  # noqa: N802
        await self._misbehave(context)
        self.counts_begun += 1
        try:
            await self.counts.wait()
        except asyncio.CancelledError:
            self.counts_cancelled += 1
            raise
        held = self.data.get(request.partition, {})
        bound = MomentBound.from_proto(request.freshness.moment) if request.freshness.HasField("moment") else None
        return query_service_pb2.CountResponse(
            count=len(held),
            exact=request.exact,
            replicas=[self._stamp(bound, request.partition)],
        )

    async def Watch(self, request: query_service_pb2.WatchRequest, context: Context) -> None:  # noqa: N802
        """Confirm, send what `feed` is given, and end with the failure among it."""
        self.watches.append(request)
        self.feeds.pop(request.partition, None)  # it can't be fed before it is confirmed
        await self._misbehave(context)
        stamp = types_pb2.ReplicaStamp(partition=request.partition, host=self.host, version=self.version)
        marks = types_pb2.Moment() if request.mark_moments and self.kept is not None else None
        await context.write(query_service_pb2.WatchResponse(replica=stamp, moment=marks))
        feed: asyncio.Queue[query_service_pb2.WatchResponse | LookupFailure] = asyncio.Queue()
        self.feeds[request.partition] = feed
        for item in self.feed_all:
            feed.put_nowait(item)
        try:
            while True:
                item = await feed.get()
                if isinstance(item, LookupFailure):
                    await _abort(context, item)
                else:
                    item.replica.CopyFrom(stamp)
                    await context.write(item)
        finally:
            self.left += 1

    def feed(self, partition: int, *items: query_service_pb2.WatchResponse | LookupFailure) -> None:
        for item in items:
            self.feeds[partition].put_nowait(item)

    def _new_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=[_Freezer(self)], options=[("grpc.so_reuseport", 0)])
        query_service_pb2_grpc.add_QueryServiceServicer_to_server(self, server)
        return server

    def _failure(self, request: query_service_pb2.GetRequest | None = None) -> LookupFailure | None:
        if request is not None and request.key.text in self.failures:
            return self.failures[request.key.text]
        return self.failure() if callable(self.failure) else self.failure

    async def _misbehave(self, context: Context, request: query_service_pb2.GetRequest | None = None) -> None:
        failure = self._failure(request)
        if failure is not None:
            await _abort(context, failure)

    def _answer(self, request: query_service_pb2.GetRequest) -> query_service_pb2.GetResponse:
        bound = MomentBound.from_proto(request.freshness.moment) if request.freshness.HasField("moment") else None
        stamp = self._stamp(bound, query_id=self.query_of.get(request.key.text, "q"))
        stamp.epoch = request.forwarding.epoch
        return query_service_pb2.GetResponse(
            found=True,
            value=types_pb2.Value(text=f"{self.instance_id}:{request.key.text}" + "." * self.padding),
            replica=stamp,
        )

    def _stamp(self, bound: MomentBound | None, partition: int = 0, query_id: str = "q") -> types_pb2.ReplicaStamp:
        """Return the stamp of an answer, with the batch that it shows.

        Raises:
            LookupFailure: it shows none that the read may be of.

        """
        stamp = types_pb2.ReplicaStamp(host=self.host, partition=partition, version=self.version)
        if bound is None or self.kept is None:
            return stamp
        self.asked_for.append(bound)
        kept = self.kept[partition] if isinstance(self.kept, dict) else self.kept
        exactly, least = bound.exactly(query_id), bound.least(query_id)
        newest = max(kept, default=-1)
        if (least if exactly is None else exactly) > newest:
            raise LookupFailure(
                Reason.MOMENT_NOT_REACHED, "not there yet", {"newest": str(newest), "query_id": query_id}
            )
        if exactly is not None and exactly not in kept:
            raise LookupFailure(Reason.MOMENT_GONE, "not kept")
        stamp.moment.query_id, stamp.moment.batch_id = query_id, newest if exactly is None else exactly
        self.on_shown()
        return stamp


class _Freezer(grpc.aio.ServerInterceptor):
    """Holds every call, unknown methods included, while the node is frozen, and for a while if it is slow."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        if not self._node.thaws.is_set():
            self._node.held += 1
            try:
                await self._node.thaws.wait()
            except asyncio.CancelledError:
                self._node.left_held += 1
                raise
        if self._node.delay_s:
            await asyncio.sleep(self._node.delay_s)
        return await continuation(handler_call_details)


async def _abort(context: Context, failure: LookupFailure) -> None:
    await context.abort_with_status(rpc_status.to_status(to_status(failure)))


def wrong_owner(epoch: int, active: FakeNode, *standbys: FakeNode) -> LookupFailure:
    """What a node answers that knows a route of this epoch, without itself in it."""
    route = errors_pb2.Route(
        store=STORE, partition=0, epoch=epoch, active=active.host, standbys=[node.host for node in standbys]
    )
    return LookupFailure(Reason.PARTITION_NOT_OWNED, "not here", route=route)


class Fleet:
    """Fake nodes by name, and a router that knows them, and that neither hedges nor holds unless `options` say so."""

    def __init__(self, attempt_timeout_ms: int = 1_000, **options: Any) -> None:
        settings = settings_of(
            RouterSettings,
            application_id="app",
            router_port=0,
            **{
                "proxy": NONE,
                "request_timeout_ms": 10_000,
                "attempt_timeout_ms": attempt_timeout_ms,
                "hedge_min_ms": attempt_timeout_ms,
                "hold_window_ms": 0,
                **options,
            },
        )
        self.router = RouterServer(settings, pytest.fail)
        self.nodes: dict[str, FakeNode] = {}
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.router.port}")
        self.query = query_service_pb2_grpc.QueryServiceStub(self.channel)
        self._incarnations: dict[str, int] = {}

    async def node(self, name: str) -> FakeNode:
        """Start a node."""
        self.nodes[name] = await FakeNode(name).start()
        return self.nodes[name]

    def heartbeat(self, name: str, partitions: int = 1, **reported: Any) -> None:
        """Have a node report its partitions as restored, or as `reported` says."""
        reports = {number: report(**reported) for number in range(partitions)}
        number = self._incarnations.setdefault(name, 1)
        self.router.tracker.on_member(
            member(name, reports, port=self.nodes[name].port, incarnation=str(number), started_at_ms=number)
        )

    def new_incarnation(self, name: str) -> None:
        self._incarnations[name] = self._incarnations.get(name, 1) + 1

    async def publish(self, *holders: TaskAssignment, epoch: int = 1, **serdes: str) -> None:
        """Give the router an assignment and wait until it routes by it."""
        self.router.tracker.on_caught_up("assignment")
        self.router.tracker.on_caught_up("members")
        self.router.tracker.on_assignment(assignment(holders, epoch, **serdes))
        assert await self.router.tables.wait_for_epoch(epoch, 10.0)

    async def get(self, key: str = "k", timeout_s: float | None = None, **fields: Any) -> str:
        """Look a key up; returns which node answered."""
        request = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key), **fields)
        return (await self.query.Get(request, timeout=timeout_s)).replica.host.instance_id

    async def stop(self) -> None:
        for node in self.nodes.values():
            node.thaws.set()
        await self.channel.close()
        await self.router.stop(0.1)
        for node in self.nodes.values():
            await node.kill()


async def start_fleet(names: Sequence[str], **options: Any) -> Fleet:
    """Start nodes that hold partition 0, the first as its active."""
    fleet = Fleet(**options)
    await fleet.router.start()
    for name in names:
        await fleet.node(name)
        fleet.heartbeat(name)
    await fleet.publish(TaskAssignment(names[0], tuple(names[1:])))
    return fleet


async def failure_of(lookup: Awaitable[object]) -> LookupFailure:
    """Return what a lookup through a router fails with; one that doesn't fails the test."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lookup
    return from_rpc_error(caught.value)
