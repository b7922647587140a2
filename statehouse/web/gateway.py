"""What HTTP handlers have of the fleet: connections to routers and nodes, and the rules of who may ask what.

The web process calls with the identity of its own certificate, a router's, which may ask everything. So each caller of
its own is judged here first, by the rules that routers and nodes have, and by the same code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.message import Message
from starlette.requests import Request

from statehouse.client import AsyncClient, ClientTls
from statehouse.client.peers import Peer
from statehouse.client.routers import RouterCall, Routers
from statehouse.errors import LookupFailure, Reason
from statehouse.observability.denials import counted_gate
from statehouse.rpc.authorized import ON_BEHALF_CHAIN_KEY, ON_BEHALF_KEY
from statehouse.rpc.channels import RenewedChannel
from statehouse.rpc.credentials import CredentialFiles
from statehouse.runtime.address_limits import AddressLimit, Bound
from statehouse.runtime.background import BackgroundWork
from statehouse.security.concealed import concealed_failure
from statehouse.security.draining import LOCAL_ONLY, LocalGate, is_drain_local
from statehouse.security.rights import METRICS, RIGHTS
from statehouse.security.shown import Shown
from statehouse.settings import WebSettings
from statehouse.v1 import fleet_service_pb2, node_service_pb2, node_service_pb2_grpc, query_service_pb2
from statehouse.web.metrics import WebMetrics

if TYPE_CHECKING:
    from statehouse.security.gate import Gate

NodeStub: TypeAlias = "node_service_pb2_grpc.NodeServiceAsyncStub"  # which exists for type checkers only

CERTIFICATE: Final = "peer_certificate"
"""In a request's state: the caller's certificate, and those shown with it, in DER; the handshake has checked them."""
NODES_MAX: Final = 1_000
"""Connections to nodes that are kept; the page asks the nodes that somebody looks at."""
# Methods of our services only: gRPC's health has a method Watch, too, which others may call.
_METHODS: Final[Mapping[str, str]] = MappingProxyType(
    {METRICS: METRICS} | {path.rpartition("/")[2]: path for path in RIGHTS if path.startswith("/statehouse.v1.")}
)


class CallerRefused(Exception):
    """The caller may not do what they ask. `failure`: UNAUTHENTICATED or PERMISSION_DENIED, as the rules say it."""

    def __init__(self, failure: LookupFailure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Gateway:
    """The fleet, for HTTP handlers. Lives on the event loop.

    Attributes:
        settings: of the web process.
        client: reads stores, through the routers.
        routers: for calls that the client has no method for.
        metrics: what is counted here.

    """

    def __init__(self, settings: WebSettings) -> None:
        """Prepare; connections are made with the first calls.

        Raises:
            ConfigurationError: a file of the settings can't be used, or they name no router.

        """
        self.settings = settings
        to_routers, to_nodes = (_tls(settings, name) for name in (settings.tls_router_name, settings.tls_node_name))
        self.client = AsyncClient(
            settings.router,
            timeout=settings.request_timeout_ms / 1_000,
            max_message_bytes=settings.max_message_bytes,
            direct=False,
            tls=to_routers,
        )
        self.routers = Routers(settings.router, settings.max_message_bytes, _files(to_routers))
        self._node_files = _files(to_nodes)
        self._nodes: dict[str, RenewedChannel[NodeStub]] = {}
        self._watches = AddressLimit(settings.http_max_watches, settings.http_max_watches_per_address)
        self._background = BackgroundWork()
        self._starts: list[Callable[[], Awaitable[None]]] = []
        self._closes: list[Callable[[], Awaitable[None]]] = []
        self.metrics = WebMetrics()
        self._gate: Gate | None = counted_gate(settings, self.metrics.security)
        self._local_gate = LocalGate(self.metrics.security.denied) if is_drain_local(settings) else None

    async def start(self) -> None:
        """Begin to look after the files of the rules, and call what `on_start` was given."""
        if self._gate is not None:
            self._background.start(self._gate.watch_files(), "watch the files of rules")
        for start in self._starts:
            await start()

    @contextmanager
    def watch_place(self, request: Request) -> Iterator[None]:
        """Take a place for a stream of events, for as long as the context lasts.

        Raises:
            LookupFailure: OVERLOADED, there is none.

        """
        address = address_of(request)
        bound = self._watches.enter(address)
        if bound is not None:
            words = f"{self.settings.http_max_watches} watches of this HTTP server are open, as many as are allowed"
            if bound is Bound.ADDRESS:
                words = "as many watches of this address are open as are allowed: http_max_watches_per_address"
            raise LookupFailure(Reason.OVERLOADED, words)
        try:
            yield
        finally:
            self._watches.leave(address)

    async def ask(self, make: RouterCall[Any, Any], timeout_s: float | None = None) -> Any:  # noqa: ANN401 - the call's own response
        """Make a call of a router: `ask(lambda peer, s: peer.fleet.ListNodes(request, timeout=s))`.

        Raises:
            LookupFailure: it failed at all routers.

        """
        seconds = self.settings.request_timeout_ms / 1_000 if timeout_s is None else timeout_s
        return await self.routers.ask(make, seconds)

    def node(self, address: str) -> NodeStub:
        """Return NodeService of the node at host:port, for a call that begins now.

        Give only addresses that the fleet itself has named: this process is trusted by nodes.
        """
        channel = self._nodes.pop(address, None)
        if channel is None:
            channel = RenewedChannel(
                address,
                self.settings.max_message_bytes,
                self._node_files,
                node_service_pb2_grpc.NodeServiceStub,
            )
        self._nodes[address] = channel
        if len(self._nodes) > NODES_MAX:
            oldest = next(iter(self._nodes))
            self._background.start(self._nodes.pop(oldest).close(), "close a connection to a node")
        return channel.made

    async def authorise(
        self, request: Request, call: str, about: Message | str | None = None, *, again: bool = False
    ) -> None:
        """Return if the caller of an HTTP request may make this call of gRPC.

        `call`: a method's name, such as "Get", "ListNodes" or "Drain"; or "metrics". `about`: its request, or the name
        of the store that it is about. `again`: it was admitted before; ask so each `ASKED_AGAIN_S` for a stream that is
        open.

        Raises:
            CallerRefused: the rules don't allow it. The audit log has it.

        """
        local_gate = self._local_gate if _METHODS[call] in LOCAL_ONLY else None
        if self._gate is None and local_gate is None:
            return
        asked = _request_about(call, about) if isinstance(about, str) else about
        try:
            if local_gate is not None:
                local_gate.admit(_METHODS[call], asked, shown_by(request))
            if self._gate is not None:
                self._gate.admit(_METHODS[call], asked, shown_by(request), again=again)
        except LookupFailure as failure:
            if failure.reason not in {Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED}:
                raise
            raise CallerRefused(failure) from None

    def may(self, request: Request, call: str) -> bool:
        """Return whether the caller of a request that was admitted may make this call, too. Nothing is logged of it."""
        return self._gate is None or self._gate.may(_METHODS[call], shown_by(request))

    def conceals(self, request: Request) -> bool:
        """Return whether answers to the caller of a request must say nothing of where nodes are. Nothing is logged."""
        if self._gate is None:
            return False
        try:
            return self._gate.conceals(_METHODS["Get"], shown_by(request))
        except CallerRefused:
            return True

    def told(self, request: Request, failure: LookupFailure) -> LookupFailure:
        """Return a failure as the caller of a request may see it."""
        return concealed_failure(failure) if self.conceals(request) else failure

    async def drain(self, request: Request, address: str, timeout_ms: int | None = None) -> list[str]:
        """Have the node at host:port hand its tasks over and leave, for the caller of an HTTP request.

        The node judges the caller, and logs them and this process: it is shown what they have shown here. It takes a
        token, and a certificate only if its rules let this process act for others. Return the ids of the active tasks
        that others must take over. The route that gets the form checks its token.

        Raises:
            CallerRefused: the rules don't allow it.
            LookupFailure: the node can't be asked.

        """
        drain = node_service_pb2.DrainRequest(timeout_ms=timeout_ms)
        await self.authorise(request, "Drain", drain)
        seconds = self.settings.request_timeout_ms / 1_000
        call = self.node(address).Drain(drain, timeout=seconds, metadata=_shown_on(shown_by(request)))
        response = await Peer.call(call)
        return list(response.active_tasks)

    def on_start(self, start: Callable[[], Awaitable[None]]) -> None:
        """Have this called when the event loop runs and the server begins to listen."""
        self._starts.append(start)

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have this called when the gateway is closed, before its connections are."""
        self._closes.append(close)

    async def close(self) -> None:
        """Close the connections."""
        for close in self._closes:
            await close()
        await self._background.cancel()
        await self.client.close()
        await self.routers.close()
        for channel in self._nodes.values():
            await channel.close()


