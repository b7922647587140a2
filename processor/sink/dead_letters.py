"""Dead letters of a task's rows: which rows make one, and the source record that each of them keeps.

A query's row need not have the record's bytes any more, and never has its headers. So the records are read again, by
their offsets, before the batch's transactions begin. That costs nothing while no record is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from confluent_kafka import KafkaException, Message

from processor.rows import OFFSET, PARTITION, REASON, TOPIC
from statehouse.contract.dead_letters import SourcePlace, SourceRecord
from statehouse.errors import LookupFailure
from statehouse.kafka.ranges import ranges_at, read_ranges, timestamp_ms
from statehouse.settings.brokers import Brokers

log = structlog.get_logger(__name__)

ROWS_MAX: Final = 1000
"""Rows that are converted to Python objects at once."""
_SILENCE_S: Final = 5.0
"""A batch rather has a dead letter without its record's headers than wait longer for them."""


def refused_rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the refused rows of a sink partition: of each source record the first, and all that come from no record.

    Spark makes a row for each sliding window of a record, and a query's outputs may refuse the same record. Rows that
    are refused before they are placed are all in their record's sink partition, so of these none is written twice.
    """
    seen: set[SourcePlace] = set()
    for batch in rows.filter(pc.is_valid(rows[REASON])).to_batches(ROWS_MAX):
        for row in batch.to_pylist():
            place = place_of(row)
            if place is not None:
                if place in seen:
                    continue
                seen.add(place)
            yield row


def place_of(row: Mapping[str, Any]) -> SourcePlace | None:
    """Return where a row's record is; None if it comes from no single one, as an aggregate's."""
    topic, partition, offset = row[TOPIC], row[PARTITION], row[OFFSET]
    if topic is None or partition is None or offset is None:
        return None
    return SourcePlace(topic, partition, offset)


def source_records(
    brokers: Brokers | str, places: Collection[SourcePlace], client_id: str
) -> dict[SourcePlace, SourceRecord]:
    """Return the records at these places, without those that can't be read: deleted meanwhile, or in no time."""
    if not places:
        return {}
    ranges = ranges_at((place.topic, place.partition, place.offset) for place in places)
    wanted = frozenset(places)
    found: dict[SourcePlace, SourceRecord] = {}
    try:
        for message in read_ranges(brokers, ranges, client_id, _SILENCE_S):
            place = SourcePlace(str(message.topic()), int(message.partition() or 0), int(message.offset() or 0))
            if place in wanted:
                found[place] = _record(message)
    except (LookupFailure, KafkaException) as failure:
        log.warning("source records of dead letters can't be read", error=str(failure))
    if missing := len(wanted) - len(found):
        log.warning("dead letters without the bytes of their source records", dead_letters=missing)
    return found


def _record(message: Message) -> SourceRecord:
    headers = [(name, content) for name, content in message.headers() or ()]
    return SourceRecord(message.key(), message.value(), headers, timestamp_ms(message))
