"""A peer that is no node: it offers what a real node does, changed as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import grpc

from statehouse.contract.membership import ReplicaReport, StorePosition, TaskState, decode_member, encode_member
from statehouse.contract.topology import Role, TaskId, members_topic
from statehouse.local.ports import LOOPBACK
from statehouse.v1 import peer_service_pb2, peer_service_pb2_grpc
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.kafka import produce, read_all
from tests.support.members import FakeMember
from tests.support.polling import poll_until

NAME: Final = "liar"
WITHIN_S: Final = 30.0
NOW_MS: Final = 2**42
_EVER: Final = 2**40

Offer = Callable[[peer_service_pb2.OfferStoreResponse], None]
"""Changes an offer."""
Send = Callable[[bytes], Iterator[bytes]]
"""Returns the parts in which a file's bytes are sent, or others."""


def stub_of(node: ServerProcess) -> peer_service_pb2_grpc.PeerServiceStub:
    """Return a node's service for its peers."""
    return peer_service_pb2_grpc.PeerServiceStub(node.channel)


def offer_of(node: ServerProcess) -> peer_service_pb2.OfferStoreResponse:
    """Have a node make a checkpoint of its store; return the offer."""
    request = peer_service_pb2.OfferStoreRequest(store=STORE, partition=0)
    return stub_of(node).OfferStore(request, timeout=WITHIN_S)


def wait_told(fleet: Fleet, name: str = "n1") -> None:
    """Wait until a node's heartbeats say that it has the task 0_0: others ask nobody else for it."""

    def is_told() -> bool:
        records = read_all(fleet.bootstrap, members_topic(fleet.application_id))
        newest = [value for key, value in records if key == name.encode() and value is not None][-1:]
        told = [decode_member(name.encode(), value, NOW_MS, NOW_MS).replicas.get(TaskId(0, 0)) for value in newest]
        return any(report is not None and report.is_restored for report in told)

    poll_until(is_told, WITHIN_S, f"a heartbeat of {name} about its task")


class LyingPeer(peer_service_pb2_grpc.PeerServiceServicer):
    """Offers the store of `node`. `offer` changes the offer; `send` returns what is sent in place of a file."""

    def __init__(self, node: ServerProcess, offer: Offer, send: Send) -> None:
        self.reads: list[peer_service_pb2.ReadFileRequest] = []
        self._node, self._offer, self._send = stub_of(node), offer, send

    def OfferStore(self, request: peer_service_pb2.OfferStoreRequest, _context: Any) -> Any:  # noqa: N802 - the service's name
        offered = self._node.OfferStore(request, timeout=WITHIN_S)
        self._offer(offered)
        return offered

    def ReadFile(self, request: peer_service_pb2.ReadFileRequest, _context: Any) -> Iterator[Any]:  # noqa: N802 - the service's name
        self.reads.append(request)
        *parts, last = self._node.ReadFile(request, timeout=WITHIN_S)
        for part in self._send(b"".join(each.data for each in parts)):
            yield peer_service_pb2.ReadFileResponse(data=part)
        yield peer_service_pb2.ReadFileResponse(checksum=last.checksum)


def as_it_is(_offer: peer_service_pb2.OfferStoreResponse) -> None:
    """Change nothing."""


def whole(content: bytes) -> Iterator[bytes]:
    """Send all."""
    yield content


@contextmanager
def lying_peer(fleet: Fleet, node: ServerProcess, offer: Offer = as_it_is, send: Send = whole) -> Iterator[LyingPeer]:
    """Run one that is a member of the fleet and says that it has the task 0_0 as a standby."""
    peer = LyingPeer(node, offer, send)
    server = grpc.server(ThreadPoolExecutor(8))
    peer_service_pb2_grpc.add_PeerServiceServicer_to_server(peer, server)
    with _member(fleet, server):
        yield peer


@contextmanager
def older_peer(fleet: Fleet) -> Iterator[None]:
    """Run a member that says that it has the task 0_0, and is of a version without the service for peers."""
    with _member(fleet, grpc.server(ThreadPoolExecutor(1))):
        yield


@contextmanager
def _member(fleet: Fleet, server: grpc.Server) -> Iterator[None]:
    port = server.add_insecure_port(f"{LOOPBACK}:0")
    server.start()
    try:
        member = FakeMember(NAME, STORE)
        report = ReplicaReport(Role.STANDBY, TaskState.RUNNING, MappingProxyType({STORE: StorePosition(_EVER, _EVER)}))
        member.replicas[TaskId(0, 0)] = report
        beat = replace(member.beat(), host=LOOPBACK, port=port)
        produce(fleet.bootstrap, members_topic(fleet.application_id), [encode_member(beat)])
        yield
    finally:
        server.stop(0).wait()
