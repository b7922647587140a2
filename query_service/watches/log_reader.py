"""Reads changelogs for watches whose position the tail no longer has. A few threads read one slice at a time each.

A slice is used only if compaction can't have removed anything in it (`replicas.tail` has the rules), and if the topic
was not recreated.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from query_service.replicas.replica import StoreReplica, monotonic_and_wall_ms
from query_service.replicas.tail import TailRecords, compaction_of
from query_service.stores.base import ChangelogRecord
from statehouse.contract.batch_cuts import batch_in
from statehouse.kafka import clients, codes
from statehouse.kafka.renewed import RenewedAdmin
from statehouse.kafka.topics import topic_id, topic_settings
from statehouse.runtime.brokers import Brokers

_THREADS: Final = 2
_SLICE_S: Final = 2.0
_SLICE_RECORDS: Final = 5_000
_SLICE_BYTES: Final = 1024 * 1024
_POLL_S: Final = 0.1
_ADMIN_TIMEOUT_S: Final = 5.0


class LogUnreadable(Exception):
    """The brokers did not answer in time, so nobody knows what the log holds."""


class LogReader:
    """Reads slices of changelogs in `_THREADS` threads, which `close` ends."""

    def __init__(self, brokers: Brokers | str, client_id: str) -> None:
        self._brokers, self._client_id = brokers, f"{client_id}-watches"
        self._threads = ThreadPoolExecutor(_THREADS, "watch-log")
        self._admin = RenewedAdmin(brokers, self._client_id)
        self._under_way: dict[tuple[StoreReplica, int], asyncio.Future[TailRecords | None]] = {}

    async def read(self, replica: StoreReplica, start: int, stop: int) -> TailRecords | None:
        """Return records from `start` on, up to `stop` or the limits of a slice; None if some may be missing.

        After a burst that outgrows the tail all watchers need the same offset: they share one slice.

        Raises:
            LogUnreadable: the brokers did not answer in time.

        """
        slice_ = (replica, start)
        reading = self._under_way.get(slice_)
        if reading is None:
            reading = asyncio.get_running_loop().run_in_executor(self._threads, self._read, replica, start, stop)
            self._under_way[slice_] = reading
            reading.add_done_callback(lambda done: self._finished(slice_, done))
        return await asyncio.shield(reading)

    def _finished(self, slice_: tuple[StoreReplica, int], done: asyncio.Future[TailRecords | None]) -> None:
        del self._under_way[slice_]
        if not done.cancelled():
            done.exception()  # retrieved here, as the watcher may have left

    def close(self) -> None:
        """Wait for the slices that are being read, and end the threads."""
        self._threads.shutdown(cancel_futures=True)

    def _read(self, replica: StoreReplica, start: int, stop: int) -> TailRecords | None:
        topic, partition = replica.topic_partition
        at = TopicPartition(topic, partition, start)
        # Small queues: a slice is small, and records fetched beyond it are thrown away.
        consumer = clients.consumer(
            self._brokers, self._client_id, **{"queued.min.messages": 1_000, "queued.max.messages.kbytes": 2_048}
        )
        try:
            with closing(consumer):
                consumer.assign([at])
                found = _read_slice(consumer, start, stop)
            if found is None:
                return None
            settings = self._admin.ask(partial(topic_settings, topic=topic, timeout_s=_ADMIN_TIMEOUT_S))
            now_id = self._admin.ask(partial(topic_id, topic=topic, timeout_s=_ADMIN_TIMEOUT_S))
        except KafkaException as error:
            raise LogUnreadable(str(error)) from error
        if now_id != replica.topic_id:
            return None
        # Judged after the reading: a record that compaction spares now, it spared before.
        now_ms = monotonic_and_wall_ms()[1]
        if compaction_of(settings).whole_from(start, found.records, now_ms) != start:
            return None
        return TailRecords([record for record in found.records if record.offset < stop], found.position)


def _read_slice(consumer: Consumer, start: int, stop: int) -> TailRecords | None:
    """Read until `stop` or a limit of a slice; None if the log now starts after `start`.

    The records have the first one from `stop` on with them, if it was read.

    Raises:
        LogUnreadable: nothing came in time.

    """
    records: list[ChangelogRecord] = []
    size, position = 0, start
    give_up_at = time.monotonic() + _SLICE_S
    while position < stop and size < _SLICE_BYTES and len(records) < _SLICE_RECORDS:
        if time.monotonic() >= give_up_at:
            if position == start:
                raise LogUnreadable(f"nothing was read within {_SLICE_S:g} s")
            break
        for message in consumer.consume(500, _POLL_S):
            error = message.error()
            if error is None:
                key, value = message.key(), message.value()
                position = message.offset() + 1
                if key is not None:
                    batch = batch_in(message.headers())
                    records.append(ChangelogRecord(key, value, message.timestamp()[1], message.offset(), batch))
                    size += len(key) + len(value or b"")
                if position > stop:
                    return TailRecords(records, stop)
            elif error.code() == codes.PARTITION_EOF:
                return TailRecords(records, min(stop, message.offset()))
            elif error.code() == codes.AUTO_OFFSET_RESET:
                return None
    return TailRecords(records, min(stop, position))
