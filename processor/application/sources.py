"""Spark's Kafka source, configured for each kind of source.

Every topic is a source of the one streaming query. So Spark's offset log has all offsets, and a batch that runs again
after a crash reads the same records from every topic.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from processor.application import Source, SourceKind
from processor.rows import ORIGIN
from processor.spark.kafka_options import topic_options
from statehouse.runtime.brokers import Brokers


class KafkaSources:
    """Reads declared sources from Kafka."""

    def __init__(self, session: SparkSession, brokers: Brokers | str, max_offsets: int) -> None:
        self._session, self._brokers, self._max_offsets = session, brokers, max_offsets

    def __call__(self, source: Source) -> DataFrame:
        """Return the source's streaming frame."""
        options = topic_options(self._brokers, source.topic)
        if source.kind is SourceKind.STREAM:
            # For events only: the first batch must read the tables to their ends.
            options["maxOffsetsPerTrigger"] = str(self._max_offsets)
        options |= source.options
        return self._session.readStream.format("kafka").options(**options).load().select(*ORIGIN)
