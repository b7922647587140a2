"""Listeners: how any process calls plug-ins at events, without being held up or failed by one.

Each listener has its own thread and its own bounded queue. Events arrive in order. Events beyond the bound are dropped
and counted; exceptions are logged and counted. Batches may fill only a part of the queue, so that batches are dropped
before any start or end is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import NamedTuple

import structlog
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

log = structlog.get_logger(__name__)

_QUEUED_EVENTS_MAX = 10_000
_QUEUED_BATCHES_MAX = 5_000
_COMPLAINT_INTERVAL_S = 10.0


class ListenerThreads:
    """The listeners of one kind of process. Never blocks; safe from any thread.

    A subclass has all methods of the protocols, and each method calls `tell`.
    """

    def __init__(self, group: str, protocols: Sequence[type]) -> None:
        """`group`: the entry points that name listeners. A listener has all methods of one protocol or more."""
        self._group = group
        self._threads: list[_ListenerThread] = []
        self._told: dict[type, list[_ListenerThread]] = {protocol: [] for protocol in protocols}

    def add(self, name: str, listener: object) -> None:
        """Add a listener. It gets the events from now on; logs and metrics show it as `name`."""
        protocols = [protocol for protocol in self._told if isinstance(listener, protocol)]
        if not protocols:
            log.error("listener ignored: it implements no protocol", listener=name, type=type(listener).__name__)
            return
        thread = _ListenerThread(name, listener)
        self._threads.append(thread)
        for protocol in protocols:
            self._told[protocol].append(thread)

    def add_installed(self) -> None:
        """Add the listeners of installed packages. If one can't be made, log it and go on without it."""
        for entry_point in sorted(entry_points(group=self._group)):
            try:
                self.add(entry_point.name, entry_point.load()())
            except Exception:
                log.exception("listener can't be loaded", listener=entry_point.name, value=entry_point.value)

    def tell(self, protocol: type, event: str, *arguments: object, is_batch: bool = False, **options: object) -> None:
        """Queue a call of the method `event` for each listener of the protocol."""
        for thread in self._told[protocol]:
            thread.put(_Event(event, arguments, options), is_batch=is_batch)

    def dropped(self) -> Mapping[str, int]:
        """Return how many events were dropped, by name of listener."""
        return {thread.name: thread.dropped for thread in self._threads}

    def failed(self) -> Mapping[str, int]:
        """Return how many calls raised an exception, by name of listener."""
        return {thread.name: thread.failed for thread in self._threads}

    def metrics(self, component: str) -> Iterator[Metric]:
        """Yield both counts as metrics of a component: "node" or "processor"."""
        for name, meaning, counts in (
            ("listener_events_dropped", "Events a listener was too slow for", self.dropped()),
            ("listener_failures", "Events a listener raised at", self.failed()),
        ):
            family = CounterMetricFamily(f"statehouse_{component}_{name}", meaning, labels=("listener",))
            for listener, count in counts.items():
                family.add_metric((listener,), count)
            yield family

    def close(self, timeout_s: float) -> None:
        """Wait until the listeners have taken the queued events, but at most `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class _Event(NamedTuple):
    """A call of a listener's method."""

    method: str
    arguments: tuple[object, ...]
    options: Mapping[str, object]


class _ListenerThread:
    """Calls one listener, one event at a time."""

    def __init__(self, name: str, listener: object) -> None:
        self.name, self._listener = name, listener
        self.dropped = self.failed = 0
        self._events: deque[_Event] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._drops_said = self._failures_said = -_COMPLAINT_INTERVAL_S
        self._thread = threading.Thread(target=self._run, name=f"listener-{name}", daemon=True)
        self._thread.start()

    def put(self, event: _Event, *, is_batch: bool) -> None:
        """Queue an event, or count it as dropped if the queue is full."""
        with self._changed:
            if len(self._events) < (_QUEUED_BATCHES_MAX if is_batch else _QUEUED_EVENTS_MAX):
                self._events.append(event)
                self._changed.notify()
                return
            self.dropped += 1
            now = time.monotonic()
            if now - self._drops_said < _COMPLAINT_INTERVAL_S:
                return
            self._drops_said = now
        log.warning("listener is too slow, events are dropped", listener=self.name, dropped=self.dropped)

    def end(self) -> None:
        """Make the thread end once the queue is empty."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end. If its listener hangs, the thread ends with the process."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._events or self._ending)
                if not self._events:
                    return
                event = self._events.popleft()
            try:
                getattr(self._listener, event.method)(*event.arguments, **event.options)
            except BaseException as error:  # noqa: BLE001 - a plug-in may raise anything, and even SystemExit ends a thread
                self._complain(event.method, error)

    def _complain(self, method: str, error: BaseException) -> None:
        self.failed += 1
        now = time.monotonic()
        if now - self._failures_said >= _COMPLAINT_INTERVAL_S:
            self._failures_said = now
            log.error("listener failed", listener=self.name, method=method, failures=self.failed, exc_info=error)
