"""The data plane: the program in Go, which holds what it can, in front of a node that holds all others."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from unittest.mock import patch

import grpc.aio
from confluent_kafka.admin import AdminClient
from google.protobuf.message import Message

from query_service.dataplane.holding import DataPlaneStore, holds, open_in_data_plane, start_order
from query_service.dataplane.orders import DataPlane
from query_service.reads import lookups
from query_service.reads.open_scans import OpenScans
from query_service.reads.position_waits import PositionNotReached, PositionWaits
from query_service.reads.serde_fetches import SerdeFetches
from query_service.replicas.plane_replication import DataPlaneReplicator
from query_service.replicas.replica import StoreReplica
from query_service.service import QueryServicer
from query_service.serving.serving import Serving
from query_service.serving.snapshots import SnapshotCompiler
from query_service.stores.catalog import open_store
from query_service.stores.engine import StoreClosed
from query_service.stores.resources import StoreResources
from statehouse.contract.committed_moments import CommittedMoments
from statehouse.control.v1 import engine_pb2
from statehouse.kafka.topics import TopicSpec, ensure_topics, topic_states
from statehouse.link.link import LinkContext, LinkHandler
from statehouse.link.proxy import Proxy, ProxyLimits
from statehouse.local.ports import LOOPBACK
from statehouse.rpc.deadline import Deadline, RequestTimes
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.server import RpcServer
from statehouse.runtime.background import BackgroundWork
from statehouse.runtime.held_bytes import HasSize
from statehouse.serdes.wire import frames
from statehouse.settings import NodeSettings
from statehouse.v1 import query_service_pb2_grpc
from tests.conformance.holding import Holding, apply, know_end
from tests.conformance.scene import Held, Scene
from tests.conformance.subject import MAX_BATCH_ENTRIES, MAX_MESSAGE_BYTES
from tests.support.kafka import PlacedRecord, produce_placed
from tests.support.polling import poll_until_async
from tests.support.proxy import PROXY

T = TypeVar("T")

_DEADLINE_S: Final = 30.0
_KEPT: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}
"""Records keep their offsets, however old they are."""
_BY_LINK: Final = ("Get", "BatchGet", "Scan", "Count", "FetchWindows", "FetchSessions", "GetAsOf", "GetHistory")
"""The methods that the program may answer on its own."""


@dataclass(frozen=True, slots=True)
class Changelogs:
    """Topics of a broker that have the records of scenes' stores; `ids` are the broker's, by the topics' names."""

    bootstrap: str
    ids: Mapping[str, str]


@contextmanager
def changelogs(bootstrap: str, scenes: Iterable[Scene]) -> Iterator[Changelogs]:
    """Write the changelogs of the stores that the data plane holds.

    Answers name topics. So they have the names that the scenes give them, each of them once.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics: list[TopicSpec] = []
    records: dict[str, list[PlacedRecord]] = defaultdict(list)
    for scene in scenes:
        topics += (TopicSpec(spec.changelog_topic, spec.partition_count, _KEPT) for spec in scene.stores if holds(spec))
        for held in scene.held:
            if holds(spec := scene.spec(held.store)):
                records[spec.changelog_topic] += ((held.partition, *entry) for entry in held.entries)
    names = [topic.name for topic in topics]
    assert ensure_topics(admin, topics) == names, "each is new"
    try:
        for topic, placed in records.items():
            produce_placed(bootstrap, topic, placed)
        yield Changelogs(bootstrap, {name: found.topic_id for name, found in topic_states(admin, names).items()})
    finally:
        for deleted in admin.delete_topics(names).values():
            deleted.result(_DEADLINE_S)


class _NoWaits(PositionWaits):
    """Nobody writes while a scene is asked: what a wait is for does not come."""

    async def patiently(
        self,
        request: HasSize,
        attempt: Callable[[], Awaitable[T]],
        behind: PositionNotReached,
        deadline: Deadline,  # noqa: ARG002 - as it has it
    ) -> T:
        """See PositionWaits."""
        return await super().patiently(request, attempt, behind, Deadline.after(0.0))


class ProgramNode:
    """The node, asked at the program's port.

    Attributes:
        asked: how many lookups and pages it was asked for, by method: of a batch each lookup.
        alone: how many of these the program has answered on its own.

    """

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.alone: Counter[str] = Counter()
        self._stub: Any = None
        self._of_python = 0

    def connected(self, port: int) -> grpc.aio.Channel:
        """Return the connection to the program, by which it is asked from now on."""
        channel = grpc.aio.insecure_channel(f"{LOOPBACK}:{port}")
        self._stub = query_service_pb2_grpc.QueryServiceStub(channel)
        return channel

    def noting(self, method: str, handler: LinkHandler) -> LinkHandler:
        """Return a handler of Python's that notes what it was asked."""

        def noted(data: bytes, context: LinkContext) -> bytes | Awaitable[bytes]:
            self._of_python += len(frames(data)) if method == "BatchGet" else 1
            return handler(data, context)

        return noted

    async def answer(self, method: str, request: Any) -> Message:
        """See Node."""
        self._of_python = 0
        try:
            return cast("Message", await getattr(self._stub, method)(request, timeout=_DEADLINE_S))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            if method in _BY_LINK:
                count = len(request.requests) if method == "BatchGet" else 1
                self.asked[method] += count
                # Python is asked for a part of a batch, and then for all of it if the results are too large.
                self.alone[method] += max(0, count - self._of_python)


