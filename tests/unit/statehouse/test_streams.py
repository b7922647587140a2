"""Long calls: what becomes of their failures when somebody waits, and when nobody does any more."""

from __future__ import annotations

import asyncio

import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.streams import CallerLeftError, OpenStreams
from statehouse.runtime.address_limits import AddressLimit
from statehouse.runtime.held_bytes import HELD_BYTES_MAX


async def _until_cancelled(failure: Exception) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise failure


@pytest.mark.parametrize(
    "failure", [ValueError("a defect"), LookupFailure(Reason.UNKNOWN_STORE, "a failure"), CallerLeftError()]
)
async def test_what_a_stream_raises_once_its_caller_has_left_is_told_if_it_is_a_defect(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    streams = OpenStreams(1, "node")
    caller = asyncio.create_task(streams.run(_until_cancelled(failure), 0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert streams.open == 1
    caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    assert not streams.open
    assert ("a defect" in caplog.text) is isinstance(failure, ValueError)


async def test_what_streams_keep_of_their_requests_is_bounded() -> None:
    streams, end = OpenStreams(100, "node"), asyncio.Event()

    async def work() -> None:
        await end.wait()

    large = asyncio.create_task(streams.run(work(), HELD_BYTES_MAX - 1))
    await asyncio.sleep(0)
    with pytest.raises(LookupFailure, match="kept for the watches of this node") as caught:
        await asyncio.wait_for(streams.run(work(), 2), 10)
    assert caught.value.reason is Reason.OVERLOADED
    small = asyncio.create_task(streams.run(work(), 1))
    await asyncio.sleep(0)
    assert streams.open == 2
    large.cancel()
    await asyncio.wait({large})
    large = asyncio.create_task(streams.run(work(), HELD_BYTES_MAX - 1))
    end.set()
    await asyncio.gather(large, small)


async def test_an_address_leaves_places_for_others() -> None:
    streams, end = OpenStreams(4, "router", AddressLimit(4, None)), asyncio.Event()

    async def work() -> None:
        await end.wait()

    def opened(address: str) -> asyncio.Task[None]:
        return asyncio.create_task(streams.run(work(), 0, address))

    mine = [opened("10.0.0.1") for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(LookupFailure, match="max_watches_per_address") as caught:
        await asyncio.wait_for(opened("10.0.0.1"), 10)
    assert caught.value.reason is Reason.OVERLOADED
    other = opened("10.0.0.2")
    await asyncio.sleep(0)
    assert streams.open == 3
    gone = mine.pop()
    gone.cancel()
    await asyncio.wait({gone})
    mine.append(opened("10.0.0.1"))
    end.set()
    await asyncio.gather(other, *mine)


async def test_a_caller_who_stays_meets_the_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        await OpenStreams(1, "node").run(fail(), 0)
    assert not caplog.text
