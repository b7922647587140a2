"""The client for asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from statehouse.client import conversion
from statehouse.client.addresses import DEFAULT_PORT, addresses
from statehouse.client.answers import (
    AnyKey,
    DescribedMoment,
    Explanation,
    Fleet,
    InputRecord,
    Location,
    Lookup,
    Partition,
    Store,
)
from statehouse.client.connections import Connections
from statehouse.client.frames import AsyncFrameReads
from statehouse.client.key_reads import KeyReads
from statehouse.client.moments import PinnedMoment
from statehouse.client.node_connections import NodeConnections
from statehouse.client.reads import AsyncStateReads
from statehouse.client.routers import Routers, closed
from statehouse.contract.consistency import ANY, Freshness
from statehouse.contract.moments import MomentToken
from statehouse.contract.positions import Token
from statehouse.errors import ConfigurationError
from statehouse.rpc.credentials import ClientTls, CredentialFiles
from statehouse.v1 import fleet_service_pb2

if TYPE_CHECKING:
    from statehouse.client.spans import LookupSpans

DEFAULT_TARGET: Final = f"127.0.0.1:{DEFAULT_PORT}"
DEFAULT_TIMEOUT_S: Final = 5.0
DEFAULT_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024


class AsyncClient(AsyncFrameReads):
    """Reads stores. It may be made anywhere, and connects when it is first used, on the event loop of that use.

    It stays on that loop, and in that process, as long as the loop isn't closed; then the next use connects anew. Used
    on another loop, or in a process that was forked from the one that uses it, it raises `UsageError`. Pickled or
    copied, it is a new client of the same settings.

    `target`: a router's host:port (port 7100 if it has none), or several separated by commas: a call goes on to another
    one if its router fails, within its time. If no router answers, calls wait for one to come back, unless none has
    ever answered. A node's address will do, too; a node answers for its own partitions only. `timeout`: seconds for
    each call; each page of a scan is a call. A method's `timeout` overrides it. `max_message_bytes`: must equal the
    setting of routers and nodes. `direct`: True sends reads of single keys straight to the key's active if it can be
    reached, and through the router if that fails; the router tells the client where the actives are. False sends every
    read through the router. `tls`: if given, routers and nodes are called over TLS; it raises `ConfigurationError` if
    files of it can't be used. `tracing`: reads of single keys are spans of the program's own OpenTelemetry, and routers
    and nodes go on with them; it needs the extra `tracing`.

    `freshness`: all bounds of a `Freshness` must hold. Without bounds, the active answers if it can, else the freshest
    standby; the answer says which. `at_least`: the `token` of an earlier answer. The read sees at least what that
    answer saw, or waits for it; `Freshness.at_least` means the same. A `session` passes its token automatically. In a
    `moment` all reads show the same batch.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        direct: bool = True,
        tls: ClientTls | None = None,
        tracing: bool = False,
    ) -> None:
        files = None if tls is None else CredentialFiles(tls)
        spans = _spans() if tracing else None

        def connect() -> tuple[Routers, KeyReads]:
            router = Routers(target, max_message_bytes, files)
            nodes = NodeConnections(router, max_message_bytes, files) if direct else None
            return router, KeyReads(router, nodes, max_message_bytes, spans)

        super().__init__(Connections(",".join(addresses(target)), connect), timeout)
        self.settings: Mapping[str, Any] = {
            "timeout": timeout,
            "max_message_bytes": max_message_bytes,
            "direct": direct,
            "tls": tls,
            "tracing": tracing,
        }
        """What it was made with, apart from the target."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """Say how to make a client of the same settings: connections can't be taken along."""
        return functools.partial(type(self), **self.settings), (self.target,)

    def session(self, at_least: Token | None = None) -> AsyncReadSession:
        """Begin a session. Each read in it sees at least what the session's earlier reads saw, on any replica.

        `at_least`: where to start, for example the `token` of an earlier session.
        """
        return AsyncReadSession(self._connections, self._timeout_s, at_least)

    def moment(self, at_least: MomentToken | None = None) -> AsyncMomentReads:
        """Begin reads of one moment: whatever is read in it is of the same batch, of each query.

        That is the newest batch that the first read of the query's stores finds, and none before those that this client
        has seen. `at_least`: nor before this, for example the `moment` of another client's reads.
        """
        return AsyncMomentReads(self._connections, self._timeout_s, at_least)

    async def locate(
        self,
        store: str,
        key: AnyKey,
        *,
        freshness: Freshness = ANY,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Location:
        """Return where a key lives and, for each replica, whether a lookup within the bounds would use it.

        Raises:
            LookupFailure: the store is unknown, the key wrong, or the router not ready.

        """
        request = fleet_service_pb2.LocateKeyRequest(
            store=store,
            key=await self._key(store, key, timeout),
            freshness=conversion.to_freshness(freshness, store),
        )
        seconds = self._seconds(timeout)
        located = await self._router.ask(lambda peer, left_s: peer.fleet.LocateKey(request, timeout=left_s), seconds)
        return conversion.from_locate(located)

    async def explain(
        self,
        store: str,
        key: AnyKey,
        *,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Explanation:
        """Look one key up through the router, and return each step. A failed lookup is returned, too, not raised.

        Raises:
            LookupFailure: the store is unknown, the key wrong, or the router can't be reached or is not ready.

        """
        bounds = self._bounds(store, freshness, at_least)
        lookup = conversion.to_get(Lookup(store, key, bounds, raw), await self._key(store, key, timeout))
        request = fleet_service_pb2.ExplainGetRequest(lookup=lookup)
        seconds = self._seconds(timeout)
        explained = await self._router.ask(lambda peer, left_s: peer.fleet.ExplainGet(request, timeout=left_s), seconds)
        return conversion.from_explain(explained)

    async def fleet(self, *, version: str = "", timeout: float | None = None) -> Fleet:  # noqa: ASYNC109 - as above
        """Return the newest assignment and the nodes, as the router sees them.

        `version`: of the application; "": the one that serves.

        Raises:
            LookupFailure: the router can't be reached or is not ready, or there is no such version.

        """
        seconds = self._seconds(timeout)
        request = fleet_service_pb2.GetFleetRequest(version=version)
        fleet = await self._router.ask(lambda peer, left_s: peer.fleet.GetFleet(request, timeout=left_s), seconds)
        return conversion.from_fleet(fleet)

    async def stores(self, *, timeout: float | None = None) -> tuple[Store, ...]:  # noqa: ASYNC109 - as above
        """Return the stores of the newest assignment, by name.

        Raises:
            LookupFailure: the router can't be reached or is not ready.

        """
        return await self._listed_stores(timeout)

    async def partitions(self, store: str, *, timeout: float | None = None) -> tuple[Partition, ...]:  # noqa: ASYNC109 - as above
        """Return a store's partitions, from 0: who may answer for each, and what each replica last reported.

        Raises:
            LookupFailure: the router can't be reached or is not ready; UNKNOWN_STORE.

        """
        seconds = self._seconds(timeout)
        request = fleet_service_pb2.ListPartitionsRequest(store=store)
        listed = await self._router.ask(
            lambda peer, left_s: peer.fleet.ListPartitions(request, timeout=left_s), seconds
        )
        return conversion.from_partitions(listed)

    async def describe_moment(
        self,
        store: str,
        moment: MomentToken | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> DescribedMoment:
        """Return what the processor has told of a batch, the newest one if none is named: what it has of the inputs.

        Raises:
            LookupFailure: MOMENTS_UNAVAILABLE; MOMENT_GONE or MOMENT_NOT_REACHED, the router doesn't know the batch any
                more, or yet; UNKNOWN_STORE; the router is of an earlier version, or can't be reached.

        """
        seconds = self._seconds(timeout)
        named = None if moment is None else moment.to_proto()
        request = fleet_service_pb2.GetMomentRequest(store=store, moments=named)
        response = await self._router.ask(lambda peer, left_s: peer.fleet.GetMoment(request, timeout=left_s), seconds)
        return conversion.from_moment(response)

    async def await_input(
        self,
        store: str,
        *records: InputRecord,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Token:
        """Wait until the processor has committed records of the store's inputs; return what a read must see.

        Give the token to reads as `at_least`: they see every result of the records that the processor has published.
        They do not wait for results that it publishes later, for example when a window closes. `timeout`: seconds;
        allow more than a micro-batch takes.

        Raises:
            LookupFailure: INPUT_NOT_PROCESSED if the time passes first; INVALID_REQUEST if a topic is not an input of
                the store.

        """
        request = fleet_service_pb2.AwaitInputRequest(
            store=store,
            records=[
                fleet_service_pb2.InputRecord(topic=each.topic, partition=each.partition, offset=each.offset)
                for each in records
            ],
        )
        seconds = self._seconds(timeout)
        response = await self._router.ask(lambda peer, left_s: peer.fleet.AwaitInput(request, timeout=left_s), seconds)
        return Token.from_proto(response.at_least)

    async def close(self) -> None:
        """Close the connections; calls under way fail. Closing twice does no harm.

        Raises:
            UsageError: it is in use on another event loop, which isn't closed.

        """
        await self._connections.close()

    async def __aenter__(self) -> Self:
        """Return itself.

        Raises:
            LookupFailure: it was closed.

        """
        if self._connections.is_closed:
            raise closed()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _spans() -> LookupSpans:
    try:
        from statehouse.client.spans import LookupSpans  # noqa: PLC0415 - most clients make none
    except ImportError as error:
        raise ConfigurationError(
            "tracing needs OpenTelemetry, which isn't installed: pip install 'statehouse[tracing]'"
        ) from error
    return LookupSpans()


class AsyncReadSession(AsyncFrameReads):
    """Reads that never go back in time: each sees at least what earlier ones saw, or waits.

    `token` says what they saw; a session begun with it continues from there, also in another process. Reads that run
    at the same time do not affect each other.
    """

    def __init__(self, connections: Connections, timeout_s: float, at_least: Token | None) -> None:
        """Made by `AsyncClient.session`."""
        super().__init__(connections, timeout_s)
        self.token = Token() if at_least is None else at_least

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r}, token={str(self.token)!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """End; there is nothing to release."""

    def _bounds(self, store: str, freshness: Freshness, at_least: Token | None = None) -> Freshness:
        return super()._bounds(store, freshness, self.token if at_least is None else at_least | self.token)

    def _saw(self, token: Token) -> None:
        self.token |= token


class AsyncMomentReads(AsyncStateReads):
    """Reads of one moment: all that they show, of any keys, stores and pages, is of the same batch of each query.

    Which batch that is follows from the first read of a query's stores; others of that query that begin meanwhile wait
    for it. A moment is kept for a while: if it is older, reads fail with MOMENT_GONE. Begin another one then.
    """

    def __init__(self, connections: Connections, timeout_s: float, at_least: MomentToken | None) -> None:
        """Made by `AsyncClient.moment`."""
        super().__init__(connections, timeout_s)
        seen = connections.moments
        self._pinned = PinnedMoment(seen.token if at_least is None else at_least | seen.token, seen)
        self._first = asyncio.Lock()

    @property
    def moment(self) -> MomentToken:
        """The batches that were shown, one of each query: for `at_least` of later moments, or other clients' reads."""
        return self._pinned.token

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r}, moment={str(self.moment)!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """End; there is nothing to release."""

    @asynccontextmanager
    async def _turn(self, *stores: str) -> AsyncIterator[None]:
        if all(map(self._pinned.is_pinned, stores)):
            yield
        else:
            async with self._first:
                yield

    def _bounds(self, store: str, freshness: Freshness, at_least: Token | None = None) -> Freshness:
        if freshness.moment is not None:
            raise ValueError("these reads have a moment of their own: leave Freshness.moment out")
        return replace(super()._bounds(store, freshness, at_least), moment=self._pinned.bound(store))

    def _saw_moment(self, store: str, moment: MomentToken | None) -> None:
        self._pinned.note(store, moment)
