"""A client that knows two routers: either one is killed, frozen or restarted, and no lookup fails."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import pytest
import structlog

from statehouse.client import AsyncClient, Client
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.link.proxy import NONE
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import types_pb2
from tests.robustness.figures import percentile
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.polling import poll_until, poll_until_async
from tests.support.proxy import PROXY

log = structlog.get_logger(__name__)

A_SECOND = 100
A_SECOND_AT_FULL_SIZE = 300
DEADLINE_S = 20.0
NO_PROXY: Mapping[str, object] = {"proxy": NONE}
BY_PROXY: Mapping[str, object] = {"proxy": PROXY, "no_express": True}
EXPRESS: Mapping[str, object] = {"proxy": PROXY}
FAULTS = ("frozen", "killed", "restarting")
KEYS = {f"k{number}": str(number) for number in range(50)}


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path) as fleet:
        nodes = [fleet.node(name) for name in ("n1", "n2")]
        fleet.put(KEYS)
        fleet.assign(*[TaskAssignment("n1", ("n2",)), TaskAssignment("n2", ("n1",))])
        fleet.wait_running(nodes)
        yield fleet


def started(fleet: Fleet, name: str, port: int, **options: object) -> ServerProcess:
    """Start a router, and wait until it answers."""
    router = fleet.router(name, port=port, **options)
    router.port = port
    poll_until(lambda: is_answering(router.target), 30, f"{name} to answer")
    return router


def is_answering(target: str) -> bool:
    with Client(target, direct=False, timeout=1.0) as client:
        try:
            return client.get(STORE, "k1").found
        except LookupFailure:
            return False


class Answered(NamedTuple):
    """A lookup that was answered: when it was due, by the monotonic clock, and how long after that, in seconds."""

    due_at: float
    took_s: float


@dataclass
class Callers:
    """Lookups at a steady rate, through routers, whatever became of the ones before."""

    target: str
    a_second: int = A_SECOND
    timeout_s: float = 5.0
    answers: list[Answered] = field(default_factory=list)
    failures: list[LookupFailure] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return len(self.answers)

    async def __aenter__(self) -> Self:
        self._client = AsyncClient(self.target, direct=False, timeout=self.timeout_s)
        self._under_way = asyncio.TaskGroup()
        await self._under_way.__aenter__()
        self._calling = asyncio.create_task(self._call())
        await self.goes_on()
        return self

    async def __aexit__(self, *details: object) -> None:
        self._calling.cancel()
        await asyncio.wait([self._calling])
        await self._under_way.__aexit__(None, None, None)
        await self._client.close()

    async def goes_on(self, seconds: float = 1.0) -> None:
        """Wait for as many answers more as there are lookups in some seconds."""
        enough = self.answered + seconds * self.a_second
        await poll_until_async(lambda: self.answered >= enough, 20 + seconds, "answers")

    async def _call(self) -> None:
        due_at = time.monotonic()
        for number in range(1_000_000):
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            self._under_way.create_task(self._look_up(f"k{number % len(KEYS)}", due_at))
            due_at += 1 / self.a_second

    async def _look_up(self, key: str, due_at: float) -> None:
        try:
            answer = await self._client.get(STORE, key)
        except LookupFailure as failure:
            self.failures.append(failure)
        else:
            assert answer.value == KEYS[key]
            self.answers.append(Answered(due_at, time.monotonic() - due_at))


async def disturbed(
    fleet: Fleet, a_second: int, seconds: float, rounds: int, options: Mapping[str, object] = NO_PROXY
) -> dict[str, list[float]]:
    """Freeze, kill and restart each of two routers in turn. A proxy of a frozen one runs on.

    Return how long lookups took by what there was when they were due, in seconds: "frozen", "killed" as long as nothing
    is there in place of the router, "restarting" until it answers, and "calm".
    """
    ports = {"r1": free_port(), "r2": free_port()}
    start = partial(started, fleet, **options)
    routers = {name: await asyncio.to_thread(start, name, port) for name, port in ports.items()}
    began_at: list[tuple[float, str]] = [(0.0, "calm")]

    def begins(what: str) -> None:
        began_at.append((time.monotonic(), what))

    async with Callers(",".join(router.target for router in routers.values()), a_second) as callers:
        for number in range(rounds):
            for name, port in ports.items():
                begins("frozen")
                routers[name].freeze_python()
                await callers.goes_on(seconds)
                routers[name].thaw()
                begins("calm")
                await callers.goes_on(seconds)
                begins("killed")
                routers[name].kill()
                await callers.goes_on(seconds)
                begins("restarting")
                routers[name] = await asyncio.to_thread(start, f"{name}-{number}", port)
                begins("calm")
                await callers.goes_on(seconds)
    assert not callers.failures, callers.failures[:3]
    took_s: dict[str, list[float]] = defaultdict(list)
    for answer in callers.answers:
        took_s[began_at[bisect(began_at, (answer.due_at, "")) - 1][1]].append(answer.took_s)
    return took_s


@pytest.mark.feature("clients-know-several")
async def test_no_lookup_fails_while_either_router_is_killed_frozen_or_restarted(fleet: Fleet) -> None:
    took_s = await disturbed(fleet, A_SECOND, seconds=1.0, rounds=1)
    assert took_s.keys() == {"calm", *FAULTS}


@pytest.mark.feature("clients-know-several")
@pytest.mark.parametrize("options", [pytest.param(BY_PROXY, marks=pytest.mark.long), EXPRESS], ids=("proxy", "express"))
async def test_a_frozen_router_fails_no_lookup_of_who_knows_another_and_tells_the_others_in_time(
    fleet: Fleet, options: Mapping[str, object]
) -> None:
    """Only Python is frozen: its proxy goes on, alone for a moment, and then says that nobody is there."""
    start = partial(started, fleet, **options)
    frozen, other = [await asyncio.to_thread(start, name, free_port()) for name in ("r1", "r2")]
    async with Callers(f"{frozen.target},{other.target}") as callers:
        frozen.freeze_python()
        began = time.monotonic()
        both = {"at_least": types_pb2.Positions(), "max_lag": 1_000}  # which Python alone answers
        for _ in range(2):  # one that waits, and one that comes then
            with pytest.raises(LookupFailure, match="doesn't respond") as failed:
                await asyncio.to_thread(frozen.get, "k1", timeout=DEADLINE_S, **both)
            assert failed.value.reason is Reason.UNREACHABLE
            assert time.monotonic() - began < DEADLINE_S / 2
        await callers.goes_on()
        frozen.thaw()
        await poll_until_async(lambda: is_answering(frozen.target), 20, "the router to answer again")
        await callers.goes_on()
    assert not callers.failures, callers.failures[:3]


@pytest.mark.feature("clients-know-several")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [NO_PROXY, BY_PROXY, EXPRESS], ids=("grpcio", "proxy", "express"))
async def test_at_full_size_none_fails_and_few_wait(fleet: Fleet, options: Mapping[str, object]) -> None:
    took_s = await disturbed(fleet, A_SECOND_AT_FULL_SIZE, seconds=5.0, rounds=3, options=options)
    took_s["faults"] = [each for fault in FAULTS for each in took_s[fault]]
    for what, each in took_s.items():
        p50, p99, most = (percentile(sorted(each), share) * 1000 for share in (0.5, 0.99, 1.0))
        log.info("lookups through two routers", due_while=what, lookups=len(each), p50_ms=p50, p99_ms=p99, max_ms=most)
    assert len(took_s["faults"]) > 50 * A_SECOND_AT_FULL_SIZE
    assert percentile(sorted(took_s["faults"]), 0.99) <= 0.3


@pytest.mark.feature("clients-know-several")
async def test_the_only_router_is_waited_for_while_it_restarts(fleet: Fleet) -> None:
    port = free_port()
    router = await asyncio.to_thread(started, fleet, "r1", port)
    async with Callers(router.target, timeout_s=2 * DEADLINE_S) as callers:  # a busy machine takes a while to start one
        router.kill()
        await asyncio.to_thread(started, fleet, "r1-again", port)
        await callers.goes_on()
    assert not callers.failures, callers.failures[:3]


@pytest.mark.feature("clients-know-several")
async def test_calls_that_take_their_time_stay_where_they_are(fleet: Fleet) -> None:
    """A lookup waits for a position that comes late: its router is slow, but lives, and is not left."""
    routers = [await asyncio.to_thread(started, fleet, name, free_port()) for name in ("r1", "r2")]
    async with AsyncClient(",".join(router.target for router in routers), direct=False) as client:
        seen = (await client.get(STORE, "k1")).token
        later = seen.__class__({place: offset + 1 for place, offset in seen.items()})
        waiting = asyncio.create_task(client.get(STORE, "k1", at_least=later, timeout=10.0))
        await asyncio.sleep(0)
        left = time.monotonic() + 1.0
        await poll_until_async(lambda: time.monotonic() > left, 5, "a second, ten times what is late")
        assert not waiting.done()
        fleet.put({"k1": "new"})
        assert (await waiting).value == "new"
        assert client._router._choice._failed_at == [float("-inf")] * 2


def test_routers_that_never_answered_fail_a_call_at_once() -> None:
    began = time.monotonic()
    targets = f"127.0.0.1:{free_port()}, 127.0.0.1:{free_port()}"
    with Client(targets, timeout=30.0) as client, pytest.raises(LookupFailure) as failed:
        client.get(STORE, "k")
    assert failed.value.reason is Reason.UNREACHABLE
    assert "is the router running there?" in failed.value.message
    assert time.monotonic() - began < 10
    with pytest.raises(ConfigurationError, match="names no router"):
        Client(" , ")
