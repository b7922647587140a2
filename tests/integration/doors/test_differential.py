"""One read, one answer: whichever door it is asked at."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.rpc import code_pb2

from statehouse.client import AsyncClient
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import SESSION, WINDOW
from statehouse.errors import REASONS, LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.serdes import SERDES, exact_json
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.differential.cases import GET, Read, made_read
from tests.support.differential.command_line import CommandLine
from tests.support.differential.doors import ClientDoor, Door, grpc_door
from tests.support.differential.http_door import HttpDoor
from tests.support.differential.outcomes import ABSENT, Outcome, form, of_value, shown
from tests.support.differential.stores import MadeStore, made_stores
from tests.support.fleet import Fleet, ServerProcess
from tests.support.kafka import produce_placed
from tests.support.polling import poll_until
from tests.support.web import web_server

STORES_SEED = 13
AT_ONCE = 32
SETTLES_S = 20.0
GRPC = ("proxy", "grpcio")
FLEETING = {code_pb2.UNAVAILABLE, code_pb2.DEADLINE_EXCEEDED, code_pb2.RESOURCE_EXHAUSTED}
# Seeds of reads that once had two answers. They are asked each time.
ONCE_WRONG: tuple[int, ...] = ()


@dataclass(frozen=True)
class Served:
    """A fleet of two nodes and two routers, one of each with a proxy; and the web process of the router with one."""

    stores: dict[str, MadeStore]
    proxied: ServerProcess
    plain: ServerProcess
    http: str


@pytest.fixture(scope="module")
def served(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    stores = made_stores(STORES_SEED)
    with Fleet(kafka.bootstrap, f"doors-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("doors")) as fleet:
        for store in stores.values():
            fleet.add_store(store.name, **store.options)
            produce_placed(
                kafka.bootstrap,
                fleet.stores[store.name].changelog_topic,
                (
                    (partition_for(store.placed_by(key), fleet.partitions), key, value, at_ms)
                    for key, (value, at_ms) in store.entries.items()
                ),
            )
        nodes = [fleet.node("a"), fleet.node("b", proxy="none")]
        proxied, plain = fleet.router("proxied"), fleet.router("plain", proxy="none")
        fleet.assign(TaskAssignment("a"), TaskAssignment("b"))
        fleet.wait_running(nodes, 120.0)
        for router in (proxied, plain):
            for store in stores.values():
                poll_until(lambda router=router, store=store: is_there(router, store), 120, "the routers to answer")
        with web_server(proxied.target) as http:
            yield Served(stores, proxied, plain, http)


def is_there(router: ServerProcess, store: MadeStore) -> bool:
    """Whether both partitions of a store are answered by actives that have all of it."""
    fresh = types_pb2.Freshness(active_only=True, max_lag=0)
    request = query_service_pb2.CountRequest(store=store.name, freshness=fresh, exact=True)
    try:
        return bool(ServerProcess.call(router.query.Count, request).count == len(store.entries))
    except LookupFailure:
        return False


@dataclass
class Differences:
    """Reads that had more than one answer, and how many reads there were of each kind of answer."""

    found: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def judge(self, read: Read, stores: dict[str, MadeStore], outcomes: dict[str, Outcome]) -> None:
        if told := difference(read, stores, outcomes):
            self.found.append(told)
        self.seen[_kind(read, outcomes["proxy"])] += 1


def difference(read: Read, stores: dict[str, MadeStore], outcomes: dict[str, Outcome]) -> str:
    """Return what the doors said, if it isn't all the same; else nothing."""
    said = {door: form(outcome.said, is_exact=read.is_exact) for door, outcome in outcomes.items()}
    codes = {outcome.status for door, outcome in outcomes.items() if door in GRPC}
    if wanted := expected(read, stores):
        said["what is stored"] = form(wanted[0], is_exact=read.is_exact)
    if len(set(said.values())) == 1 and len(codes) <= 1:
        return ""
    told = "\n".join(f"  {door}: {text[:300]}" for door, text in said.items())
    return f"seed {read.seed}: {read}\n{told}\n  codes: {codes}"


def is_fleeting(outcome: Outcome) -> bool:
    """Whether a door said that the fleet can't answer at the moment, of all or of a key of a batch."""
    said = outcome.said
    return any(_cannot_now(each) for each in (said if isinstance(said, list) else [said]))


def _cannot_now(said: object) -> bool:
    match said:
        case ("refused", str(reason)) if reason in Reason.__members__:
            return REASONS[Reason[reason]].code in FLEETING
        case _:
            return False


def _kind(read: Read, outcome: Outcome) -> str:
    said = outcome.said
    if isinstance(said, tuple):
        return f"{read.kind} {said[0] if said[0] != 'refused' else said[1]}"
    return f"{read.kind} of {min(len(said), 2)}" if isinstance(said, list) else read.kind


