"""Reads changelogs for watches whose position the tail no longer has: a slice at a time, by a few threads.

A slice counts only if nothing in it can have been removed by compaction (`query_service.tail` has the rule) and the
topic is still the one that the position is of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from query_service.replica import StoreReplica, monotonic_and_wall_ms
from query_service.stores.base import Record
from query_service.tail import Stretch, compaction_of
from statehouse.kafka import clients, codes
from statehouse.kafka.topics import topic_id, topic_settings

_THREADS: Final = 2
_SLICE_S: Final = 2.0
_SLICE_RECORDS: Final = 5_000
_SLICE_BYTES: Final = 1024 * 1024
_POLL_S: Final = 0.1
_ADMIN_TIMEOUT_S: Final = 5.0


class LogUnreadable(Exception):
    """The brokers can't be reached, or not in time: nothing is known of what the log holds."""


class LogReader:
    """Reads slices of changelogs, `_THREADS` at a time. `close` it."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._bootstrap, self._client_id = bootstrap, f"{client_id}-watches"
        self._threads = ThreadPoolExecutor(_THREADS, "watch-log")
        self._admin = clients.RenewedAdmin(bootstrap, self._client_id)
        self._under_way: dict[tuple[StoreReplica, int], asyncio.Future[Stretch | None]] = {}

    async def read(self, replica: StoreReplica, start: int, stop: int) -> Stretch | None:
        """Return records from `start` on, up to `stop` or as many as a slice has; None if some may be missing.

        A burst that outgrows the tail sends all watchers here from the same offset on: they share what is read.

        Raises:
            LogUnreadable: it can't be said at the moment.

        """
        slice_ = (replica, start)
        reading = self._under_way.get(slice_)
        if reading is None:
            reading = asyncio.get_running_loop().run_in_executor(self._threads, self._read, replica, start, stop)
            self._under_way[slice_] = reading
            reading.add_done_callback(lambda done: self._finished(slice_, done))
        return await asyncio.shield(reading)

    def _finished(self, slice_: tuple[StoreReplica, int], done: asyncio.Future[Stretch | None]) -> None:
        del self._under_way[slice_]
        if not done.cancelled():
            done.exception()  # whoever asked for it may have left

    def close(self) -> None:
        """End the threads; waits for the slices under way."""
        self._threads.shutdown(cancel_futures=True)

    def _read(self, replica: StoreReplica, start: int, stop: int) -> Stretch | None:
        topic, partition = replica.topic_partition
        at = TopicPartition(topic, partition, start)
        # Small queues: a slice is small, and what was fetched beyond it is thrown away.
        consumer = clients.consumer(
            self._bootstrap, self._client_id, **{"queued.min.messages": 1_000, "queued.max.messages.kbytes": 2_048}
        )
        try:
            consumer.assign([at])
            found = _read_slice(consumer, start, stop)
        except KafkaException as error:
            raise LogUnreadable(str(error)) from error
        finally:
            consumer.close()
        if found is None:
            return None
        try:
            settings = self._admin.ask(partial(topic_settings, topic=topic, timeout_s=_ADMIN_TIMEOUT_S))
            now_id = self._admin.ask(partial(topic_id, topic=topic, timeout_s=_ADMIN_TIMEOUT_S))
        except KafkaException as error:
            raise LogUnreadable(str(error)) from error
        if now_id != replica.topic_id:
            return None
        # Judged by what holds after the reading: what is spared now was spared then.
        now_ms = monotonic_and_wall_ms()[1]
        whole_from = compaction_of(settings).whole_from(start, found.with_following, now_ms)
        if whole_from != start:
            return None
        return Stretch([record for record in found.with_following if record.offset < stop], found.position)


@dataclass(frozen=True, slots=True)
class _Slice:
    """Records in offset order, the first one beyond the slice's end included; and the position it gets to."""

    with_following: Sequence[Record]
    position: int


def _read_slice(consumer: Consumer, start: int, stop: int) -> _Slice | None:
    """Read until `stop` or a bound of a slice; None if the log no longer reaches back to `start`.

    Raises:
        LogUnreadable: nothing came in time.

    """
    records: list[Record] = []
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
                    records.append(Record(key, value, message.timestamp()[1], message.offset()))
                    size += len(key) + len(value or b"")
                if position > stop:
                    return _Slice(records, stop)
            elif error.code() == codes.PARTITION_EOF:
                return _Slice(records, min(stop, message.offset()))
            elif error.code() == codes.AUTO_OFFSET_RESET:
                return None
    return _Slice(records, min(stop, position))
