from __future__ import annotations

import asyncio
import signal

import pytest

from statehouse.runtime.waiting import StopSignals, is_set_within, is_told_to_end


async def test_the_event_or_the_time_ends_it() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, 0.001)
    asyncio.get_running_loop().call_soon(event.set)
    assert await is_set_within(event, 60)


@pytest.mark.parametrize("turns_between", range(4))
async def test_a_cancellation_counts_whenever_the_event_comes(turns_between: int) -> None:
    event = asyncio.Event()

    async def go_on() -> None:
        while True:
            event.clear()
            await is_set_within(event, 60)

    loop = asyncio.create_task(go_on())
    for _ in range(3):
        await asyncio.sleep(0)
    event.set()
    for _ in range(turns_between):
        await asyncio.sleep(0)
    loop.cancel()
    await asyncio.wait({loop}, timeout=5)
    assert loop.cancelled()


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_cancellation_is_told_from_that_of_what_is_awaited(is_ours: bool) -> None:
    call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    told: list[bool] = []

    async def wait() -> None:
        try:
            await call
        except asyncio.CancelledError:
            told.append(is_told_to_end())

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    (task if is_ours else call).cancel()
    await asyncio.wait({task})
    assert told == [is_ours]


async def test_a_time_limit_is_an_order_to_end_as_long_as_it_ends_what_it_bounds() -> None:
    told: list[bool] = []

    async def wait() -> None:
        async with asyncio.timeout(0):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told.append(is_told_to_end())
                raise

    with pytest.raises(TimeoutError):
        await wait()
    assert told == [True]
    assert not is_told_to_end()


@pytest.mark.parametrize(
    ("signals", "asked", "at_once"),
    [
        ([], False, False),
        ([signal.SIGTERM], True, False),
        ([signal.SIGINT], True, True),
        ([signal.SIGTERM, signal.SIGTERM], True, True),
        ([signal.SIGTERM, signal.SIGINT], True, True),
    ],
)
async def test_sigterm_lets_a_process_take_its_time_and_a_second_signal_ends_that(
    signals: list[int], asked: bool, at_once: bool
) -> None:
    stop = StopSignals()
    for number in signals:
        stop.take(number)
    assert (stop.asked.is_set(), stop.at_once.is_set()) == (asked, at_once)
