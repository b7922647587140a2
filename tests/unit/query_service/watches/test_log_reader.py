"""Slices of a changelog for watches: who is at the same offset shares one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from query_service.replicas.replica import StoreReplica
from query_service.replicas.tail import TailRecords
from query_service.watches.log_reader import LogReader, LogUnreadable
from tests.unit.query_service.replicas.test_replica import replica_at


class Gated(LogReader):
    """Reads nothing, when it is let."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", "test")
        self.gate = threading.Event()
        self.reads: list[int] = []
        self.failure: Exception | None = None

    def _read(self, replica: StoreReplica, start: int, stop: int) -> TailRecords | None:  # noqa: ARG002 - as the real one
        self.reads.append(start)
        assert self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        return TailRecords([], stop)


@pytest.fixture
def reader() -> Iterator[Gated]:
    gated = Gated()
    yield gated
    gated.gate.set()
    gated.close()


async def test_watchers_at_the_same_offset_share_a_slice(reader: Gated) -> None:
    replica = replica_at(0)
    tasks = [asyncio.create_task(reader.read(replica, 5, 9)) for _ in range(50)]
    other = asyncio.create_task(reader.read(replica, 6, 9))
    await asyncio.sleep(0)
    tasks[0].cancel()  # one that leaves takes nothing from the others
    reader.gate.set()
    results = await asyncio.gather(*tasks[1:], other)
    assert {result.position for result in results if result is not None} == {9}
    assert sorted(reader.reads) == [5, 6]
    await reader.read(replica, 5, 9)
    assert sorted(reader.reads) == [5, 5, 6], "a later one reads anew"


async def test_all_learn_that_it_can_not_be_read(reader: Gated) -> None:
    reader.failure = LogUnreadable("no broker")
    tasks = [asyncio.create_task(reader.read(replica_at(0), 5, 9)) for _ in range(3)]
    reader.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, LogUnreadable) for result in results)
