"""Straight to the nodes and back through the router: nodes that do as a test says, and a real router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from statehouse.client import Answer, AsyncClient, Client, Freshness, Lookup, Token, routes
from statehouse.client.node_connections import NodeConnection, may_help_elsewhere
from statehouse.client.routes import NodeIncarnation
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.ports import free_port
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.conftest import start as start  # noqa: PLC0414 - the router's own fleets
from tests.unit.router.fake_nodes import FakeNode, Fleet
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]
Connect = Callable[..., AsyncClient]


@pytest.fixture
async def connect(start: Start) -> AsyncIterator[Connect]:
    """Return clients, which end before their fleets do."""
    clients: list[AsyncClient] = []

    def connected(fleet: Fleet, **options: object) -> AsyncClient:
        clients.append(AsyncClient(f"127.0.0.1:{fleet.router.port}", **options))  # type: ignore[arg-type]
        return clients[-1]

    yield connected
    for client in clients:
        await client.close()


def straight(node: FakeNode) -> int:
    """Return how many lookups came to a node without having passed a router."""
    return sum(request.forwarding.hops == 0 for request in [*node.gets, *chain(*node.batches)])


async def goes_straight(client: AsyncClient, node: FakeNode) -> None:
    """Look a key up until the node is asked without the router."""
    before = straight(node)
    async with asyncio.timeout(10):
        while straight(node) == before:
            assert await name(client)


async def name(client: AsyncClient, key: str = "k", timeout: float | None = None, **bounds: object) -> str:  # noqa: ASYNC109 - the client's
    """Look a key up; return who answered."""
    answer = await client.get(STORE, key, timeout=timeout, **bounds)  # type: ignore[arg-type]
    assert str(answer.value).endswith(f":{key}")
    return answer.host.instance_id


async def test_a_defect_in_following_the_fleet_reaches_the_log_and_no_lookup(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_fleet: object) -> routes.FleetRoutes:
        raise ValueError("a defect in routes")

    monkeypatch.setattr(routes.FleetRoutes, "of", broken)
    fleet = await start("a")
    client = connect(fleet)
    assert await name(client) == "a"
    await poll_until_async(lambda: "a defect in routes" in caplog.text, 10, "the defect")
    assert await name(client) == "a"
    monkeypatch.undo()
    await goes_straight(client, fleet.nodes["a"])


@pytest.mark.feature("client-goes-straight")
async def test_lookups_go_to_the_active_as_soon_as_the_fleet_is_known(start: Start, connect: Connect) -> None:
    fleet = await start("a", "b")
    client, a = connect(fleet), fleet.nodes["a"]
    assert await name(client) == "a", "through the router, at first"
    await goes_straight(client, a)
    routed = len(a.gets) - straight(a)
    assert [await name(client, key) for key in "xyz"] == ["a"] * 3
    assert len(a.gets) - straight(a) == routed
    assert a.gets[-1].forwarding.epoch == 1, "so that the node knows by what it was chosen"
    await fleet.publish(TaskAssignment("b", ("a",)), epoch=2)
    await goes_straight(client, fleet.nodes["b"])
    assert fleet.nodes["b"].gets[-1].forwarding.epoch == 2


async def test_it_can_be_left_to_the_router(start: Start, connect: Connect) -> None:
    fleet = await start("a")
    client = connect(fleet, direct=False)
    for _ in range(20):
        assert await name(client) == "a"
    await client.batch_get([Lookup(STORE, "k")])
    assert straight(fleet.nodes["a"]) == 0
    assert fleet.router.first.fleet.watches.streams.open == 0


async def test_no_lookup_fails_when_the_active_dies_and_comes_back(start: Start, connect: Connect) -> None:
    fleet = await start("a", "b")
    client, a = connect(fleet), fleet.nodes["a"]
    await goes_straight(client, a)
    answering = [asyncio.create_task(name(client, str(number))) for number in range(50)]
    await a.kill()
    assert set(await asyncio.gather(*answering)) <= {"a", "b"}
    assert [await name(client) for _ in range(5)] == ["b"] * 5
    await a.restart()
    fleet.new_incarnation("a")
    fleet.heartbeat("a")
    await goes_straight(client, a)


async def test_a_silent_active_costs_one_attempt_and_is_left_alone(start: Start, connect: Connect) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=100)
    client, a = connect(fleet), fleet.nodes["a"]
    await goes_straight(client, a)
    a.freeze()
    assert [await name(client, str(number)) for number in range(10)] == ["b"] * 10
    assert a.held <= 1 + 1 + 10, "an attempt, the router's, and its probes"
    asked = straight(a)
    a.thaws.set()
    await goes_straight(client, a)
    assert straight(a) > asked


@pytest.mark.parametrize(
    "reason",
    [
        Reason.PARTITION_NOT_OWNED,
        Reason.PARTITION_RESTORING,
        Reason.NOT_ACTIVE,
        Reason.NODE_SHUTTING_DOWN,
        Reason.OVERLOADED,
        Reason.UNKNOWN_STORE,
        Reason.HOP_LIMIT,
        Reason.INTERNAL,
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
    ],
)
async def test_what_a_node_refuses_the_router_answers(start: Start, connect: Connect, reason: Reason) -> None:
    fleet = await start("a", "b")
    client, a = connect(fleet), fleet.nodes["a"]
    await goes_straight(client, a)
    a.failure = lambda: LookupFailure(reason, "not here") if a.gets[-1].forwarding.hops == 0 else None
    asked = straight(a)
    assert await name(client) == "a"
    assert straight(a) == asked + 1
    (outcome,) = await client.batch_get([Lookup(STORE, "k")])
    assert isinstance(outcome, Answer)
    if reason is not Reason.INTERNAL:  # which says something of a key rather than of the node
        assert straight(a) == asked + 1, "it is left alone for now"


async def test_a_new_epoch_ends_what_was_held_against_a_replica(start: Start, connect: Connect) -> None:
    fleet = await start("a", "b")
    client, a = connect(fleet), fleet.nodes["a"]
    await goes_straight(client, a)
    a.failure = lambda: LookupFailure(Reason.NOT_ACTIVE, "no") if a.gets[-1].forwarding.hops == 0 else None
    assert await name(client, freshness=Freshness(active_only=True)) == "a"
    a.failure, asked = None, straight(a)
    assert await name(client) == "a"
    assert straight(a) == asked
    await fleet.publish(TaskAssignment("a"), epoch=2)
    await goes_straight(client, a)
    assert a.gets[-1].forwarding.epoch == 2


async def test_what_is_wrong_with_a_request_is_not_asked_twice(start: Start, connect: Connect) -> None:
    fleet = await start("a", "b")
    client, a = connect(fleet), fleet.nodes["a"]
    await goes_straight(client, a)
    a.failure = LookupFailure(Reason.VALUE_UNDECODABLE, "no JSON")
    asked = len(a.gets)
    with pytest.raises(LookupFailure, match="no JSON"):
        await name(client)
    assert len(a.gets) == asked + 1


async def test_a_failure_of_both_ways_tells_of_both(start: Start, connect: Connect) -> None:
    fleet = await start("a")
    client, a = connect(fleet), fleet.nodes["a"]
    await goes_straight(client, a)
    a.failure = LookupFailure(Reason.LAG_EXCEEDS_BOUND, "too far behind")
    with pytest.raises(LookupFailure) as caught:
        await name(client, freshness=Freshness(max_lag=0))
    assert caught.value.reason is Reason.NO_REPLICA_AVAILABLE
    assert [candidate.host.instance_id for candidate in caught.value.candidates] == ["a"]
    assert isinstance(caught.value.__cause__, LookupFailure)
    assert caught.value.__cause__.reason is Reason.LAG_EXCEEDS_BOUND


async def test_nodes_out_of_reach_cost_nothing(start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, nowhere = await start("a"), f"127.0.0.1:{free_port()}"
    monkeypatch.setattr(routes, "target", lambda _host, _port: nowhere)
    client = connect(fleet)
    for _ in range(20):
        assert await name(client) == "a"
    await poll_until_async(
        lambda: fleet.router.first.fleet.watches.streams.open == 1, 10, "the client to follow the fleet"
    )
    for _ in range(20):
        assert await name(client) == "a"
    assert straight(fleet.nodes["a"]) == 0


@pytest.mark.feature("router-killed-clients")
async def test_without_a_router_what_is_known_goes_on(start: Start, connect: Connect) -> None:
    fleet = await start("a", "b")
    client, a = connect(fleet), fleet.nodes["a"]
    await goes_straight(client, a)
    await fleet.router.stop(0.1)
    assert [await name(client) for _ in range(5)] == ["a"] * 5
    await a.kill()
    with pytest.raises(LookupFailure, match="can't be reached"):
        await name(client)


async def test_lookups_made_at_once_share_a_call(start: Start, connect: Connect) -> None:
    fleet = await start("a")
    a = fleet.nodes["a"]
    for client in (connect(fleet, direct=False), connect(fleet)):
        await name(client)
        a.gets.clear()
        a.batches.clear()
        assert await asyncio.gather(*(name(client, str(number)) for number in range(100))) == ["a"] * 100
        assert len(a.gets) + len(a.batches) <= 10


async def test_of_those_that_share_a_call_each_has_its_own_outcome(start: Start, connect: Connect) -> None:
    fleet = await start("a")
    client, a = connect(fleet), fleet.nodes["a"]
    await goes_straight(client, a)
    a.failures = {"2": LookupFailure(Reason.VALUE_UNDECODABLE, "no JSON")}
    asked = len(a.batches)
    outcomes = await asyncio.gather(*(name(client, key) for key in "123"), return_exceptions=True)
    assert (outcomes[0], outcomes[2]) == ("a", "a")
    assert isinstance(outcomes[1], LookupFailure)
    assert outcomes[1].reason is Reason.VALUE_UNDECODABLE
    assert [[each.key.text for each in batch] for batch in a.batches[asked:]] == [["1", "2", "3"]]


async def test_what_would_wait_in_a_batch_waits_alone(start: Start, connect: Connect) -> None:
    fleet = await start("a")
    client, a, seen = connect(fleet), fleet.nodes["a"], Token({(STORE, 0): 5})
    await goes_straight(client, a)
    a.lets_wait, alone = True, len(a.gets)
    assert await asyncio.gather(*(name(client, key, at_least=seen) for key in "12")) == ["a", "a"]
    assert sorted(request.key.text for request in a.gets[alone:]) == ["1", "2"]
    assert all(request.forwarding.hops == 1 for request in a.gets[alone:])


async def test_a_batch_asks_each_node_once_and_the_router_for_the_rest(start: Start, connect: Connect) -> None:
    fleet = await start("a", "b")
    a, b = fleet.nodes["a"], fleet.nodes["b"]
    for node in "ab":
        fleet.heartbeat(node, partitions=2)
    await fleet.publish(TaskAssignment("a", ("b",)), TaskAssignment("b", ("a",)), epoch=2)
    client, keys = connect(fleet), [str(number) for number in range(40)]
    async with asyncio.timeout(10):
        while not (straight(a) and straight(b)):
            await client.batch_get([Lookup(STORE, key) for key in keys])
    a.batches.clear()
    b.batches.clear()
    outcomes = await client.batch_get([*(Lookup(STORE, key) for key in keys), Lookup("other", "k")])
    assert [each.value.split(":")[1] for each in outcomes[:-1] if isinstance(each, Answer)] == keys
    assert (len(a.batches), len(b.batches), len([*a.batches[0], *b.batches[0]])) == (1, 1, 40)
    assert isinstance(outcomes[-1], LookupFailure)
    assert outcomes[-1].reason is Reason.UNKNOWN_STORE
    await a.kill()
    outcomes = await client.batch_get([Lookup(STORE, key) for key in keys])
    assert [each.value for each in outcomes if isinstance(each, Answer)] == [f"b:{key}" for key in keys]


async def test_a_read_that_may_wait_does_not_make_others_wait(start: Start, connect: Connect) -> None:
    fleet = await start("a")
    client = connect(fleet, direct=False)
    seen = Token({(STORE, 0): 5})
    assert await asyncio.gather(name(client, "1"), name(client, "2", at_least=seen), name(client, "3")) == ["a"] * 3
    alone = [request.key.text for request in fleet.nodes["a"].gets]
    assert "2" in alone
    assert fleet.nodes["a"].gets[alone.index("2")].freshness.HasField("at_least")


async def test_each_lookup_keeps_its_own_time(start: Start, connect: Connect) -> None:
    fleet = await start("a")
    client, a = connect(fleet), fleet.nodes["a"]
    await goes_straight(client, a)
    a.freeze()
    short = asyncio.create_task(name(client, "1", timeout=0.2))
    long = asyncio.create_task(name(client, "2", timeout=30.0))
    with pytest.raises(LookupFailure) as caught:
        await short
    assert caught.value.reason in {Reason.DEADLINE_EXCEEDED, Reason.NO_REPLICA_AVAILABLE}
    assert not long.done()
    a.thaws.set()
    assert await long == "a"


async def test_a_client_that_is_closed_fails_what_is_under_way(start: Start, connect: Connect) -> None:
    fleet = await start("a")
    client, a = connect(fleet), fleet.nodes["a"]
    await goes_straight(client, a)
    a.freeze()
    under_way = [asyncio.create_task(name(client, str(number))) for number in range(3)]
    await poll_until_async(lambda: a.held > 0, 10, "the node to be asked")
    await client.close()
    for outcome in await asyncio.gather(*under_way, return_exceptions=True):
        assert isinstance(outcome, LookupFailure)
        assert outcome.reason is Reason.UNREACHABLE
    await poll_until_async(lambda: fleet.router.first.fleet.watches.streams.open == 0, 10, "the fleet to be left")


@pytest.mark.parametrize("count", [1, 3])
async def test_a_lookup_at_a_node_that_has_left_is_refused_and_goes_to_the_router(count: int) -> None:
    """The node left the fleet, and its channel is closed, while lookups still waited for a call."""
    connection = NodeConnection(NodeIncarnation("a", "1", f"127.0.0.1:{free_port()}"), 2**20)
    await connection._peer.close(0.0)
    request = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="k"))
    give_up_at = asyncio.get_running_loop().time() + 10
    for outcome in await asyncio.gather(*(connection.queue.ask(request, give_up_at) for _ in range(count))):
        assert isinstance(outcome, LookupFailure)
        assert (outcome.reason, may_help_elsewhere(outcome)) == (Reason.UNREACHABLE, True)
    await connection.close(0.0)


async def test_threads_that_share_a_client_share_its_calls(start: Start) -> None:
    fleet = await start("a")
    a = fleet.nodes["a"]

    def look_up(client: Client) -> list[str]:
        return [client.get(STORE, "k").host.instance_id for _ in range(20)]

    def run() -> None:
        with Client(f"127.0.0.1:{fleet.router.port}") as client, ThreadPoolExecutor(8) as threads:
            assert list(threads.map(look_up, [client] * 8)) == [["a"] * 20] * 8

    await asyncio.to_thread(run)
    assert len(a.gets) + len(a.batches) < 8 * 20
