"""Asks routers and nodes how they do, for all pages together, and fills the recorder.

However many people look, a router gets one stream and one question at a time, and each node one question. After each
answer there is a pause that is many times as long as the answer took, so that a large fleet costs its routers no more
than a small one.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import grpc
import grpc.aio
import structlog

from statehouse.client import Node, conversion
from statehouse.client.node_readings import read_node
from statehouse.client.peers import Peer
from statehouse.contract.membership import target
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.credentials import ClientTls, ssl_context
from statehouse.rpc.failures import from_rpc_error
from statehouse.runtime.backoff import Backoff, BackoffPolicy
from statehouse.runtime.waiting import is_told_to_end
from statehouse.settings import WebSettings
from statehouse.v1 import fleet_service_pb2, node_service_pb2
from statehouse.web.gateway import Gateway
from statehouse.web.pages.contacts import Contact
from statehouse.web.pages.recorder import Moment, Recorder

log = structlog.get_logger(__name__)

SHARE: Final = 20
"""A pause is so many times as long as what was done before it."""
FLEET_PAUSE_S: Final = 1.0
NODES_PAUSE_S: Final = 0.5
METRICS_PAUSE_S: Final = 2.5
CHANGELOGS_PAUSE_S: Final = 5.0
PAUSE_MAX_S: Final = 15.0
ROUTER_TIMEOUT_S: Final = 3.0
"""When no router has answered for so long, pages say so."""
NODE_TIMEOUT_S: Final = 1.0
"""A node that hasn't answered by then is shown as silent."""
AT_ONCE: Final = 32
"""Nodes that are asked at the same time."""
METRICS_TIMEOUT_S: Final = 2.0
METRICS_BYTES_MAX: Final = 4 * 2**20

_ROUTER: Final = BackoffPolicy("page_router", first_s=0.2, longest_s=2.0)
_SILENT: Final = frozenset({Reason.UNREACHABLE, Reason.ATTEMPT_TIMED_OUT, Reason.DEADLINE_EXCEEDED})
_REFUSED: Final = frozenset({Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED})


