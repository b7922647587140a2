"""A topology under test: Spark runs its queries on what is piped in, without Kafka."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession

from processor.application import Application, Source
from processor.outputs import Output, Query
from processor.outputs.frames import partitioned_frame, query_settings, set_for_a_while
from processor.ownership.declarations import StoreDeclaration
from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TIMESTAMP, TOPIC, VALUE
from processor.sink.partitions import placed
from processor.sink.record_cache import last_of_each_key
from processor.sink.records import OutputRows, records
from processor.sink.task_rows import OUTPUT, SINK_PARTITION, TIMESTAMP_MS
from processor.sink.value_check import with_unreadable_refused
from processor.spark.versions import Feature, ensure_has
from processor.testing.records import DeadLetter, Record
from statehouse.client.conversion import from_value
from statehouse.contract.topology import SESSION, WINDOW
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.serdes import SERDES, exact_json
from statehouse.serdes.plugins import SerdeOptions

SOURCE_SCHEMA: Final = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
ARROW_SCHEMA: Final = pa.schema(
    [
        (KEY, pa.binary()),
        (VALUE, pa.binary()),
        (TOPIC, pa.string()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (TIMESTAMP, pa.timestamp("us", tz="UTC")),
    ]
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TopologyTest:
    """A topology under test.

    `directory` holds its inputs and checkpoints; topics declared without a partition count get `partitions`. Each
    `run` restarts the queries from their checkpoints, so a test sees the state that a restart would find. `registry`
    becomes the application's.
    """

    def __init__(
        self,
        application_id: str,
        build: Callable[[Application], None],
        session: SparkSession,
        directory: Path,
        partitions: int = 1,
        registry: SerdeOptions | None = None,
    ) -> None:
        ensure_has(pyspark.__version__, Feature.TESTS)
        self._session, self._directory, self._partitions = session, directory, partitions
        self._app = Application(application_id, self._read, registry)
        self._written: dict[str, list[Record]] = defaultdict(list)
        self._piped: dict[tuple[str, int, int], Record] = {}
        self.dead_letters: list[DeadLetter] = []
        """The refused records so far, in order."""
        build(self._app)
        self._app.check()
        self._app.encode_structs()
        self._stores = {store.name: store.declaration for store in self._app.stores if store.declaration}
        self._frames = [self._frame(query) for query in self._app.queries]

    def pipe(self, topic: str, *records: Record) -> Self:
        """Append records to a source, as one batch.

        Raises:
            KeyError: the topology has no such source.

        """
        if topic not in {source.topic for source in self._app.sources}:
            raise KeyError(f"{topic} is no source of the topology")
        self._append(topic, records)
        return self

    def run(self) -> Self:
        """Run every query on the records piped so far, and on the records that other queries write to its sources."""
        own = {output.topic for output in self._app.outputs} & {source.topic for source in self._app.sources}
        to_run = list(zip(self._app.queries, self._frames, strict=True))
        while to_run:
            before = {topic: len(self._written[topic]) for topic in own}
            for query, frame in to_run:
                self._run_once(query, frame)
            fed = [topic for topic, count in before.items() if len(self._written[topic]) > count]
            to_run = [(query, frame) for query, frame in to_run if any(self._reads(frame, topic) for topic in fed)]
        return self

    def store(self, name: str) -> dict[Any, Any]:
        """Return a store's entries, typed by its serdes; as bytes where a serde is a plug-in.

        The key is the store's own; (key, start) in window stores, (key, start, sequence) with `retain_duplicates`,
        (key, start, end) in session stores. Times are epoch milliseconds.
        """
        store = self._stores[name]
        entries: dict[bytes, bytes] = {}
        for record in self._written[store.changelog_topic]:
            key, value = record.key, record.value
            assert isinstance(key, bytes)  # noqa: S101 - stores have bytes as keys
            if isinstance(value, bytes):
                entries[key] = value
            else:
                entries.pop(key, None)
        return {_entry_key(store, key): _shown(store.value_serde, value) for key, value in entries.items()}

    def records(self, name: str) -> list[Record]:
        """Return the records, as bytes and in order, of an output topic, or else of the changelog of a store."""
        topics = {name: store.changelog_topic for name, store in self._stores.items()}
        topics |= {output.topic: output.topic for output in self._app.outputs}
        return list(self._written[topics[name]])

    def _run_once(self, query: Query, frame: DataFrame) -> None:
        with set_for_a_while(self._session, query_settings(query, {})):
            started = (
                frame.writeStream.queryName(query.name)
                .outputMode(query.output_mode.value)
                .option("checkpointLocation", str(self._directory / "checkpoints" / query.name))
                .trigger(availableNow=True)
                .foreachBatch(partial(self._take, query))
                .start()
            )
        started.awaitTermination()

    def _read(self, source: Source) -> DataFrame:
        directory = self._inputs(source.topic)
        directory.mkdir(parents=True, exist_ok=True)
        return self._session.readStream.schema(SOURCE_SCHEMA).parquet(str(directory))

    def _reads(self, frame: DataFrame, topic: str) -> bool:
        plan = frame._jdf.queryExecution().analyzed().toString()  # noqa: SLF001 - the plan has no public name in Python
        return str(self._inputs(topic)) in plan

    def _inputs(self, topic: str) -> Path:
        return self._directory / "sources" / topic

    def _frame(self, query: Query) -> DataFrame:
        return partitioned_frame(query, {output.topic: self._partition_count(output) for output in query.outputs})

    def _partition_count(self, output: Output) -> int:
        return output.partitions or self._partitions

    def _append(self, topic: str, records: Iterator[Record] | tuple[Record, ...] | list[Record]) -> None:
        directory = self._inputs(topic)
        number = len(list(directory.glob("*.parquet")))
        first = sum(pq.read_metadata(file).num_rows for file in directory.glob("*.parquet"))
        rows: list[dict[str, Any]] = [
            {
                KEY: _bytes(record.key),
                VALUE: _bytes(record.value),
                TOPIC: topic,
                PARTITION: record.partition,
                OFFSET: offset,
                TIMESTAMP: _EPOCH + timedelta(milliseconds=record.timestamp_ms),
            }
            for offset, record in zip(itertools.count(first), records, strict=False)
        ]
        for row in rows:
            self._piped[topic, row[PARTITION], row[OFFSET]] = Record(row[KEY], row[VALUE])
        scratch = directory / f".{number}"
        pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), scratch)
        scratch.rename(directory / f"{number:06}.parquet")

    def _take(self, query: Query, frame: DataFrame, _batch_id: int) -> None:
        """Write a batch as the sink would."""
        outputs = query.outputs
        rows = [OutputRows(self._partition_count(each), each.layout, each.where, each.columns) for each in outputs]
        cached = [place for place, output in enumerate(outputs) if output.record_cache]
        written: Mapping[str, list[Record]] = {output.topic: [] for output in outputs}
        readable = with_unreadable_refused(records(frame, rows).toArrow(), [each.values for each in outputs])
        made = placed(readable, [each.partition_count for each in rows])
        for row in last_of_each_key(made, cached).to_pylist():
            record = Record(row[KEY], row[VALUE], row[TIMESTAMP_MS] or 0, row[SINK_PARTITION])
            if row[REASON] is None:
                written[outputs[row[OUTPUT]].topic].append(record)
            else:
                # As the sink does, which reads the source record again.
                piped = self._piped.get((row[TOPIC], row[PARTITION], row[OFFSET]), record)
                whole = replace(record, key=piped.key, value=piped.value)
                self.dead_letters.append(DeadLetter(whole, row[REASON], row[DETAIL]))
        sources = {source.topic for source in self._app.sources}
        for topic, of_topic in written.items():
            self._written[topic] += of_topic
            if of_topic and topic in sources:
                self._append(topic, of_topic)


def _entry_key(store: StoreDeclaration, data: bytes) -> Any:  # noqa: ANN401 - as the store's keys are
    if store.built_on == WINDOW:
        window = WindowKey.from_bytes(data)
        key = _shown(store.key_serde, window.key)
        return (key, window.start_ms, window.sequence) if store.retain_duplicates else (key, window.start_ms)
    if store.built_on == SESSION:
        session = SessionKey.from_bytes(data)
        return (_shown(store.key_serde, session.key), session.start_ms, session.end_ms)
    return _shown(store.key_serde, data)


def _shown(serde: str, data: bytes) -> Any:  # noqa: ANN401 - as the serde's values are
    return from_value(exact_json(SERDES[serde]).value(data)) if serde in SERDES else data


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
