"""Watches of the client and the command line, against a router in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import pytest
from typer.testing import CliRunner, Result

from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.client import (
    AsyncClient,
    Client,
    Freshness,
    MomentBound,
    MomentToken,
    WatchPosition,
    batch_parts,
    conversion,
)
from statehouse.client.watches import AsyncWatch
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fake_router import STAMP, FakeRouter, fake_router
from tests.support.polling import poll_until

NEWEST = Freshness(moment=MomentBound())


def key(text: str) -> types_pb2.Key:
    return types_pb2.Key(text=text)


UPDATES = [
    query_service_pb2.WatchResponse(
        events=[query_service_pb2.WatchEvent(key=key("1"), value=types_pb2.Value(long=7))],
        replica=STAMP,
        current=True,
        begins=True,
    ),
    query_service_pb2.WatchResponse(replica=STAMP, current=True, position=10, topic_id="id"),
    query_service_pb2.WatchResponse(
        events=[
            query_service_pb2.WatchEvent(key=key("1"), value=types_pb2.Value(long=8), offset=10, timestamp_ms=5),
            query_service_pb2.WatchEvent(key=key("1"), offset=12, timestamp_ms=6),
        ],
        replica=STAMP,
        position=13,
        topic_id="id",
    ),
    query_service_pb2.WatchResponse(replica=STAMP, position=20, topic_id="id"),
    query_service_pb2.WatchResponse(replica=STAMP, current=True, begins=True, gap=True, position=90, topic_id="id"),
]


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with fake_router() as running:
        running.updates = UPDATES
        yield running


def test_updates_come_typed_and_positions_follow_what_was_processed(router: FakeRouter):
    with Client(router.target) as client, client.watch("boards", "1") as watch:
        first = next(watch)
        assert [(change.value, change.offset, first.current) for change in first.changes] == [(7, None, True)]
        assert first.position is None
        assert first.begins
        second = next(watch)
        assert (second.position, second.begins) == (WatchPosition(3, 10, "id"), False)
        assert watch.positions == ()
        changes = next(watch)
        assert watch.positions == (WatchPosition(3, 10, "id"),)
        assert [(change.value, change.deleted, change.offset) for change in changes.changes] == [
            (8, False, 10),
            (None, True, 12),
        ]
        assert {(change.start_ms, change.end_ms) for change in changes.changes} == {(None, None)}, "no windows"
        last = next(watch)
        assert (last.gap, last.current, last.begins, last.changes) == (True, True, True, ())
        assert watch.positions == (WatchPosition(3, 20, "id"),), "an update without changes counts, too"


async def test_an_asynchronous_watch_ends_with_its_reason(router: FakeRouter):
    router.ending = LookupFailure(Reason.NO_REPLICA_AVAILABLE, "nobody")
    async with AsyncClient(router.target) as client, client.watch("boards", prefix="1") as watch:
        with pytest.raises(LookupFailure) as failure:
            assert [update.partition async for update in watch]
        assert failure.value.reason is Reason.NO_REPLICA_AVAILABLE
        assert watch.positions == (WatchPosition(3, 90, "id"),)


def test_current_values_that_begin_again_say_so(router: FakeRouter):
    node_died = query_service_pb2.WatchResponse(replica=STAMP)
    router.updates = [UPDATES[0], node_died, UPDATES[0], UPDATES[1]]
    with Client(router.target) as client, client.watch("boards") as watch:
        assert [(next(watch).begins, watch.positions) for _ in range(3)] == [(True, ()), (True, ()), (False, ())]


class Reader:
    """A task that reads a watch and has got to where no more comes."""

    def __init__(self, watch: AsyncWatch) -> None:
        self._watch, self._updates = watch, 0
        self._read_all = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def begun(self) -> Self:
        await asyncio.wait_for(self._read_all.wait(), 10)
        return self

    async def _read(self) -> str:
        async for update in self._watch:
            if update.position == WatchPosition(3, 90, "id"):
                self._read_all.set()
        return "ended"


@pytest.mark.parametrize("closes_client", [False, True])
async def test_closing_a_watch_ends_the_iteration_of_another_task(router: FakeRouter, closes_client: bool):
    async with AsyncClient(router.target) as client:
        watch = client.watch("boards")
        reader = await Reader(watch).begun()
        await (client.close() if closes_client else watch.close())
        assert await asyncio.wait_for(reader.task, 10) == "ended"
        assert [update async for update in watch] == []


async def test_a_task_that_is_cancelled_while_it_reads_is_cancelled(router: FakeRouter):
    async with AsyncClient(router.target) as client, client.watch("boards") as watch:
        reader = await Reader(watch).begun()
        reader.task.cancel()
        await asyncio.wait({reader.task}, timeout=10)
        assert reader.task.cancelled()


@pytest.mark.parametrize("closes_client", [False, True])
def test_closing_a_watch_ends_the_iteration_of_another_thread(router: FakeRouter, closes_client: bool):
    with Client(router.target) as client, ThreadPoolExecutor(1) as pool:
        watch = client.watch("boards")
        updates = pool.submit(list, watch)
        poll_until(lambda: watch.positions == (WatchPosition(3, 90, "id"),), 10, "the thread to wait for more")
        (client if closes_client else watch).close()
        assert len(updates.result(10)) == 4


def test_a_watch_is_resumed_where_it_was(router: FakeRouter):
    with (
        Client(router.target) as client,
        client.watch("boards", "1", resume=[WatchPosition(3, 13, "id")], freshness=Freshness(max_lag=4)) as watch,
    ):
        next(watch)
    request = router.requests[-1]
    assert [(each.partition, each.position, each.topic_id) for each in request.resume] == [(3, 13, "id")]
    assert request.freshness.max_lag == 4


@pytest.fixture
def run(router: FakeRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)  # where no cluster was started
    monkeypatch.setenv("STATEHOUSE_ROUTER", router.target)
    router.ending = LookupFailure(Reason.NO_REPLICA_AVAILABLE, "nobody")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_the_command_prints_a_line_a_change_and_how_to_resume(run: Callable[..., Result], router: FakeRouter):
    result = run("watch", "boards", "1", "--resume", "3:13:id")
    assert result.exit_code == ExitCode.UNAVAILABLE
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["value"], line["deleted"], line["offset"], line["current"]) for line in lines] == [
        (7, False, None, True),
        (8, False, 10, False),
        (None, True, 12, False),
    ]
    assert "partition 3: changes may have been missed" in result.stderr
    assert "resume with: --resume 3:90:id" in result.stderr
    assert router.requests[-1].resume[0].position == 13


def test_the_command_refuses_a_key_beside_a_prefix_and_a_wrong_position(run: Callable[..., Result]):
    assert run("watch", "boards", "1", "--prefix", "1").exit_code == ExitCode.USAGE
    assert run("watch", "boards", "1", "--resume", "x").exit_code == ExitCode.USAGE


MOMENT = types_pb2.Moment(query_id="q", batch_id=7)


def part(value: int, offset: int | None = None, partition: int = 3, **fields: Any) -> query_service_pb2.WatchResponse:
    stamp = deepcopy(STAMP)
    stamp.partition = partition
    event = query_service_pb2.WatchEvent(key=key("1"), value=types_pb2.Value(long=value), offset=offset)
    return query_service_pb2.WatchResponse(events=[event], replica=stamp, moment=MOMENT, **fields)


def mark(batch_id: int) -> query_service_pb2.WatchMark:
    moment = types_pb2.Moment(query_id="q", batch_id=batch_id)
    position = query_service_pb2.WatchPosition(partition=3, position=20 + batch_id, topic_id="id", after=moment)
    return query_service_pb2.WatchMark(moment=moment, positions=[position])


@pytest.fixture
def batches(router: FakeRouter) -> FakeRouter:
    """A router that marks two batches; in the first one a partition's values begin again."""
    router.shows = lambda _: MOMENT
    alive = query_service_pb2.WatchResponse(mark=query_service_pb2.WatchMark())
    router.updates = [
        part(1, current=True, begins=True),
        part(2, 5, partition=4),
        alive,
        query_service_pb2.WatchResponse(replica=STAMP, moment=MOMENT),
        part(3, current=True, begins=True, gap=True),
        part(4, 6),
        query_service_pb2.WatchResponse(mark=mark(7)),
        part(5, 21),
        query_service_pb2.WatchResponse(mark=mark(9)),
        part(6, 22),
    ]
    return router


