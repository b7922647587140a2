"""The users' API: declare sources, write ordinary PySpark, declare stores.

    application_id = "clicks"

    def build(app: Application) -> None:
        clicks = parse_json(app.stream("clicks"), {"user": FieldType.TEXT})
        ...
        app.store("clicks-per-user", counts)

Nothing of Spark is hidden: sources are streaming DataFrames with the columns of `rows.ORIGIN`, stores take any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol, Unpack

from pyspark.sql import DataFrame

from processor.operators.aggregators import Aggregator
from processor.operators.suppression import Suppression
from processor.outputs import Output, OutputMode, Query, SessionOptions, StoreOptions, WindowOptions
from processor.ownership.settings import StoreDeclaration
from processor.sink.layouts import Layout
from statehouse.errors import ConfigurationError
from statehouse.topology import KEY_VALUE, SESSION, checked_name


class SourceKind(StrEnum):
    """What a source's records are."""

    STREAM = "stream"
    """Events: rate limited, each processed once in its place."""
    TABLE = "table"
    """Rows by key, read to the end in the first batch; co-partitioned state."""
    GLOBAL_TABLE = "global_table"
    """Rows by key whose updates in a batch apply before the batch's events."""


@dataclass(frozen=True, slots=True)
class Source:
    """A declared source topic. `options` are passed to Spark's Kafka source as they are."""

    topic: str
    kind: SourceKind
    options: Mapping[str, str] = field(default_factory=dict)


class SourceReader(Protocol):
    """Gives a source's frame; Kafka's in production."""

    def __call__(self, source: Source) -> DataFrame:
        """Return a frame with the columns of `rows.ORIGIN`."""
        ...


