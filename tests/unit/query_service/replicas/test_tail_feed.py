"""Feeds of tails: whole for each watch from its beginning on, and nothing is asked for when nobody watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from query_service.dataplane.engine import KeptRecords
from query_service.replicas.tail import Compaction, Tail
from query_service.replicas.tail_feed import TailFeed
from query_service.replicas.wakeup import Wakeup
from query_service.stores.base import ChangelogRecord
from query_service.stores.engine import StoreClosed
from tests.support.polling import poll_until_async


class Program:
    """A data plane that follows one log, and keeps its last records; `gate` is closed to have answers wait."""

    def __init__(self, most: int = 100) -> None:
        self.most, self.end = most, 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[int] = []
        self.failure: Exception | None = None
        self.tail, self.advanced = Tail(10**6, Compaction(0), 0), Wakeup()
        self.feed = TailFeed(self.tail, self.advanced, self.latest, 0)

    async def latest(self, start: int, limit: int) -> KeptRecords:
        self.asked.append(start)
        first = max(start, self.end - self.most)
        end = min(first + limit, self.end)
        found = KeptRecords(first, end, [record(offset) for offset in range(first, end)])
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return found

    def read(self, records: int) -> None:
        """Read as many records, and report that."""
        self.end += records
        self.feed.reached(self.end, at_once=True)

    def offsets(self, start: int) -> list[int] | None:
        found = self.tail.read(start, 10**6, 10**9)
        return None if found is None else [each.offset for each in found.records]

    @asynccontextmanager
    async def extended(self) -> AsyncIterator[None]:
        """Wait for the wake-up that comes after what is done in the context."""
        with self.advanced.waiter() as advanced:
            yield
            async with asyncio.timeout(10.0):
                await advanced.wait()


def record(offset: int) -> ChangelogRecord:
    return ChangelogRecord(b"k", b"%d" % offset, 0, offset)


async def test_nothing_is_asked_for_when_nobody_watches() -> None:
    program = Program()
    async with program.extended():
        program.read(5)
    async with program.feed.watched():
        assert program.asked == [0]
    program.read(5)
    async with program.extended():
        program.read(5)
    assert program.asked == [0]
    assert program.offsets(4) is None, "what was watched takes no memory any more"


async def test_a_watch_begins_with_what_was_kept_and_gets_what_follows() -> None:
    program = Program(most=10)
    program.read(25)
    async with program.feed.watched():
        assert program.offsets(14) is None
        assert program.offsets(15) == list(range(15, 25))
        async with program.extended():
            program.read(3)
        assert program.offsets(15) == list(range(15, 28))
        async with program.extended():
            program.read(0)  # the end of the log is reported, too
        assert program.asked == [0, 25]
    async with program.feed.watched():
        assert program.offsets(18) == list(range(18, 28)), "who comes back finds what was kept meanwhile"


async def test_watches_share_a_feed_that_ends_with_the_last() -> None:
    program = Program()
    program.read(1)
    async with program.feed.watched():
        async with program.feed.watched():
            assert program.asked == [0], "the tail has everything already"
        async with program.extended():
            program.read(1)
        assert program.offsets(0) == [0, 1]


async def test_reports_that_come_during_an_answer_are_made_up_for() -> None:
    program = Program()
    async with program.feed.watched():
        program.gate.clear()
        program.read(1)
        await poll_until_async(lambda: len(program.asked) == 2, 10, "the first report's records to be asked for")
        program.read(1)
        program.read(1)
        program.gate.set()
        await poll_until_async(lambda: program.offsets(0) == [0, 1, 2], 10, "all records")
        assert program.asked == [0, 0, 1], "one answer for both later reports"


async def test_a_burst_that_outgrew_what_is_kept_begins_the_tail_anew() -> None:
    program = Program(most=10)
    async with program.feed.watched():
        async with program.extended():
            program.read(30)
        assert program.offsets(19) is None
        assert program.offsets(20) == list(range(20, 30))


@pytest.mark.parametrize("count", [1_000, 2_500])
async def test_many_records_come_in_parts(count: int) -> None:
    program = Program(most=10_000)
    program.read(count)
    async with program.feed.watched():
        assert program.offsets(0) == list(range(count))
        async with program.extended():
            program.read(2_000)
        assert program.offsets(0) == list(range(count + 2_000))


async def test_a_watch_that_comes_when_the_last_one_leaves_during_an_answer_has_everything() -> None:
    program = Program()
    program.read(2)
    entered = asyncio.Event()

    async def watch() -> None:
        async with program.feed.watched():
            entered.set()
            await asyncio.Event().wait()

    first = asyncio.create_task(watch())
    await entered.wait()
    program.gate.clear()
    program.read(1)
    await poll_until_async(lambda: len(program.asked) == 2, 10, "the record to be asked for")
    first.cancel()
    await asyncio.wait({first})
    asyncio.get_running_loop().call_soon(program.gate.set)  # once the next watch waits for it
    async with asyncio.timeout(10.0), program.feed.watched():
        assert program.offsets(0) == [0, 1, 2]
    assert program.asked == [0, 2, 0]


async def test_without_an_answer_watches_read_the_log() -> None:
    program = Program()
    program.read(4)
    program.failure = StoreClosed("closed")
    async with program.feed.watched():
        assert program.offsets(3) is None
        assert program.offsets(4) == []
        program.failure = None
        async with program.extended():
            program.read(1)
        assert program.offsets(4) == [4]


@pytest.mark.parametrize("leaves", [False, True])
async def test_who_waits_for_a_position_hears_of_it(*, leaves: bool) -> None:
    program = Program()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def watch() -> None:
        async with program.feed.watched():
            entered.set()
            await leave.wait()

    watching = asyncio.create_task(watch())
    await entered.wait()
    async with program.extended():
        program.gate.clear()
        program.read(1)
        if leaves:
            leave.set()
            await watching
        program.gate.set()
    leave.set()
    await watching
