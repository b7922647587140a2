"""A router that is cut off from Kafka, and one that must stop, as health checks and callers see them."""

from __future__ import annotations

import signal

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.routing.routed import Links
from tests.support.fleet import Fleet, ServerProcess
from tests.support.polling import poll_until

LONG_MS = 60_000


def told(server: ServerProcess) -> dict[str, bool]:
    """Return which of the three health checks get SERVING."""
    stub = health_pb2_grpc.HealthStub(server.channel)

    def is_serving(service: str) -> bool:
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10.0, wait_for_ready=True)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    return {name: is_serving(name) for name in ("liveness", "", "readiness")}


@pytest.mark.feature("startup-readiness-liveness")
@pytest.mark.long
def test_a_router_with_an_old_table_is_not_ready_and_answers(fleet: Fleet, links: Links) -> None:
    # Longer than a busy machine keeps a router in touch with Kafka from hearing of it.
    router = fleet.router("cut", bootstrap=links.bootstrap("router"), ready_silence_max_ms=3_000)
    poll_until(lambda: all(told(router).values()), 30, "the router to be ready")
    links.cut("router")
    old = {"liveness": True, "": True, "readiness": False}
    poll_until(lambda: told(router) == old, 30, "its table to be too old")
    assert router.get("a").found
    links.heal()
    poll_until(lambda: all(told(router).values()), 30, "the router to be ready again")
    assert router.stop(signal.SIGTERM) == 0


@pytest.mark.feature("router-goes-answering")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="proxy"),
        pytest.param({"proxy": "none"}, id="grpcio", marks=pytest.mark.long),
        pytest.param({"workers": 2}, id="workers", marks=pytest.mark.long),
    ],
)
def test_a_router_that_stops_says_so_and_answers_for_a_while(fleet: Fleet, options: dict[str, object]) -> None:
    router = fleet.router(f"lame-{'-'.join(options)}", lame_duck_ms=LONG_MS, **options)
    poll_until(lambda: all(told(router).values()), 30, "the router to be ready")
    router.tell(signal.SIGTERM)
    leaving = {"liveness": True, "": False, "readiness": False}
    poll_until(lambda: told(router) == leaving, 10, "health checks to be told")
    for _ in range(20):
        assert router.get("a").found
    with grpc.insecure_channel(router.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        answer = check(health_pb2.HealthCheckRequest(service="liveness"), timeout=10.0)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, "new connections are taken, too"
    assert router.stop(signal.SIGTERM) == 0, "a second signal ends the pause"


@pytest.mark.long
def test_sigint_stops_a_router_at_once(fleet: Fleet) -> None:
    router = fleet.router("at-once", lame_duck_ms=LONG_MS)
    poll_until(lambda: all(told(router).values()), 30, "the router to be ready")
    assert router.stop(signal.SIGINT) == 0