class Application:
    """A topology under construction: what `build(app)` of a topology module fills.

    Keys and values of frames are serialized already (strings or bytes); a null value is a tombstone, `timestamp` the
    event time of the record. A frame with VERDICT columns carries dead letters too; these need `topic`, `partition`
    and `offset`. Each declaration raises ConfigurationError if it can't work, and says what to change.

    Attributes:
        application_id: prefix of every topic of the application.

    """

    def __init__(self, application_id: str, read_source: SourceReader) -> None:
        self.application_id = checked_name("application id", application_id)
        self._read_source = read_source
        self._sources: dict[str, tuple[Source, DataFrame]] = {}
        self._queries: dict[str, Query] = {}
        self._global_stores: dict[str, StoreDeclaration] = {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """The declared sources, in order."""
        return tuple(source for source, _ in self._sources.values())

    @property
    def queries(self) -> tuple[Query, ...]:
        """The declared queries, in order."""
        return tuple(self._queries.values())

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What the queries write to, in order."""
        return tuple(output for query in self.queries for output in query.outputs)

    @property
    def stores(self) -> tuple[Output, ...]:
        """Those of the outputs that are stores."""
        return tuple(output for output in self.outputs if output.declaration is not None)

    @property
    def global_stores(self) -> tuple[StoreDeclaration, ...]:
        """The declared global stores, in order."""
        return tuple(self._global_stores.values())

    def stream(self, topic: str, **options: str) -> DataFrame:
        """Declare a stream of events; return its frame."""
        return self._source(Source(topic, SourceKind.STREAM, options))

    def table(self, topic: str, **options: str) -> DataFrame:
        """Declare a table: the latest record of a key counts, a null value deletes; return its frame of records."""
        return self._source(Source(topic, SourceKind.TABLE, options))

    def global_table(self, topic: str, **options: str) -> DataFrame:
        """Declare a global table; return its frame of records."""
        return self._source(Source(topic, SourceKind.GLOBAL_TABLE, options))

    def query(
        self,
        name: str,
        dataframe: DataFrame,
        *,
        output_mode: str = OutputMode.UPDATE,
        conf: Mapping[str, str] | None = None,
        suppress: Suppression | None = None,
    ) -> Query:
        """Declare a streaming query; declare what its rows go to on what this returns.

        A query is a sub-topology: its stores with equal partition counts share tasks. It has a checkpoint under its
        name, `output_mode` is Spark's ("update" or "append"), and `conf` are settings of Spark for it alone.

            judged = app.query("commands", frame)
            judged.store("objects", where=F.col("is_valid"))
            judged.topic("invalid-operations", where=~F.col("is_valid"), columns={"value": F.col("reason_json")})

        With `suppress`, rows are updates of a table, that pass after a time limit or when their window closes; the
        frame needs `timestamp`. Each partition holds updates back in a buffer of its own, with a stream time that only
        its own updates move, as a task's in Kafka Streams; the partitions are those of the first output. The
        updates of a batch apply in the order of their timestamps, then of `partition` and `offset` (see `store`); one
        without a timestamp has its partition's stream time. At most one row of a key, and window, passes in a batch.
        Dead letters and rows without a key aren't held back.
        """
        if name in self._queries:
            raise ConfigurationError(f"query {name!r} is declared twice: give one of them another name")
        query = Query(self.application_id, name, dataframe, output_mode, conf, suppress)
        self._queries[name] = query
        return query

    def store(
        self,
        name: str,
        dataframe: DataFrame,
        *,
        kind: str = KEY_VALUE,
        output_mode: str = OutputMode.UPDATE,
        max_entries: int | None = None,
        aggregator: Aggregator | None = None,
        **options: Unpack[StoreOptions],
    ) -> None:
        """Declare a key-value store, or one of a custom `kind`, with a query of its own (see `Query.store`).

        With `max_entries` a partition of the changelog keeps so many entries, the last updated ones (LRU; reads don't
        count): what an update displaces gets a tombstone in the same transaction. Updates apply in the order of their
        `timestamp`, then of `partition` and `offset`. So a frame of events should keep `topic`, `partition` and
        `offset` of its source; an aggregate grouped by the key has one row a key and batch, and needs none of them.
        The query ends with an error at a batch in which a key has two different rows and nothing that orders them. It
        doesn't start without its checkpoint if the changelog has records, as their recency is lost.

        With `aggregator` besides, rows are events: an entry's value is what the aggregator makes of its key's events,
        and a displaced key forgets them. It is then aggregated anew.
        """
        if max_entries is None and aggregator is not None:
            raise ConfigurationError(
                f"store {name!r}: aggregator goes with max_entries; without a bound use the operator aggregate(...)"
            )
        if max_entries is not None:
            if max_entries < 1:
                raise ConfigurationError(f"store {name!r}: max_entries={max_entries} must be at least 1")
            if kind != KEY_VALUE or output_mode != OutputMode.UPDATE or options.keys() & {"where", "columns"}:
                raise ConfigurationError(
                    f"store {name!r}: max_entries goes with a key-value store in output mode update only, that takes "
                    "its frame as it is (no where, no columns)"
                )
        query = self._sole(name, dataframe, output_mode)
        query.max_entries, query.aggregator = max_entries, aggregator
        query.store(name, kind=kind, **options)

    def window_store(
        self,
        name: str,
        dataframe: DataFrame,
        window_size: timedelta,
        *,
        output_mode: str = OutputMode.UPDATE,
        **options: Unpack[WindowOptions],
    ) -> None:
        """Declare a window store with a query of its own (see `Query.window_store`)."""
        self._sole(name, dataframe, output_mode).window_store(name, window_size, **options)

    def session_store(
        self,
        name: str,
        dataframe: DataFrame,
        *,
        output_mode: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> None:
        """Declare a session store with a query of its own (see `Query.session_store`).

        Spark emits the sessions of its `session_window` once, when they close, so that the output mode is then
        "append", else "update".
        """
        if output_mode is None:
            closes = Layout(SESSION).takes_sparks_sessions(dataframe.columns)
            output_mode = OutputMode.APPEND if closes else OutputMode.UPDATE
        self._sole(name, dataframe, output_mode).session_store(name, **options)

    def versioned_store(
        self,
        name: str,
        dataframe: DataFrame,
        history_retention: timedelta,
        *,
        output_mode: str = OutputMode.UPDATE,
        **options: Unpack[StoreOptions],
    ) -> None:
        """Declare a versioned store with a query of its own (see `Query.versioned_store`)."""
        self._sole(name, dataframe, output_mode).versioned_store(name, history_retention, **options)

    def global_store(
        self, name: str, topic: str, key_serde: str = "string", value_serde: str = "json", *, in_memory: bool = False
    ) -> None:
        """Declare a global store: every node holds all of a compacted topic, which is served as it is."""
        self._check_new(name)
        self._global_stores[name] = StoreDeclaration(
            name, name, 0, topic, KEY_VALUE, key_serde, value_serde, in_memory=in_memory, is_global=True
        )

    def check(self) -> None:
        """Check what can be told only of the whole.

        Raises:
            ConfigurationError: the application keeps nothing, a query writes nowhere, or a topic is written twice.

        """
        if not self.queries and not self.global_stores:
            raise ConfigurationError(
                f"application {self.application_id} declares no store: call app.store(...) in build"
            )
        for query in self.queries:
            if not query.outputs:
                raise ConfigurationError(f"query {query.name!r} has no output: declare a store or a topic on it")
        names = [*(store.name for store in self.stores), *self._global_stores]
        topics = [output.topic for output in self.outputs]
        twice = sorted({name for every in (names, topics) for name in every if every.count(name) > 1})
        if twice:
            raise ConfigurationError(f"{twice[0]!r} is declared twice: give one of them another name")

    def _sole(self, name: str, dataframe: DataFrame, output_mode: str) -> Query:
        self._check_new(name)
        return self.query(name, dataframe, output_mode=output_mode)

    def _check_new(self, name: str) -> None:
        if name in self._global_stores or any(name == store.name for store in self.stores):
            raise ConfigurationError(f"store {name!r} is declared twice: give one of them another name")

    def _source(self, source: Source) -> DataFrame:
        known = self._sources.get(source.topic)
        if known is None:
            known = (source, self._read_source(source))
            self._sources[source.topic] = known
        elif known[0] != source:
            raise ConfigurationError(f"topic {source.topic!r} is declared twice, as {known[0].kind} and {source.kind}")
        return known[1]