def shown_by(request: Request) -> Shown:
    """Return what the caller of an HTTP request shows of themselves.

    Raises:
        CallerRefused: there is more than one authorization.

    """
    given = request.headers.getlist("authorization")
    if len(given) > 1:  # which of them counts must not depend on who reads them
        raise CallerRefused(
            LookupFailure(Reason.UNAUTHENTICATED, "the request has authorization more than once: give it once")
        )
    certificate = getattr(request.state, CERTIFICATE, b"")
    return Shown(certificate, given[0] if given else "", address_of(request))


def address_of(request: Request) -> str:
    """Return the address of the caller of an HTTP request; empty if it isn't known."""
    return "" if request.client is None else request.client.host


def _shown_on(shown: Shown) -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata by which a node learns who the caller is. A token decides where there is one."""
    if shown.authorization:
        return (("authorization", shown.authorization),)
    if not shown.certificate:
        return ()
    # It has been looked at here, so its library is loaded.
    from statehouse.security.certificates import first_of_chain  # noqa: PLC0415

    certificate = first_of_chain(shown.certificate)
    with_it = shown.certificate[len(certificate) :]
    return ((ON_BEHALF_KEY, certificate), *(((ON_BEHALF_CHAIN_KEY, with_it),) if with_it else ()))


def _request_about(call: str, store: str) -> Message:
    """Return a request of a call that is about a store."""
    if call == "ExplainGet":
        return fleet_service_pb2.ExplainGetRequest(lookup=query_service_pb2.GetRequest(store=store))
    return query_service_pb2.GetRequest(store=store)


def _tls(settings: WebSettings, server_name: str) -> ClientTls | None:
    if settings.tls_certificate is None:
        return None
    return ClientTls(settings.tls_ca, settings.tls_certificate, settings.tls_key, server_name=server_name)


def _files(tls: ClientTls | None) -> CredentialFiles | None:
    return None if tls is None else CredentialFiles(tls)
