"""Orders: who gets which answer, and what becomes of orders when nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from query_service.dataplane import orders
from query_service.dataplane.orders import DataPlane, DataPlaneFailed
from query_service.states.faults import Fault, TaskFault, fault_of
from query_service.stores.engine import StoreClosed, StoreUnusable
from statehouse.control.v1 import engine_pb2


class Program:
    """Takes orders; `answer` returns what comes of one, None if nothing does."""

    def __init__(self, plane: DataPlane, answer: Callable[[engine_pb2.EngineOrder], engine_pb2.EngineAnswer | None]):
        self._plane, self._answer = plane, answer
        plane.connect(self)

    def send_order(self, number: int, order: bytes) -> None:
        answer = self._answer(engine_pb2.EngineOrder.FromString(order))
        if answer is not None:
            self._plane.take_answer(number, answer.SerializeToString())


def count_of(store: int) -> engine_pb2.EngineOrder:
    return engine_pb2.EngineOrder(count=engine_pb2.EngineCount(store=store))


def failing(kind: engine_pb2.EngineFaultKind.ValueType) -> engine_pb2.EngineAnswer:
    return engine_pb2.EngineAnswer(fault=engine_pb2.EngineFault(kind=kind, message="why"))


async def carried(plane: DataPlane, order: engine_pb2.EngineOrder) -> engine_pb2.EngineAnswer:
    return await asyncio.to_thread(plane.carry, order)


async def test_each_order_has_its_own_answer() -> None:
    plane = DataPlane(asyncio.get_running_loop())
    Program(plane, lambda order: engine_pb2.EngineAnswer(count=order.count.store * 10))
    answers = await asyncio.gather(*(carried(plane, count_of(store)) for store in range(50)))
    assert [answer.count for answer in answers] == [store * 10 for store in range(50)]


@pytest.mark.parametrize(
    ("kind", "error", "fault"),
    [
        (engine_pb2.ENGINE_FAULT_KIND_DAMAGED, StoreUnusable, Fault.CORRUPT_STORE),
        (engine_pb2.ENGINE_FAULT_KIND_REFUSED, TaskFault, Fault.DISK_REFUSED),
        (engine_pb2.ENGINE_FAULT_KIND_FULL, TaskFault, Fault.DISK_FULL),
        (engine_pb2.ENGINE_FAULT_KIND_CLOSED, StoreClosed, Fault.DEFECT),
        (engine_pb2.ENGINE_FAULT_KIND_UNSPECIFIED, DataPlaneFailed, Fault.DEFECT),
    ],
)
async def test_a_fault_is_an_error_with_its_reason(
    kind: engine_pb2.EngineFaultKind.ValueType, error: type[Exception], fault: Fault
) -> None:
    plane = DataPlane(asyncio.get_running_loop())
    Program(plane, lambda _order: failing(kind))
    with pytest.raises(error, match="why") as raised:
        await carried(plane, count_of(1))
    assert fault_of(raised.value) is fault


async def test_an_order_before_the_start_fails() -> None:
    plane = DataPlane(asyncio.get_running_loop())
    with pytest.raises(DataPlaneFailed, match="not there"):
        await carried(plane, count_of(1))


async def test_orders_fail_when_the_program_is_gone() -> None:
    plane = DataPlane(asyncio.get_running_loop())
    received = asyncio.Event()
    Program(plane, lambda _order: received.set())
    waiting = asyncio.create_task(carried(plane, count_of(1)))
    await received.wait()
    plane.lost()
    with pytest.raises(DataPlaneFailed, match="gone"):
        await waiting
    with pytest.raises(DataPlaneFailed, match="not there"):
        await carried(plane, count_of(2))  # immediately: a node that stops has one store after the other to close


async def test_an_order_fails_that_is_never_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = DataPlane(asyncio.get_running_loop())
    Program(plane, lambda _order: None)
    monkeypatch.setattr(orders, "_ANSWERS_WITHIN_S", 0.01)
    with pytest.raises(DataPlaneFailed, match="not answered count"):
        await carried(plane, count_of(1))


async def test_reports_go_to_who_listens() -> None:
    plane = DataPlane(asyncio.get_running_loop())
    heard: list[int] = []
    first, second = plane.new_store(), plane.new_store()
    plane.report_to(first, lambda report: heard.append(report.position))
    for store, position in ((first, 1), (second, 2), (first, 3)):
        plane.take_report(engine_pb2.EngineReport(store=store, position=position).SerializeToString())
    plane.forget(first)
    plane.take_report(engine_pb2.EngineReport(store=first, position=4).SerializeToString())
    assert heard == [1, 3]
