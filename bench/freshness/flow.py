"""Writes events at a steady rate, and measures how old each is when a committed record shows it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from bench.failure import BenchFailure
from bench.freshness.workloads import Workload
from statehouse.kafka import clients

_POLL_S: Final = 0.05
_GRACE_S: Final = 30.0


class Flow:
    """Events of a workload on their way. Times are in seconds."""

    def __init__(self, bootstrap: str, workload: Workload, rate: float, partitions: int) -> None:
        """Prepare. Events go to the partitions in turn."""
        self._workload, self._rate, self._partitions = workload, rate, partitions
        # No lingering, and short waits of the broker: what is measured is the processor.
        self._producer: Producer = clients.producer(bootstrap, "freshness", **{"linger.ms": 0})
        overrides: dict[str, str | float | bool] = {"isolation.level": "read_committed", "fetch.wait.max.ms": 10}
        self._consumer: Consumer = clients.consumer(bootstrap, "freshness", **overrides)
        self._under_way: dict[bytes, deque[tuple[int, float]]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._number = 0
        self.ages: list[tuple[float, float]] = []
        """When each event was written, and its age when it showed."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write and read during the context."""
        places = [
            TopicPartition(self._workload.changed_topic, each, OFFSET_BEGINNING) for each in range(self._partitions)
        ]
        self._consumer.assign(places)
        threads = [threading.Thread(target=each, daemon=True) for each in (self._write, self._read)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(_GRACE_S)
            self._consumer.close()
            self._producer.flush(_GRACE_S)
            self._producer.close()

    @property
    def shown(self) -> int:
        """How many events have shown."""
        return len(self.ages)

    def ages_between(self, begin: float, end: float) -> list[float]:
        """Return the ages of the events that were written in a time, all of them.

        Raises:
            BenchFailure: some haven't shown.

        """
        deadline = time.monotonic() + _GRACE_S
        while self._has_older(end):
            if time.monotonic() > deadline:
                raise BenchFailure(f"events of {self._workload.events_topic} have not shown within {_GRACE_S:g} s")
            time.sleep(_POLL_S)
        return [age for at, age in self.ages if begin <= at < end]

    def _has_older(self, end: float) -> bool:
        with self._lock:
            return any(each and each[0][1] < end for each in self._under_way.values())

    def _write(self) -> None:
        begin = time.monotonic()
        while not self._stop.is_set():
            number = self._number = self._number + 1
            due_at = begin + number / self._rate
            if (pause_s := due_at - time.monotonic()) > 0:
                self._stop.wait(pause_s)
            key, value = self._workload.event(number)
            subject = self._workload.subject(number)
            with self._lock:
                self._under_way[subject].append((number, time.monotonic()))
            self._producer.produce(
                self._workload.events_topic, key=key, value=value, partition=number % self._partitions
            )
            self._producer.poll(0)

    def _read(self) -> None:
        while not self._stop.is_set():
            # One at a time: `consume` would wait for more, and the first would look older than it is.
            message = self._consumer.poll(_POLL_S)
            value = None if message is None or message.error() is not None else message.value()
            if message is None or value is None:
                continue
            now, newest = time.monotonic(), self._workload.newest(value)
            with self._lock:
                waiting = self._under_way[message.key()]
                while waiting and waiting[0][0] <= newest:
                    _, at = waiting.popleft()
                    self.ages.append((at, now - at))
