"""Routers whose callers are judged by their certificates alone, without rules: the fastest way passes the gate, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import (
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    query_service_pb2,
    query_service_pb2_grpc,
    types_pb2,
)
from tests.support.certificates import Authority, Issued
from tests.support.fleet import NAME, STORE, Fleet, ServerProcess, is_answered_by_active
from tests.support.polling import poll_until

LASTS_S: Final = 4.0
"""For which the certificate of the caller who is to expire holds from its making."""
LOOKUPS: Final = 50


@dataclass(frozen=True)
class Judging:
    """A router of each kind, and the CA."""

    authority: Authority
    revoked: Issued
    routers: dict[str, ServerProcess]

    def credentials(self, shown: Issued) -> grpc.ChannelCredentials:
        pair = shown.key_path.read_bytes(), shown.certificate_path.read_bytes()
        return grpc.ssl_channel_credentials(self.authority.path.read_bytes(), *pair)


@pytest.fixture(scope="module")
def judging(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judging]:
    folder: Path = tmp_path_factory.mktemp("judging")
    authority = Authority(folder, "house")
    server, revoked = (authority.issue((NAME, LOOPBACK)) for _ in range(2))
    tls: dict[str, Any] = {
        "tls_certificate": server.certificate_path,
        "tls_key": server.key_path,
        "tls_ca": authority.path,
    }
    with Fleet(kafka.bootstrap, f"judging-{free_port()}", folder, partitions=1) as fleet:
        judging = Judging(authority, revoked, {})
        routers, fleet.credentials = judging.routers, judging.credentials(server)
        routers["tls_ca"] = fleet.router("r1", **tls)
        routers["tls_crl"] = fleet.router("r2", **tls, tls_crl=authority.crl((revoked,)))
        node = fleet.node("n1", **tls)
        fleet.assign(TaskAssignment("n1"))
        fleet.put({"k0": "v0"})
        fleet.wait_running((node,))
        for router in routers.values():
            poll_until(partial(is_answered_by_active, router, "k0"), 30, "the router to find what was written")
        yield judging


def outcome(channel: grpc.Channel) -> Reason | None:
    """Return why a plain lookup, for which the proxy knows enough, fails; None: it doesn't."""
    stub: Any = query_service_pb2_grpc.QueryServiceStub(channel)
    try:
        stub.Get(query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="k0")), timeout=10.0)
    except grpc.RpcError as error:
        failure: LookupFailure = from_rpc_error(error)
        return failure.reason
    return None


def connected(judging: Judging, kind: str, shown: Issued) -> grpc.Channel:
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(judging.routers[kind].target, judging.credentials(shown), options)


def test_who_is_revoked_is_refused_each_time_and_each_time_it_is_logged(judging: Judging) -> None:
    router = judging.routers["tls_crl"]
    with connected(judging, "tls_crl", judging.revoked) as channel:
        found = Counter(outcome(channel) for _ in range(LOOKUPS))
    assert found == {Reason.UNAUTHENTICATED: LOOKUPS}
    poll_until(lambda: "the certificate has been revoked" in router.log, 10, "the denials to be logged")
    with connected(judging, "tls_ca", judging.revoked) as channel:
        assert outcome(channel) is None, "nobody says there that it is revoked"


def test_who_expires_on_an_open_connection_is_refused_from_then_on(judging: Judging) -> None:
    shown = judging.authority.issue((NAME,), hours=LASTS_S / 3_600)
    with ExitStack() as held:
        channels = [held.enter_context(connected(judging, kind, shown)) for kind in judging.routers]
        watches: list[Any] = []
        for channel in channels:
            stub: Any = query_service_pb2_grpc.QueryServiceStub(channel)
            watches.append(stub.Watch(query_service_pb2.WatchRequest(store=STORE)))
            next(watches[-1])
            assert outcome(channel) is None
        for channel, watch in zip(channels, watches, strict=True):
            poll_until(partial(_is_refused, channel), 20, "the end of the certificate")
            assert {outcome(channel) for _ in range(LOOKUPS)} == {Reason.UNAUTHENTICATED}
            with pytest.raises(grpc.RpcError) as caught:
                for _ in watch:
                    pass
            assert from_rpc_error(caught.value).reason is Reason.UNAUTHENTICATED


def _is_refused(channel: grpc.Channel) -> bool:
    return outcome(channel) is Reason.UNAUTHENTICATED


@pytest.mark.parametrize("kind", ["tls_ca", "tls_crl"])
def test_a_gate_keeps_no_lookups_from_the_express_way(judging: Judging, kind: str) -> None:
    request = fleet_service_pb2.ExplainGetRequest()
    request.lookup.store, request.lookup.key.text = STORE, "k0"
    with connected(judging, kind, judging.authority.issue((NAME,))) as channel:
        stub: Any = fleet_service_pb2_grpc.FleetServiceStub(channel)
        told = stub.ExplainGet(request, timeout=10.0)
    assert told.express_obstacle == fleet_service_pb2.EXPRESS_OBSTACLE_UNSPECIFIED, told.express_detail