def test_batches_come_whole(batches: FakeRouter):
    with Client(batches.target) as client, client.watch_batches("boards", freshness=NEWEST) as watch:
        first, second = next(watch), next(watch)
    values = [
        [(each.partition, change.value) for each in one.updates for change in each.changes] for one in (first, second)
    ]
    assert values == [[(4, 2), (3, 3), (3, 4)], [(3, 5)]], "what began again replaces what came before"
    assert [each.begins for each in first.updates] == [False, True, False]
    assert (first.moment, second.moment) == (MomentToken({"q": 7}), MomentToken({"q": 9}))
    assert batches.requests[-1].mark_moments
    assert batches.requests[-1].freshness.moment.newest
    with Client(batches.target) as client, client.watch_batches("boards", "1", after=first.token) as watch:
        next(watch)
    assert list(batches.requests[-1].resume) == list(mark(7).positions)
    with Client(batches.target) as client, pytest.raises(ValueError, match="not a mark"):
        client.watch_batches("boards", after="x")


async def test_batches_end_with_their_reason_and_when_they_are_left(batches: FakeRouter):
    batches.ending = LookupFailure(Reason.NO_REPLICA_AVAILABLE, "nobody")
    async with AsyncClient(batches.target) as client, client.watch_batches("boards") as watch:
        with pytest.raises(LookupFailure, match="nobody"):
            assert [batch.moment async for batch in watch] == []
        await watch.close()


