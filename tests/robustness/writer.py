"""Writes to the changelog in transactions, as the processor does, and notes when each write was committed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from statehouse.kafka import clients
from statehouse.kafka.offsets import last_stable_offsets
from tests.robustness.history import Recorder, WriteRecord
from tests.support.polling import poll_until

# As often as micro-batches commit.
_TRANSACTION_S: Final = 1.0
_CALL_TIMEOUT_S: Final = 10.0
# As long as a broker may be away.
_READABLE_S: Final = 120.0


class Writer:
    """Gives keys in turn a next version, `rate` a second, a transaction each tenth of a second.

    Versions of a key only grow. One whose transaction was aborted, or ended nobody knows how, is never acknowledged
    and never used again: the next is higher.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        keys: Sequence[str],
        partition_of: Callable[[str], int],
        rate: float,
        recorder: Recorder,
    ) -> None:
        self._bootstrap, self._topic, self._partition_of, self._recorder = bootstrap, topic, partition_of, recorder
        self._keys = keys
        self._batch = max(1, round(rate * _TRANSACTION_S))
        self._versions = dict.fromkeys(keys, 0)
        self._producer: Producer | None = None
        self._admin = clients.admin(bootstrap, "robustness-writer")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self.defect: Exception | None = None

    def __enter__(self) -> Self:
        """Write every key once, so that all exist, and go on in the background."""
        while not self._write(self._keys):
            pass
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Finish the transaction under way; every acknowledged write is in the history by then."""
        self._stop.set()
        self._thread.join(2 * _CALL_TIMEOUT_S + _READABLE_S)
        assert not self._thread.is_alive(), "the writer hangs"
        self._producer = None
        if self.defect is not None:
            raise self.defect

    def _run(self) -> None:
        keys = itertools.cycle(self._keys)
        due_at = time.monotonic()
        try:
            while not self._stop.wait(max(0.0, due_at - time.monotonic())):
                # What a stall of the broker has kept from being written isn't made up for.
                due_at = max(due_at + _TRANSACTION_S, time.monotonic() - _TRANSACTION_S)
                self._write(list(itertools.islice(keys, self._batch)))
        except Exception as error:  # noqa: BLE001 - raised where the writer ends
            self.defect = error

    def _write(self, keys: Sequence[str]) -> bool:
        """Write the next versions of keys in one transaction; return whether they are known to be committed."""
        offsets: dict[tuple[str, int], int] = {}

        def delivered(key: str, version: int) -> Callable[[Any, Any], None]:
            def note(error: Any, message: Any) -> None:
                if error is None:
                    offsets[key, version] = message.offset()

            return note

        try:
            producer = self._connected()
            producer.begin_transaction()
            for key in keys:
                self._versions[key] += 1
                version = self._versions[key]
                producer.produce(
                    self._topic,
                    key=key.encode(),
                    value=str(version).encode(),
                    partition=self._partition_of(key),
                    on_delivery=delivered(key, version),
                )
            producer.commit_transaction(_CALL_TIMEOUT_S)
        except KafkaException as error:
            self._recover(error.args[0])
            return False
        self._wait_readable(offsets)
        acked_at = self._recorder.now
        for (key, version), offset in offsets.items():
            self._recorder.add(WriteRecord(key, version, self._partition_of(key), offset, acked_at))
        return True

    def _wait_readable(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Wait until committed records can be read: the broker answers a commit before it writes the markers."""
        ends = {(self._topic, self._partition_of(key)): offset for (key, _), offset in offsets.items()}

        def are_readable() -> bool:
            try:
                stable = last_stable_offsets(self._admin, ends)
            except KafkaException:  # the broker is gone; its log isn't
                return False
            return all(stable.get(partition, 0) > offset for partition, offset in ends.items())

        poll_until(are_readable, _READABLE_S, "what was committed to be readable")

    def _connected(self) -> Producer:
        """Return the producer; a new one first ends, one way or the other, what the last left open."""
        if self._producer is None:
            settings: dict[str, str | float | bool] = {
                "transactional.id": f"{self._topic}-writer",
                "transaction.timeout.ms": 10_000,
            }
            producer = clients.producer(self._bootstrap, "robustness-writer", **settings)
            producer.init_transactions(_CALL_TIMEOUT_S)
            self._producer = producer
        return self._producer

    def _recover(self, error: KafkaError) -> None:
        """Abort; where that can't be done, begin anew with another producer."""
        if self._producer is not None and error.txn_requires_abort():
            try:
                self._producer.abort_transaction(_CALL_TIMEOUT_S)
            except KafkaException:
                self._producer = None
        else:
            self._producer = None
        self._stop.wait(_TRANSACTION_S)
