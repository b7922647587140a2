"""Work that nobody waits for: it is held, ended with its owner, and its defects reach the log."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from statehouse.errors import EngineError
from statehouse.runtime.background import BackgroundWork, as_error, log_defect
from tests.support.panic import Panic


def _defects(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    records = [record for record in caplog.records if record.name == "statehouse.runtime.background"]
    return [(record.getMessage().partition(": ")[2], str(record.exc_info and record.exc_info[1])) for record in records]


async def _fail(message: str) -> None:
    await asyncio.sleep(0)
    raise ValueError(message)


async def test_a_defect_reaches_the_log_with_the_name_of_the_work(caplog: pytest.LogCaptureFixture) -> None:
    work = BackgroundWork()
    work.start(_fail("oh no"), "count sheep")
    await work.finish()
    assert _defects(caplog) == [("count sheep", "oh no")]
    assert not len(work)


async def test_a_defect_reaches_the_log_beside_whoever_waits(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="oh no"):
        await BackgroundWork().start(_fail("oh no"), "count sheep")
    assert _defects(caplog) == [("count sheep", "oh no")]


async def test_work_that_only_its_owner_knows_of_is_not_collected() -> None:
    work = BackgroundWork()
    awaited: list[weakref.ref[asyncio.Future[None]]] = []

    async def wait_for_what_nobody_else_refers_to() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        awaited.append(weakref.ref(future))
        await future

    work.start(wait_for_what_nobody_else_refers_to(), "wait")
    await asyncio.sleep(0)
    gc.collect()
    future = awaited[0]()
    assert future is not None
    future.set_result(None)
    await work.finish()


async def test_the_owner_ends_all_and_an_end_is_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    work, ended = BackgroundWork(), []

    async def wait(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    for number in range(3):
        work.start(wait(number), "wait")
    await asyncio.sleep(0)
    assert len(work) == 3
    await work.cancel()
    assert sorted(ended) == [0, 1, 2]
    assert not _defects(caplog)


async def test_finish_waits_for_what_work_has_begun(caplog: pytest.LogCaptureFixture) -> None:
    work = BackgroundWork()

    async def begin_another() -> None:
        work.start(_fail("second"), "second")

    work.start(begin_another(), "first")
    await work.finish()
    assert _defects(caplog) == [("second", "second")]


async def test_failures_that_are_expected_are_no_defects(caplog: pytest.LogCaptureFixture) -> None:
    task = asyncio.create_task(_fail("expected"))
    await asyncio.wait({task})
    log_defect(task, ValueError)
    assert not _defects(caplog)
    log_defect(task, KeyError)
    assert [error for _, error in _defects(caplog)] == ["expected"]


def test_a_panic_becomes_an_exception_and_an_order_to_end_goes_on() -> None:
    defect, panic = ValueError("oh no"), Panic("index out of bounds")
    assert as_error(defect) is defect
    made = as_error(panic)
    assert isinstance(made, EngineError)
    assert str(made) == "Panic: index out of bounds"
    assert made.__cause__ is panic
    for order in (asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1), GeneratorExit()):
        with pytest.raises(type(order)):
            as_error(order)