def expected(read: Read, stores: dict[str, MadeStore]) -> list[Any]:
    """Return what a lookup must come to by what is stored; nothing where that takes more than the entries to say."""
    if read.kind != GET or any(name.startswith(("max_processor", "max_input")) for name in read.bounds):
        return []
    store = stores.get(read.store)
    if store is None:
        return [("refused", "UNKNOWN_STORE")]
    if store.kind in {WINDOW, SESSION}:
        return []
    key = store.parsed(read.keys[0])
    if key is None:
        return [("refused", "INVALID_KEY")]
    return [_stored(store, key, raw=read.raw) if key in store.entries else ABSENT]


def _stored(store: MadeStore, key: bytes, *, raw: bool) -> tuple[Any, ...]:
    value, at_ms = store.entries[key]
    try:
        return ("found", of_value(exact_json(SERDES["bytes" if raw else store.value_serde]).value(value)), at_ms)
    except ValueError:
        return ("refused", "VALUE_UNDECODABLE")


async def compared(served: Served, seeds: Iterable[int]) -> Differences:
    """Ask each read at each door."""
    differences, places = Differences(), asyncio.Semaphore(AT_ONCE)
    async with AsyncExitStack() as stack:
        http = HttpDoor(served.http, AT_ONCE)
        stack.push_async_callback(http.close)
        doors: dict[str, Door] = {
            "proxy": await stack.enter_async_context(grpc_door(served.proxied.target)),
            "grpcio": await stack.enter_async_context(grpc_door(served.plain.target)),
            "HTTP": http,
            "client": ClientDoor(await stack.enter_async_context(AsyncClient(served.proxied.target)), served.stores),
        }

        async def judged(seed: int) -> None:
            read = made_read(seed, served.stores)
            asked = {name: door for name, door in doors.items() if door is not http or http.can_ask(read)}

            async def answers() -> dict[str, Outcome]:
                async with places:
                    said = await asyncio.gather(*(door.ask(read) for door in asked.values()))
                return dict(zip(asked, said, strict=True))

            outcomes, until = await answers(), time.monotonic() + SETTLES_S
            # On a busy machine a log's end may be unknown for a moment, and some of the doors refuse bounds then.
            while (
                any(map(is_fleeting, outcomes.values()))
                and difference(read, served.stores, outcomes)
                and time.monotonic() < until
            ):
                outcomes = await answers()
            differences.judge(read, served.stores, outcomes)

        async with asyncio.TaskGroup() as tasks:
            for seed in seeds:
                tasks.create_task(judged(seed))
    return differences


def show(differences: Differences) -> str:
    """Return the first differences, each with its seed, for ONCE_WRONG."""
    return f"{len(differences.found)} differ:\n" + "\n".join(differences.found[:10])


@pytest.mark.timeout(600)
async def test_all_doors_give_one_answer(served: Served) -> None:
    differences = await compared(served, [*ONCE_WRONG, *range(500)])
    assert not differences.found, show(differences)
    # Each kind of read came to each end that it may have.
    assert len(differences.seen) > 30, differences.seen


@pytest.mark.long
@pytest.mark.timeout(3_600)
async def test_all_doors_give_one_answer_to_many_more_reads(served: Served) -> None:
    for first in range(0, 105_000, 5_000):
        differences = await compared(served, range(first, first + 5_000))
        assert not differences.found, show(differences)


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("reads", [60, pytest.param(2_000, marks=pytest.mark.long)])
def test_the_command_line_gives_the_same_answer(served: Served, reads: int) -> None:
    made = [made_read(seed, served.stores) for seed in range(200_000, 200_000 + reads)]
    differences, command_line = Differences(), CommandLine(served.proxied.target)
    for read, outcome in zip(made, asyncio.run(by_grpc(served, made)), strict=True):
        differences.judge(read, served.stores, {"proxy": outcome, "command line": command_line.ask(read)})
    assert not differences.found, show(differences)


async def by_grpc(served: Served, reads: Iterable[Read]) -> list[Outcome]:
    """Make reads at a router."""
    async with grpc_door(served.proxied.target) as door:
        return [await door.ask(read) for read in reads]


async def test_data_frames_have_what_lookups_show_and_null_for_what_does_not_decode(served: Served) -> None:
    async with AsyncClient(served.proxied.target) as client:
        for store in served.stores.values():
            if store.kind in {WINDOW, SESSION}:
                continue
            rows = (await client.to_arrow(store.name, raw=True)).to_pylist()
            assert {row["key"]: row["value"] for row in rows} == {key: each for key, (each, _) in store.entries.items()}
            typed = (await client.to_arrow(store.name)).to_pylist()
            for row, shown_row in zip(rows, typed, strict=True):
                said = _stored(store, row["key"], raw=False)
                value = shown_row["value"]
                if said[0] == "refused":
                    assert value is None, (store.name, row)
                else:
                    found = json.loads(value) if store.value_serde == "json" else shown(value)
                    assert form(found, is_exact=True) == form(said[1], is_exact=True), (store.name, row)