@asynccontextmanager
async def data_plane(
    written: Changelogs, scene: Scene, directory: Path, *, in_memory: bool = False
) -> AsyncIterator[ProgramNode]:
    """Open a node whose data plane holds the stores; a `Subject` once `written` is set."""
    scene = replace(scene, stores=tuple(replace(spec, in_memory=in_memory) for spec in scene.stores))
    async with AsyncExitStack() as opened:
        # How long a batch waits for the program is a matter of the machine's other work.
        opened.enter_context(patch.multiple(lookups, BATCH_WAITS_S=_DEADLINE_S, OWN_BATCH_WAITS_S=_DEADLINE_S))
        holding, node = Holding(scene), ProgramNode()
        settings = NodeSettings(application_id="tests", bootstrap=written.bootstrap, block_cache_bytes=16 << 20)
        server = _server(holding, node, settings, opened)
        plane = DataPlane(asyncio.get_running_loop())
        await server.start()
        opened.push_async_callback(server.close)
        opened.push_async_callback(asyncio.to_thread, holding.close)
        opened.push_async_callback(server.stop, 0.0)
        server.connect(plane)
        await asyncio.wrap_future(plane.begin(start_order(settings, "tests")))
        await _hold(holding, written, plane, directory)
        holding.assign()
        work = BackgroundWork()
        opened.push_async_callback(work.cancel)
        work.start(await _serving(holding, plane), "serving")
        await opened.enter_async_context(node.connected(server.port))
        yield node


def _server(holding: Holding, node: ProgramNode, settings: NodeSettings, opened: AsyncExitStack) -> RpcServer:
    """Return the program in front of the node's services: it has begun to listen, and takes no calls yet."""
    open_scans, fetches = OpenScans(max_open=4, timeout_s=60.0), SerdeFetches(timeout_s=1.0)
    handler = holding.lookups(open_scans)
    for each in (open_scans, fetches, handler):
        opened.callback(each.close)
    waits = _NoWaits(RequestTimes(_DEADLINE_S, _DEADLINE_S), max_waits=1)
    watches = cast("Any", None)  # nobody watches
    servicer = QueryServicer(handler, holding.scans(open_scans), watches, waits, fetches, holding.metrics)
    bind = f"{LOOPBACK}:0"
    limits = ProxyLimits(MAX_MESSAGE_BYTES, 10, 10, MAX_MESSAGE_BYTES)
    proxied = servicer.proxied
    return RpcServer(
        bind,
        ("statehouse.v1.QueryService",),
        partial(query_service_pb2_grpc.add_QueryServiceServicer_to_server, servicer),
        settings=settings,
        proxy=Proxy(str(PROXY), bind, lambda _error: None, limits, share_port=False),
        proxied={**proxied, **{method: node.noting(method, proxied[method]) for method in _BY_LINK}},
        max_batch_entries=MAX_BATCH_ENTRIES,
        lasting_calls=0,
        gate=None,
    )


async def _hold(holding: Holding, written: Changelogs, plane: DataPlane, directory: Path) -> None:
    """Open the stores, where they belong, and wait until all have their records and know the ends of their logs."""
    failures: list[Exception] = []
    replicator = DataPlaneReplicator(
        plane,
        on_batch=lambda _replica, _records: None,
        on_end=lambda _replica: None,
        on_failure=lambda _replica, error: failures.append(error),
        restores=False,
    )
    resources, scene = StoreResources(), holding.scene

    def opened(held: Held) -> StoreReplica:
        spec = scene.spec(held.store)
        path = directory / f"{held.store}-{held.partition}"
        if not holds(spec):
            replica = holding.add(held, open_store(spec, path, resources))
            apply(replica, held)
            return replica
        store = open_in_data_plane(plane, spec, path, stores=len(scene.held), tail_bytes=0, memory_bytes=1 << 30)
        return holding.add(held, store, topic_id=written.ids[spec.changelog_topic])

    replicas = [(await asyncio.to_thread(opened, held), held) for held in scene.held]
    for replica, _ in replicas:
        if isinstance(replica.store, DataPlaneStore):
            await asyncio.wrap_future(replicator.add(replica, replica.store.engine))

    def have_all() -> bool:
        if failures:
            raise failures[0]
        return all(replica.position == len(held.entries) for replica, held in replicas)

    await poll_until_async(have_all, _DEADLINE_S, "the records of all stores")
    for replica, held in replicas:
        know_end(replica, held)


async def _serving(holding: Holding, plane: DataPlane) -> Coroutine[Any, Any, None]:
    """Have the program act on what is decided, and return what goes on saying that this holds."""
    compiler = SnapshotCompiler(holding.admission, max_batch_entries=MAX_BATCH_ENTRIES)
    confirmed_s = _DEADLINE_S if holding.scene.is_confirmed else 0.0
    serving = Serving(plane, compiler, lambda: confirmed_s, holding.reports, holding.metrics, CommittedMoments())
    for store in holding.reports:
        serving.reported(store)
    serving.due()
    # It comes after all that, and so does what the program says of it: that there is no such store.
    with suppress(StoreClosed):
        await asyncio.wrap_future(plane.begin(engine_pb2.EngineOrder(count=engine_pb2.EngineCount(store=0))))
    return serving.hold_forever()