class Poller:
    """Asks until cancelled. `on_change(is_urgent)` is called after each answer that is news.

    `metrics`: the addresses of the routers' metrics, host:port.
    """

    def __init__(
        self,
        gateway: Gateway,
        recorder: Recorder,
        on_change: Callable[[bool], None],
        *,
        metrics: tuple[str, ...] = (),
    ) -> None:
        self._gateway, self._recorder, self._on_change = gateway, recorder, on_change
        self._metrics = metrics

    async def run(self) -> None:
        """Ask."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_fleet(), name="watch fleet")
            tasks.create_task(self._paced(self._ask_fleet, FLEET_PAUSE_S), name="ask fleet")
            tasks.create_task(self._paced(self._ask_nodes, NODES_PAUSE_S), name="ask nodes")
            tasks.create_task(self._paced(self._ask_changelogs, CHANGELOGS_PAUSE_S), name="ask changelogs")
            if self._metrics:
                tasks.create_task(self._paced(self._ask_metrics, METRICS_PAUSE_S), name="ask metrics")

    @staticmethod
    async def _paced(ask: Callable[[], Awaitable[float]], least_s: float) -> None:
        """Ask again and again; `ask` returns what it took, in seconds."""
        while True:
            try:
                took_s = await ask()
            except Exception:
                log.exception("defect in asking the fleet: what is known of it stays, and it is asked again")
                took_s = PAUSE_MAX_S
            await asyncio.sleep(min(PAUSE_MAX_S, max(least_s, SHARE * took_s)))

    async def _watch_fleet(self) -> None:
        """Hear of each epoch immediately."""
        pauses = Backoff(_ROUTER)
        while True:
            try:
                call = self._gateway.routers.current.watch_fleet()
                while isinstance(answer := await call.read(), fleet_service_pb2.WatchFleetResponse):
                    pauses.succeeded()
                    self._take(answer.fleet)
            except grpc.RpcError as error:
                log.debug("the watch of the fleet has ended", error=str(from_rpc_error(error)))
            except grpc.aio.UsageError as error:
                log.debug("the watch of the fleet has ended", error=str(error))
            except asyncio.CancelledError:
                if is_told_to_end():
                    raise
            except Exception:
                log.exception("defect in following the fleet: what is known of it stays, and it is asked again")
                await asyncio.sleep(PAUSE_MAX_S)
            await asyncio.sleep(pauses.failed())

    async def _ask_fleet(self) -> float:
        """Ask for the newest positions, and for the processor's queries."""
        began_at = time.monotonic()
        request = fleet_service_pb2.GetFleetRequest()
        try:
            answer = await self._gateway.ask(
                lambda peer, left_s: peer.fleet.GetFleet(request, timeout=left_s), ROUTER_TIMEOUT_S
            )
        except LookupFailure as failure:
            was_well = self._recorder.trouble is None
            self._recorder.routers_failed(str(failure), _now())
            self._on_change(was_well)
            return 0.0
        took_s = time.monotonic() - began_at
        self._take(answer)
        return took_s

    def _take(self, fleet: fleet_service_pb2.GetFleetResponse) -> None:
        recorder = self._recorder
        epoch = None if recorder.fleet is None else recorder.fleet.epoch
        was_well = recorder.trouble is None
        recorder.take_fleet(conversion.from_fleet(fleet), _now())
        recorder.sample(_now())
        self._on_change(fleet.epoch != epoch or not was_well)

    async def _ask_nodes(self) -> float:
        """Ask every node how it does; return the time that this process worked, as nodes that are silent cost none."""
        fleet = self._recorder.fleet
        if fleet is None or not fleet.nodes:
            return 0.0
        began_at, places = time.process_time(), asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._ask_node(node, places) for node in fleet.nodes))
        self._recorder.sample(_now())
        self._on_change(False)
        return time.process_time() - began_at

    async def ask_again(self, node: Node) -> None:
        """Ask a node now: something was done to it."""
        await self._ask_node(node, asyncio.Semaphore(1))

    async def _ask_node(self, node: Node, places: asyncio.Semaphore) -> None:
        name = node.host.instance_id
        async with places:
            before = self._recorder.contacts.get(name)
            try:
                stub = self._gateway.node(target(node.host.host, node.host.port))
                call = stub.GetNode(node_service_pb2.GetNodeRequest(), timeout=NODE_TIMEOUT_S)
                answer = await Peer.call(call)
            except LookupFailure as failure:
                contact, why = _contact(failure), failure.message
            else:
                if answer.host.instance_id == name:
                    self._recorder.take_node(read_node(answer, time.monotonic()))
                    contact, why = Contact.ANSWERS, ""
                else:
                    contact, why = Contact.SILENT, f"{answer.host.instance_id} answers at its address"
        if contact is not Contact.ANSWERS:
            self._recorder.note_contact(name, contact, why, time.monotonic())
        if before is None or before.contact is not contact:
            self._on_change(True)

    async def _ask_changelogs(self) -> float:
        """Ask what the processor has said of the changelogs' settings."""
        began_at = time.monotonic()
        request = fleet_service_pb2.ListChangelogsRequest()
        try:
            answer = await self._gateway.ask(
                lambda peer, left_s: peer.fleet.ListChangelogs(request, timeout=left_s), ROUTER_TIMEOUT_S
            )
        except LookupFailure as failure:  # what keeps it from answering is said of the fleet
            log.debug("changelogs can't be asked for", error=str(failure))
            return 0.0
        took_s = time.monotonic() - began_at
        self._recorder.take_changelogs(conversion.from_changelogs(answer), _now())
        self._on_change(False)
        return took_s

    async def _ask_metrics(self) -> float:
        began_at = time.process_time()
        for address in self._metrics:
            try:
                text = await asyncio.to_thread(partial(_fetched, address, self._gateway.settings))
                self._recorder.routing.take(address, text, time.monotonic())
            except (OSError, ValueError) as error:
                self._recorder.routing.failed(address, str(error))
        self._on_change(False)
        return time.process_time() - began_at


def _contact(failure: LookupFailure) -> Contact:
    if failure.reason in _REFUSED:
        return Contact.REFUSES
    # With any other reason, the node lives.
    return Contact.SILENT if failure.reason in _SILENT else Contact.ANSWERS


def _fetched(address: str, settings: WebSettings) -> str:
    """Return what a worker's metrics say.

    Raises:
        OSError: it can't be asked.
        ValueError: it says too much, or the address is none.

    """
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=METRICS_TIMEOUT_S)
    try:
        if settings.tls_certificate is not None:
            plain = socket.create_connection((connection.host, connection.port), METRICS_TIMEOUT_S)
            name = settings.tls_router_name or connection.host
            connection.sock = _context(settings).wrap_socket(plain, server_hostname=name)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read(METRICS_BYTES_MAX + 1)
    except http.client.HTTPException as error:
        raise OSError(f"no metrics come from there: {error!r}") from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise OSError(f"HTTP {answer.status}: {text[:200].decode(errors='replace')}")
    if len(text) > METRICS_BYTES_MAX:
        raise ValueError(f"more than {METRICS_BYTES_MAX:,} bytes of metrics")
    return text.decode(errors="replace")


def _context(settings: WebSettings) -> ssl.SSLContext:
    ca, certificate, key = (
        None if file is None else file.expanduser()
        for file in (settings.tls_ca, settings.tls_certificate, settings.tls_key)
    )
    return ssl_context(ClientTls(ca, certificate, key))


def _now() -> Moment:
    return Moment(time.monotonic(), int(time.time() * 1_000))
