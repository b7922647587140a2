"""Moments of stores in the data plane: what is ordered for a thread that reads one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from query_service.dataplane.engine import DataPlaneEngine
from query_service.dataplane.holding import DataPlaneKeyValue, DataPlaneTimed
from query_service.dataplane.orders import DataPlane
from query_service.stores.engine import KeepsMoments, MomentGone
from query_service.stores.segments import Segments, family_of
from query_service.stores.timestamps import timestamped
from query_service.stores.walk import Walk
from query_service.stores.windows import WINDOWS
from statehouse.contract.paging import LAST_MS, KeyRange
from statehouse.control.v1 import engine_pb2
from statehouse.keys.composite import WindowKey

RETENTION_MS = 120_000
NOW, THEN = 30, 7
"""Segments of the present, and of the moment that is read."""


class Program:
    """Stands for the data plane: has another segment now than it had at the moment, batch 4, which ends at 9."""

    def __init__(self, plane: DataPlane) -> None:
        self.orders: list[engine_pb2.EngineOrder] = []
        self.open_views: set[int] = set()
        self._plane = plane
        plane.connect(cast("Any", self))

    def send_order(self, number: int, order: bytes) -> None:
        self._plane.take_answer(number, self._answer(engine_pb2.EngineOrder.FromString(order)).SerializeToString())

    def _answer(self, order: engine_pb2.EngineOrder) -> engine_pb2.EngineAnswer:
        self.orders.append(order)
        answer = engine_pb2.EngineAnswer()
        match order.WhichOneof("order"):
            case "get":
                if not order.get.HasField("end"):
                    answer.values.values.add(value=timestamped(b"now", 1))
                elif (order.get.batch_id, order.get.end) == (4, 9):
                    answer.values.values.add(value=timestamped(b"then", 1))
                else:
                    return _gone()
            case "view":
                is_now = not order.view.HasField("end")
                if not is_now and (order.view.batch_id, order.view.end) != (4, 9):
                    return _gone()
                segment = NOW if is_now else THEN
                self.open_views.add(segment)
                interval_ms = Segments(RETENTION_MS).interval_ms
                answer.viewed.MergeFrom(
                    engine_pb2.EngineViewed(
                        view=segment, position=99, segments=[segment], stream_time_ms=segment * interval_ms
                    )
                )
            case "walk":
                answer.entries.is_all = True
                if order.walk.segment == order.walk.view:
                    key = WindowKey(b"k", order.walk.view * Segments(RETENTION_MS).interval_ms).to_entry_key()
                    answer.entries.keys_and_values.extend([key, timestamped(b"v", 1) or b""])
            case "unview":
                self.open_views.remove(order.unview.view)
        return answer


def _gone() -> engine_pb2.EngineAnswer:
    kind = engine_pb2.ENGINE_FAULT_KIND_MOMENT_GONE
    return engine_pb2.EngineAnswer(fault=engine_pb2.EngineFault(kind=kind, message="batch 5"))


async def reading(read: Callable[[DataPlaneEngine], Any]) -> tuple[Program, Any]:
    """Open a store, and return what a read in a thread finds."""
    plane = DataPlane(asyncio.get_running_loop())
    program = Program(plane)

    def run() -> Any:
        engine = DataPlaneEngine(plane, engine_pb2.EngineOpen(store=1, moment_bytes=1))
        engine.see([NOW], NOW * Segments(RETENTION_MS).interval_ms)
        assert isinstance(engine, KeepsMoments)
        found = read(engine)
        assert engine.open_views() == 0
        return found

    found = await asyncio.to_thread(run)
    assert not program.open_views
    return program, found


async def test_keys_are_read_as_of_the_batch_in_one_order() -> None:
    def read(engine: DataPlaneEngine) -> Any:
        store = DataPlaneKeyValue(engine)
        with engine.moment(4, 9):
            then = store.get(b"k")
        return then, store.get(b"k")

    program, found = await reading(read)
    assert found == (b"then", b"now")
    assert [order.WhichOneof("order") for order in program.orders] == ["open", "get", "get"]


async def test_windows_are_read_by_the_segments_and_the_time_of_the_batch() -> None:
    def read(engine: DataPlaneEngine) -> Any:
        store = DataPlaneTimed(engine, WINDOWS, RETENTION_MS)
        engine.on_stream_time = store.see_stream_time
        store.see_stream_time(NOW * Segments(RETENTION_MS).interval_ms)

        def shown() -> list[int]:
            page = store.scan(KeyRange(), lambda _: True, 0, LAST_MS, 10, 1_000, Walk())
            return [window.start_ms // Segments(RETENTION_MS).interval_ms for window, _ in page.entries]

        with engine.moment(4, 9):
            assert engine.families() >= {family_of(THEN)}
            then = [shown(), shown()]
        return then, shown(), store.stream_time_ms // Segments(RETENTION_MS).interval_ms

    program, found = await reading(read)
    assert found == ([[THEN], [THEN]], [NOW], NOW), "the store's own time doesn't go back"
    kinds = [order.WhichOneof("order") for order in program.orders]
    assert kinds.count("view") == 2, "one view of the moment is enough"


async def test_a_batch_that_is_gone_is_told_by_the_read() -> None:
    def read(engine: DataPlaneEngine) -> Any:
        store = DataPlaneKeyValue(engine)
        with engine.moment(5, 9):
            with pytest.raises(MomentGone, match="batch 5"):
                store.get(b"k")
            with pytest.raises(MomentGone, match="batch 5"):
                store.scan(KeyRange(), 10, 1_000, Walk())
        return store.get(b"k")

    _, found = await reading(read)
    assert found == b"now"


async def test_the_oldest_batch_is_the_one_that_the_data_plane_told_last() -> None:
    def read(engine: DataPlaneEngine) -> list[int | None]:
        found = [engine.oldest_kept()]
        for told in (engine_pb2.EngineReport(oldest_batch=0), engine_pb2.EngineState(oldest_batch=7)):
            engine.know_oldest(told)
            found.append(engine.oldest_kept())
        engine.know_oldest(engine_pb2.EngineReport())
        return [*found, engine.oldest_kept()]

    _, found = await reading(read)
    assert found == [None, 0, 7, None]
