"""Events at an even pace, and kills that hit a query between the sink's commit and Spark's."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from statehouse.contract.partitioning import partition_for
from tests.support.kafka import unless
from tests.support.polling import poll_until

_BURST_S: Final = 0.1
# A broker that a busy machine kept from its own heartbeats is no coordinator for a moment.
_PASSING: Final = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
_COORDINATOR_S: Final = 30.0


class NumberFeed:
    """Numbers for keys, produced by a thread at an even pace, as far as `allow` has let it.

    A key's events are all in one partition, so that what a batch takes of them are the next ones.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, keys: int, per_s: float, seed: int) -> None:
        self._topic, self._partitions, self._keys, self._per_s = topic, partitions, keys, per_s
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._rng = random.Random(seed)
        self._allowed = self._sent = 0
        self._failures: list[object] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed")
        self.sums: dict[str, list[int]] = defaultdict(lambda: [0])
        """By key: the sums of its first 0, 1, 2 ... numbers."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def allow(self, count: int) -> None:
        """Let it produce so many in all."""
        self._allowed = count

    def finish(self, timeout_s: float) -> None:
        """Wait until all that is allowed is produced and acknowledged."""
        poll_until(lambda: self._sent == self._allowed, timeout_s, "the events to be produced")
        assert self._producer.flush(60) == 0
        assert not self._failures, self._failures[:3]

    def _run(self) -> None:
        # What is late, as on a busy machine, is not made up for.
        burst = max(1, round(self._per_s * _BURST_S))
        while not self._stop.wait(_BURST_S):
            for _ in range(min(burst, self._allowed - self._sent)):
                key, number = f"key-{self._rng.randrange(self._keys)}", self._rng.randrange(-1000, 1000)
                partition = partition_for(key.encode(), self._partitions)
                self._producer.produce(self._topic, str(number), key, partition, on_delivery=self._took)
                self.sums[key].append(self.sums[key][-1] + number)
                self._sent += 1
            self._producer.poll(0)

    def _took(self, error: object, _message: object) -> None:
        if error is not None:
            self._failures.append(error)


class CommitGap:
    """Sees when a batch is in the changelog, by its marker, and not yet in Spark's commit log."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int, checkpoint: Path) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
        self._at = [TopicPartition(topic, partition) for partition in range(partitions)]
        self._commits = checkpoint / "commits"

    def close(self) -> None:
        """Forget the connection."""
        self._consumer.close()

    def written(self) -> int:
        """Return the newest batch that a partition's marker names; -1 if there is none."""
        markers = poll_until(lambda: unless(_PASSING, self._markers), _COORDINATOR_S, "the group's coordinator")
        newest: int = max(at.offset for at in markers)
        return newest - 1

    def _markers(self) -> list[TopicPartition]:
        markers: list[TopicPartition] = self._consumer.committed(self._at, timeout=10.0)
        return markers

    def is_committed(self, batch_id: int) -> bool:
        """Whether Spark has committed a batch."""
        return (self._commits / str(batch_id)).exists()

    def wait_open(self, timeout_s: float) -> int | None:
        """Wait for a batch to be in the gap; return its id, None if none was seen."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            written = self.written()  # asking takes some milliseconds: no pause is needed
            if written >= 0 and not self.is_committed(written):
                return written
        return None
