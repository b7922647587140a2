"""Listeners: events in order, bounded queues, and listeners that hang or raise."""

# ruff: noqa: ARG002 - listeners take what the protocol gives

from __future__ import annotations

import threading
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from query_service.telemetry.events import StorePartition
from query_service.telemetry.listeners import GROUP, Listeners
from statehouse.contract.membership import NodeState
from statehouse.observability import listeners as module
from tests.support.polling import poll_until

WHERE = StorePartition("counts", "app-counts-changelog", 3)


class Recorder:
    """Listens to restores alone; waits at the first event until it may go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.has_begun = threading.Event()
        self.events: list[Any] = []

    def on_restore_start(self, where: StorePartition, start_offset: int, end_offset: int, *, full: bool) -> None:
        self.has_begun.set()
        self.may_go_on.wait()
        self.events.append(("start", where, start_offset, end_offset, full))

    def on_batch_restored(self, where: StorePartition, batch_end_offset: int, records: int) -> None:
        self.events.append(batch_end_offset)

    def on_restore_end(self, where: StorePartition, total: int) -> None:
        self.events.append(("end", total))

    def on_restore_suspended(self, where: StorePartition, total: int) -> None:
        self.events.append(("suspended", total))


class Raising(Recorder):
    def on_batch_restored(self, where: StorePartition, batch_end_offset: int, records: int) -> None:
        raise RuntimeError("not this one")


def test_events_arrive_in_order_at_those_who_take_them() -> None:
    recorder, hub = Recorder(), Listeners()
    hub.add("recorder", recorder)
    hub.on_node_state(NodeState.CREATED, NodeState.RUNNING)
    hub.on_restore_start(WHERE, 5, 100, full=False)
    for offset in range(6, 101):
        hub.on_batch_restored(WHERE, offset, 1)
    hub.on_restore_end(WHERE, 95)
    hub.close(30)
    assert recorder.events == [("start", WHERE, 5, 100, False), *range(6, 101), ("end", 95)]
    assert (hub.dropped(), hub.failed()) == ({"recorder": 0}, {"recorder": 0})


def test_a_listener_that_raises_is_counted_and_told_of_the_rest() -> None:
    raising, other, hub = Raising(), Recorder(), Listeners()
    hub.add("raising", raising)
    hub.add("other", other)
    hub.on_restore_start(WHERE, 0, 3, full=True)
    for offset in range(1, 4):
        hub.on_batch_restored(WHERE, offset, 1)
    hub.on_restore_end(WHERE, 3)
    hub.close(30)
    assert raising.events == [("start", WHERE, 0, 3, True), ("end", 3)]
    assert other.events == [("start", WHERE, 0, 3, True), 1, 2, 3, ("end", 3)]
    assert hub.failed() == {"raising": 3, "other": 0}


class Nameless:
    """A callable without a name, as `functools.partial` makes them too."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *_: object, **__: object) -> None:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("not this one"), SystemExit(1)], ids=["error", "exit"])
def test_a_listener_whose_methods_have_no_names_may_raise_too(error: BaseException) -> None:
    recorder, hub = Recorder(), Listeners()
    recorder.on_batch_restored = Nameless(error)  # type: ignore[method-assign]
    hub.add("nameless", recorder)
    hub.on_batch_restored(WHERE, 1, 1)
    hub.on_batch_restored(WHERE, 2, 1)
    hub.on_restore_end(WHERE, 2)
    hub.close(30)
    assert recorder.events == [("end", 2)]
    assert hub.failed() == {"nameless": 2}


def test_a_listener_that_hangs_loses_batches_but_no_start_or_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_QUEUED_EVENTS_MAX", 8)
    monkeypatch.setattr(module, "_QUEUED_BATCHES_MAX", 4)
    recorder, hub = Recorder(), Listeners()
    recorder.may_go_on.clear()
    hub.add("slow", recorder)
    hub.on_restore_start(WHERE, 0, 100, full=True)
    assert recorder.has_begun.wait(30)
    for offset in range(1, 101):
        hub.on_batch_restored(WHERE, offset, 1)
    hub.on_restore_end(WHERE, 100)
    hub.on_restore_start(WHERE, 100, 100, full=False)
    dropped = hub.dropped()["slow"]
    assert dropped == 96
    hub.close(0)  # does not wait for it
    recorder.may_go_on.set()
    poll_until(lambda: len(recorder.events) == 103 - dropped, 30, "the events that were queued")
    batches = [event for event in recorder.events if isinstance(event, int)]
    assert batches == list(range(1, len(batches) + 1))
    assert [event[0] for event in recorder.events if isinstance(event, tuple)] == ["start", "end", "start"]


def test_what_can_not_be_a_listener_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("broken", "no.such.module:Listener", GROUP),
        EntryPoint("dict", "builtins:dict", GROUP),
        EntryPoint("fine", f"{__name__}:Recorder", GROUP),
    ]
    monkeypatch.setattr(module, "entry_points", lambda **_: points)
    monkeypatch.setattr(EntryPoint, "load", lambda self: Recorder if self.name == "fine" else _load(self))
    hub = Listeners()
    hub.add_installed()
    assert list(hub.dropped()) == ["fine"]
    hub.close(30)


def _load(point: EntryPoint) -> object:
    if point.name == "dict":
        return dict
    raise ModuleNotFoundError(point.value)
