"""The sink's protocol: one Kafka transaction per sink partition and batch, with a marker that the batch is done.

The task in Java writes it (`statehouse.sink.PartitionWriter`); here is what it is told, and what the driver asks.

The marker is the last committed batch's id + 1. It is an offset of a consumer group that names the Spark query, and is
sent with the data in one transaction. An attempt initialises, which fences every earlier producer of the partition.
Then it reads the marker, then it writes. So:
- When a batch runs again, partitions that committed it skip it.
- An attempt that stalled before its writes is fenced at its first write, and an attempt that initialises late reads
  the newer marker. So to initialise again is always safe, and producers may be kept.
A kept producer that isn't fenced wrote last: it remembers the marker and doesn't read it.

A claim is a marker of a batch that isn't written: it keeps older ones from being written meanwhile. The offset's
metadata tells it from a written batch's marker, because who meets it must not take the partition for up to date.

Limits: the marker of an idle group expires (7 days by broker default). If Spark leaves a batch uncommitted for that
long, the batch is written again, which is harmless for keyed upserts. With a new checkpoint, batch ids start again,
and the group's name has the query's new id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaException, TopicPartition

from processor.sink.store_values import ANY_VALUES, StoreValues
from statehouse.kafka import clients
from statehouse.kafka.transactions import FailureMeaning, Tries, meaning_of
from statehouse.runtime.backoff import Backoff, BackoffPolicy
from statehouse.runtime.brokers import Brokers

_RPC_TIMEOUT_S: Final = 10.0
_MARKERS: Final = BackoffPolicy("sink_markers", first_s=0.05, longest_s=0.05)
WRITES_CAUSE: Final = "sink_partition"
"""What the pauses before a sink partition is initialised again are counted by."""


class ForeignClaim(Exception):
    """Somebody else has claimed the partition for a newer batch, and has not written that: it may lack this one."""


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """A topic that a query writes to. `name` is the name of its store, or else of the topic."""

    name: str
    topic: str
    partition_count: int
    record_cache: bool = False
    """Whether only the last row of each key in a batch is written."""
    values: StoreValues = ANY_VALUES
    """The store behind the topic, whose values are to be readable."""


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """The target of a query's batches; all tasks have the same one.

    One transaction of sink partition p writes partition p of every output that has so many partitions.
    """

    brokers: Brokers | str
    application_id: str
    query: str
    outputs: tuple[OutputTopic, ...]
    dead_letters_topic: str
    dead_letters_partition_count: int
    query_id: str = ""
    """Spark's id from the checkpoint; set at the first batch, because Spark chooses it when the query starts."""
    transaction_timeout_s: float = field(kw_only=True)
    write_timeout_s: float = field(kw_only=True)

    @property
    def partition_count(self) -> int:
        """Number of sink partitions: the partition count of the largest output."""
        return self._largest.partition_count

    @property
    def marker_topic(self) -> str:
        """The topic for whose partitions the markers are committed as offsets; they don't refer to its records.

        An output added later with more partitions replaces it: then an unfinished batch is written once more, which is
        harmless for keyed upserts.
        """
        return self._largest.topic

    @property
    def _largest(self) -> OutputTopic:
        return max(self.outputs, key=lambda output: output.partition_count)  # the first among equals

    @property
    def marker_group(self) -> str:
        """The consumer group with the markers as its offsets."""
        return f"{self.application_id}-{self.query_id}-sink"

    def described(self, client_options: Mapping[str, str]) -> str:
        """Return it as the sink's task reads it, with the options of Kafka's Java client: `statehouse.sink.Target`."""
        description = {
            "application_id": self.application_id,
            "query": self.query,
            "clients": dict(client_options),
            "outputs": [
                {
                    "name": each.name,
                    "topic": each.topic,
                    "partitions": each.partition_count,
                    "cached": each.record_cache,
                    "store": each.values.store,
                    "serde": each.values.serde,
                }
                for each in self.outputs
            ],
            "dead_letters_topic": self.dead_letters_topic,
            "dead_letters_partitions": self.dead_letters_partition_count,
            "marker_group": self.marker_group,
            "marker_topic": self.marker_topic,
            "partitions": self.partition_count,
            "transaction_timeout_ms": round(self.transaction_timeout_s * 1000),
            "write_timeout_ms": round(self.write_timeout_s * 1000),
        }
        return json.dumps(description)


def newest_written(target: SinkTarget) -> int | None:
    """Return the newest batch in the markers of all partitions; None before the first one.

    Raises:
        KafkaException: the markers can't be read.

    """
    # Don't wait for a transaction that a driver left open: the next write to its partition aborts it.
    group: dict[str, str | int] = {"group.id": target.marker_group, "isolation.level": "read_uncommitted"}
    consumer = clients.consumer(target.brokers, f"{target.application_id}-start", **group)
    at = [TopicPartition(target.marker_topic, partition) for partition in range(target.partition_count)]
    tries = Tries(Backoff(_MARKERS), limit_s=target.write_timeout_s)
    try:
        while True:
            try:
                newest = max(_offset(marker) for marker in consumer.committed(at, timeout=_RPC_TIMEOUT_S))
            except KafkaException as failure:
                if meaning_of(failure) is FailureMeaning.REFUSED or not tries.may_go_on:
                    raise
                tries.pause()
            else:
                return newest - 1 if newest > 0 else None
    finally:
        consumer.close()


def _offset(marker: TopicPartition) -> int:
    """Return the offset of a committed marker, 0 if there is none yet."""
    if marker.error is not None:
        raise KafkaException(marker.error)
    return max(0, int(marker.offset))
