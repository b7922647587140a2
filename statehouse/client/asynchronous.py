"""The client for asyncio."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from statehouse.client import conversion
from statehouse.client.answers import Explanation, Fleet, InputRecord, KeyLike, Location, Lookup
from statehouse.client.direct import Direct
from statehouse.client.lookups import Lookups
from statehouse.client.peers import Router
from statehouse.client.reads import AsyncReads
from statehouse.consistency import ANY, Freshness
from statehouse.positions import Token
from statehouse.v1 import fleet_service_pb2

DEFAULT_TARGET: Final = "127.0.0.1:7100"
DEFAULT_TIMEOUT_S: Final = 5.0
DEFAULT_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024


class AsyncClient(AsyncReads):
    """Reads stores. Belongs to the event loop it is first used on.

    `target`: a router's host:port, or a node's, which answers for its own partitions only.
    `timeout`: seconds for each call, each page of a scan being one; a method's `timeout` overrides it.
    `max_message_bytes`: must be what routers and nodes have.
    `direct`: reads of single keys go straight to the key's active where it can be reached, and through the router where
    that fails; the router tells where the actives are. False: through the router always.

    `freshness`: the bounds of a `Freshness` must all hold. With none, the active answers if it can, else the freshest
    standby, and the answer says which.
    `at_least`: the `token` of an earlier answer. The read sees what that one saw, or waits for it; the same as in
    `freshness`. A `session` does this by itself.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        direct: bool = True,
    ) -> None:
        router = Router(target, max_message_bytes)
        ways = Direct(router, max_message_bytes) if direct else None
        super().__init__(router, Lookups(router, ways, max_message_bytes), timeout)

    def session(self, at_least: Token | None = None) -> AsyncReadSession:
        """Begin a session: reads of which none goes back before what an earlier one saw, whoever answers.

        `at_least`: what was seen before, the `token` of an earlier session say.
        """
        return AsyncReadSession(self._router, self._lookups, self._timeout_s, at_least)

    async def locate(
        self,
        store: str,
        key: KeyLike,
        *,
        freshness: Freshness = ANY,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Location:
        """Tell where a key lives and, for each replica, whether a lookup within the bounds would use it.

        Raises:
            LookupFailure: the store is unknown, the key wrong, or the router not ready.

        """
        request = fleet_service_pb2.LocateKeyRequest(
            store=store,
            key=conversion.to_key(key),
            freshness=conversion.to_freshness(freshness, store),
        )
        seconds = self._seconds(timeout)
        call = self._router.fleet.LocateKey(request, timeout=seconds)
        return conversion.from_locate(await self._router.ask(call, seconds))

    async def explain(
        self,
        store: str,
        key: KeyLike,
        *,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Explanation:
        """Look one key up through the router, and tell what was done for it. A lookup that fails is told of, too.

        Raises:
            LookupFailure: the store is unknown, the key wrong, or the router can't be reached or is not ready.

        """
        bounds = self._bounds(freshness, at_least)
        request = fleet_service_pb2.ExplainGetRequest(lookup=conversion.to_get(Lookup(store, key, bounds, raw)))
        seconds = self._seconds(timeout)
        call = self._router.fleet.ExplainGet(request, timeout=seconds)
        return conversion.from_explain(await self._router.ask(call, seconds))

    async def fleet(self, *, timeout: float | None = None) -> Fleet:  # noqa: ASYNC109 - as above
        """Return the newest assignment and the nodes, as the router sees them.

        Raises:
            LookupFailure: the router can't be reached or is not ready.

        """
        seconds = self._seconds(timeout)
        call = self._router.fleet.GetFleet(fleet_service_pb2.GetFleetRequest(), timeout=seconds)
        return conversion.from_fleet(await self._router.ask(call, seconds))

    async def await_input(
        self,
        store: str,
        *records: InputRecord,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Token:
        """Wait until the processor has committed records of the store's inputs; return what a read must see.

        Give the token to reads as `at_least`: they see all that the processor published of the records. A result that
        it publishes only later, when a window closes say, is not among it. `timeout`: more than a micro-batch takes.

        Raises:
            LookupFailure: INPUT_NOT_PROCESSED in time; INVALID_REQUEST, a topic is none of the store's inputs.

        """
        request = fleet_service_pb2.AwaitInputRequest(
            store=store,
            records=[
                fleet_service_pb2.InputRecord(topic=each.topic, partition=each.partition, offset=each.offset)
                for each in records
            ],
        )
        seconds = self._seconds(timeout)
        response = await self._router.ask(self._router.fleet.AwaitInput(request, timeout=seconds), seconds)
        return Token.from_proto(response.at_least)

    async def close(self) -> None:
        """Close the connections; calls under way fail."""
        await self._lookups.close()
        await self._router.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncReadSession(AsyncReads):
    """Reads through a client's connection that never go back in time: each sees what those before it saw, or waits.

    `token` is what they saw; a session begun with it, in another process maybe, goes on from there. Reads that are
    under way at once know nothing of each other.
    """

    def __init__(self, router: Router, lookups: Lookups, timeout_s: float, at_least: Token | None) -> None:
        """Made by `AsyncClient.session`."""
        super().__init__(router, lookups, timeout_s)
        self.token = Token() if at_least is None else at_least

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; there is nothing to release."""

    def _bounds(self, freshness: Freshness, at_least: Token | None = None) -> Freshness:
        return super()._bounds(freshness, self.token if at_least is None else at_least | self.token)

    def _saw(self, token: Token) -> None:
        self.token |= token
