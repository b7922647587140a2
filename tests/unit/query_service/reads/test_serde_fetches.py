"""Fetches for serdes: once for all who need it, off the event loop, within bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

import pytest

from query_service.reads import serde_fetches
from query_service.reads.serde_fetches import SerdeFetches
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import FetchNeeded, SerdeUnavailable
from statehouse.v1 import query_service_pb2
from tests.support.polling import poll_until_async

REQUEST = query_service_pb2.GetRequest(store="s", key={"text": "k"})


@pytest.fixture
async def fetches() -> AsyncIterator[SerdeFetches]:
    made = SerdeFetches(timeout_s=5)
    yield made
    made.close()


async def test_a_read_is_done_again_after_each_fetch(fetches: SerdeFetches) -> None:
    known: set[int] = set()
    threads: set[int] = set()

    def fetch(number: int) -> None:
        threads.add(threading.get_ident())
        known.add(number)

    async def read() -> str:
        for number in (1, 2):
            if number not in known:
                raise FetchNeeded(number, partial(fetch, number))
        return "both"

    assert await fetches.until_decoded(REQUEST, read) == "both"
    assert threading.get_ident() not in threads


async def test_equal_needs_are_fetched_once_and_who_leaves_does_not_end_it(fetches: SerdeFetches) -> None:
    done, count = threading.Event(), 0

    def fetch() -> None:
        nonlocal count
        count += 1
        assert done.wait(5)

    waiting = [asyncio.create_task(fetches.run(REQUEST, FetchNeeded("same", fetch))) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    done.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert (outcomes[1:], count) == ([None] * 4, 1)


async def test_one_that_takes_too_long_is_left_and_one_that_fails_is_told() -> None:
    fetches, done = SerdeFetches(timeout_s=0.02), threading.Event()
    try:
        with pytest.raises(SerdeUnavailable, match="not fetched in time"):
            await fetches.run(REQUEST, FetchNeeded("slow", lambda: done.wait(5)))  # type: ignore[arg-type, return-value]
        with pytest.raises(SerdeUnavailable, match="ZeroDivisionError"):
            await SerdeFetches(timeout_s=5).run(REQUEST, FetchNeeded("defect", lambda: 1 // 0))  # type: ignore[arg-type, return-value]
    finally:
        done.set()
        fetches.close()


async def test_there_is_a_bound_on_what_is_under_way_and_on_what_a_read_may_ask_for(fetches: SerdeFetches) -> None:
    async def never() -> None:
        raise FetchNeeded("again", lambda: None)

    with pytest.raises(SerdeUnavailable, match="more than 64 schemas"):
        await fetches.until_decoded(REQUEST, never)

    done = threading.Event()
    waiting = [
        asyncio.create_task(fetches.run(REQUEST, FetchNeeded(number, lambda: done.wait(5))))  # type: ignore[arg-type, return-value]
        for number in range(64)
    ]
    await asyncio.sleep(0)
    with pytest.raises(LookupFailure) as refused:
        await fetches.run(REQUEST, FetchNeeded("one more", lambda: None))
    assert refused.value.reason is Reason.OVERLOADED
    done.set()
    await asyncio.gather(*waiting)


async def test_there_is_a_bound_on_the_reads_that_wait(fetches: SerdeFetches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serde_fetches, "_WAITING_MAX", 3)
    done = threading.Event()
    need = FetchNeeded("slow", lambda: done.wait(5))  # type: ignore[arg-type, return-value]
    waiting = [asyncio.create_task(fetches.run(REQUEST, need)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(LookupFailure, match="3 reads wait") as refused:
        await fetches.run(REQUEST, need)
    assert refused.value.reason is Reason.OVERLOADED
    done.set()
    await asyncio.gather(*waiting)
    await fetches.run(REQUEST, FetchNeeded("next", lambda: None))


async def test_there_is_a_bound_on_the_bytes_of_reads_that_wait(fetches: SerdeFetches) -> None:
    done = threading.Event()
    need = FetchNeeded("slow", lambda: done.wait(5))  # type: ignore[arg-type, return-value]
    large = query_service_pb2.GetRequest(store="s", key={"raw": bytes(1_000_000)})
    waiting = [asyncio.create_task(fetches.run(large, need)) for _ in range(16)]
    await asyncio.sleep(0)
    with pytest.raises(LookupFailure, match="reads that wait for schemas on this node") as refused:
        await fetches.run(large, need)
    assert refused.value.reason is Reason.OVERLOADED
    waiting.append(asyncio.create_task(fetches.run(REQUEST, need)))
    await asyncio.sleep(0)
    done.set()
    await asyncio.gather(*waiting)
    await fetches.run(large, FetchNeeded("next", lambda: None))


async def test_a_fetch_that_many_wait_for_fails_in_the_log_once(
    fetches: SerdeFetches, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(serde_fetches.log, "error", lambda event, **_: logged.append(event))
    monkeypatch.setattr(serde_fetches.log, "exception", lambda event, **_: logged.append(event), raising=False)
    may_fail = threading.Event()

    def fails() -> None:
        may_fail.wait(5)
        raise RuntimeError("a defect")

    waiting = [asyncio.create_task(fetches.run(REQUEST, FetchNeeded("defect", fails))) for _ in range(5)]
    await asyncio.sleep(0)
    may_fail.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, SerdeUnavailable) for each in outcomes)
    await poll_until_async(lambda: logged, 5, "the log")
    assert logged == ["a serde's fetch failed"]