def test_a_router_that_marks_nothing_is_found_out(router: FakeRouter):
    with (
        Client(router.target) as client,
        client.watch_batches("boards") as watch,
        pytest.raises(LookupFailure) as failure,
    ):
        next(watch)
    assert failure.value.reason is Reason.MOMENTS_UNAVAILABLE


@pytest.mark.parametrize("bound", ["CHANGES_MAX", "BYTES_MAX"])
def test_a_batch_is_bounded(bound: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_parts, bound, 1)
    parts = batch_parts.BatchParts("boards")
    again = conversion.from_watch(part(1, current=True, begins=True), "boards")
    parts.take(again, 1)
    parts.take(again, 1)
    with pytest.raises(LookupFailure) as failure:
        parts.take(conversion.from_watch(part(2, 5), "boards"), 1)
    assert failure.value.reason is Reason.MESSAGE_TOO_LARGE


def test_the_command_prints_whole_batches(run: Callable[..., Result], batches: FakeRouter):
    result = run("watch", "boards", "--by-moment", "--moment", "newest")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line.get("value", line.get("moment")) for line in lines] == [
        *(2, 3, 4, str(MomentToken({"q": 7}))),
        *(5, str(MomentToken({"q": 9}))),
    ]
    assert f"resume with: --resume {lines[-1]['resume']}" in result.stderr
    assert run("watch", "boards", "--by-moment", "--resume", lines[3]["resume"]).exit_code == ExitCode.UNAVAILABLE
    assert list(batches.requests[-1].resume) == list(mark(7).positions)
    assert run("watch", "boards", "--by-moment", "--resume", "3:90:id").exit_code == ExitCode.USAGE
    assert run("watch", "boards", "--by-moment", *(["--resume", lines[3]["resume"]] * 2)).exit_code == ExitCode.USAGE
