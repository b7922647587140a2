"""What counts as an answer of a router, and what as its failure."""

from __future__ import annotations

import grpc
import pytest

from statehouse.client import AsyncClient
from statehouse.client.peers import CLOSED
from statehouse.client.routers import is_answer, is_routers
from statehouse.errors import LookupFailure, Reason
from statehouse.local.ports import free_port
from tests.support.fake_router import fake_router


@pytest.mark.parametrize(
    ("reason", "metadata", "answers", "is_left"),
    [
        (Reason.UNKNOWN_STORE, {}, True, False),
        (Reason.UNREACHABLE, {"node": "n1"}, True, False),  # of a node
        (Reason.UNREACHABLE, {"grpc_status": "UNAVAILABLE"}, False, True),
        (Reason.UNREACHABLE, {CLOSED: "true"}, False, True),
        (Reason.ROUTING_NOT_READY, {}, False, True),
        (Reason.INTERNAL, {}, True, False),
        (Reason.INTERNAL, {"grpc_status": "UNKNOWN"}, False, True),
        (Reason.INTERNAL, {"grpc_status": "UNIMPLEMENTED"}, False, False),  # the next one would say the same
        (Reason.ATTEMPT_TIMED_OUT, {"grpc_status": "DEADLINE_EXCEEDED"}, False, False),
        (Reason.UNAUTHENTICATED, {}, True, False),
        (Reason.UNAUTHENTICATED, {"grpc_status": "UNAUTHENTICATED"}, True, False),
        (Reason.PERMISSION_DENIED, {"grpc_status": "PERMISSION_DENIED"}, True, False),
    ],
)
def test_what_a_failure_says_of_its_router(
    reason: Reason, metadata: dict[str, str], answers: bool, is_left: bool
) -> None:
    failure = LookupFailure(reason, "it failed", metadata)
    assert (is_answer(failure), is_routers(failure)) == (answers, is_left)


async def test_a_router_that_refused_something_has_answered_and_may_come_back() -> None:
    with fake_router() as router:
        async with AsyncClient(f"127.0.0.1:{free_port()},{router.target}", direct=False) as client:
            for _ in range(2):
                with pytest.raises(LookupFailure) as refused:
                    await client.get("nowhere", "1")
                assert refused.value.reason is Reason.UNKNOWN_STORE
            assert client._router.current.target == router.target
            assert client._router._choice.has_answered


async def test_a_method_that_no_router_has_fails_at_once() -> None:
    """A node's address may be given, too, and a node describes no fleet."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with AsyncClient(f"127.0.0.1:{port}", timeout=30.0) as client:
            client._router._choice.succeeded(0)
            with pytest.raises(LookupFailure) as failed:
                await client.fleet()
        assert failed.value.metadata["grpc_status"] == "UNIMPLEMENTED"
    finally:
        await server.stop(0)
