"""What an application declares: its sources, queries and stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final, Protocol, Unpack

from pyspark.sql import DataFrame

from processor.operators.aggregators import Aggregator
from processor.operators.suppression import Suppression
from processor.outputs import Output, OutputMode, Query, SessionOptions, StoreOptions, VersionedOptions, WindowOptions
from processor.outputs.json_values import with_json_value
from processor.ownership.declarations import StoreDeclaration
from processor.sink.layouts import FrameLayout
from statehouse.contract.topology import KEY_VALUE, SESSION, WINDOW, checked_name
from statehouse.errors import ConfigurationError
from statehouse.serdes.plugins import SerdeOptions

_BROKERS: Final = "kafka.bootstrap.servers"


class SourceKind(StrEnum):
    """What the records of a source mean."""

    STREAM = "stream"
    """Events: rate limited; each is processed once, in order."""
    TABLE = "table"
    """Rows by key, read to the end in the first batch, and partitioned like the stream that joins them."""
    GLOBAL_TABLE = "global_table"
    """Rows by key; the updates in a batch apply before the events in that batch."""


@dataclass(frozen=True, slots=True)
class Source:
    """A declared source topic; `options` go to Spark's Kafka source unchanged."""

    topic: str
    kind: SourceKind
    options: Mapping[str, str] = field(default_factory=dict)


class SourceReader(Protocol):
    """Makes the frame of a source; production reads it from Kafka."""

    def __call__(self, source: Source) -> DataFrame:
        """Return a frame with the columns of `rows.ORIGIN`."""
        ...


class Application:
    """A topology under construction: `build(app)` in a topology module fills it.

    Frames hold serialized keys and values (strings or bytes). A null value is a tombstone; `timestamp` is the event
    time of the record. A frame with the columns of REFUSAL carries dead letters too, which need `topic`, `partition`
    and `offset`. A declaration that can't work raises ConfigurationError, and its text says what to change.

    Attributes:
        application_id: the prefix of all topics of the application.
        registry: where the schema registry is, for `parse_avro` and `parse_protobuf`.

    """

    def __init__(self, application_id: str, read_source: SourceReader, registry: SerdeOptions | None = None) -> None:
        self.application_id = checked_name("application id", application_id)
        self.registry = registry or SerdeOptions()
        self._read_source = read_source
        self._sources: dict[str, tuple[Source, DataFrame]] = {}
        self._queries: dict[str, Query] = {}
        self._followed_stores: dict[str, StoreDeclaration] = {}

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
        """The outputs of all queries, in order."""
        return tuple(output for query in self.queries for output in query.outputs)

    @property
    def stores(self) -> tuple[Output, ...]:
        """The outputs that are stores."""
        return tuple(output for output in self.outputs if output.declaration is not None)

    @property
    def followed_stores(self) -> tuple[StoreDeclaration, ...]:
        """The declared stores that nodes read from their source topics, in order."""
        return tuple(self._followed_stores.values())

    def stream(self, topic: str, **options: str) -> DataFrame:
        """Declare a stream of events; return its frame."""
        return self._source(Source(topic, SourceKind.STREAM, options))

    def table(self, topic: str, **options: str) -> DataFrame:
        """Declare a table and return the frame of its records: the latest record of a key counts, null deletes it."""
        return self._source(Source(topic, SourceKind.TABLE, options))

    def global_table(self, topic: str, **options: str) -> DataFrame:
        """Declare a global table; return the frame of its records."""
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
        """Declare a streaming query; declare its stores and topics on the Query that this returns.

        A query is a sub-topology: its stores with equal partition counts share tasks. Its checkpoint has its name.
        `output_mode` is Spark's ("update" or "append"); `conf` holds Spark settings for this query only.

            judged = app.query("commands", frame)
            judged.store("objects", where=F.col("is_valid"))
            judged.topic("invalid-operations", where=~F.col("is_valid"), columns={"value": F.col("reason_json")})

        With `suppress` (Kafka Streams' suppress, KIP-328), rows are updates of a table that pass after a time limit
        or when their window closes; the frame needs `timestamp`. Each partition of the first output has its own
        buffer, and only its own updates advance its stream time, as for a task in Kafka Streams. The updates of a
        batch apply by timestamp, then by `partition` and `offset` (see `store`); an update without a timestamp takes
        its partition's stream time. At most one row per key and window passes in a batch. Dead letters and rows
        without a key aren't held back.

        Raises:
            ConfigurationError: the name is taken, or `output_mode` or `suppress` can't work with this frame.

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
        newest_by: str | None = None,
        value: Sequence[str] | None = None,
        **options: Unpack[StoreOptions],
    ) -> None:
        """Declare a key-value store, or a store of a custom `kind`, with its own query (see `Query.store`).

        With `value`, columns of the frame, the value of an entry is a JSON object of them (see `with_json_value`).

        With `newest_by`, a column of a frame of events, a key keeps the entry with its greatest value, in whatever
        order events come (see `newest`).

        With `max_entries`, each partition of the changelog keeps that many entries: the last updated ones (LRU; reads
        don't count). An update that displaces an entry writes its tombstone in the same transaction. Updates apply by
        `timestamp`, then by `partition` and `offset`. So a frame of events should keep `topic`, `partition` and
        `offset` of its source; an aggregate grouped by the key has one row per key and batch, and needs none of them.
        The query fails if a key has two different rows in a batch and nothing orders them. If the changelog has
        records, the query doesn't start without its checkpoint, because only the checkpoint knows their recency.

        With `aggregator` too, rows are events: the aggregator makes a key's value from the key's events. A displaced
        key loses its aggregate, and starts again from nothing when its next event comes.

        Raises:
            ConfigurationError: the declaration can't work; the text says what to change.

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
        if newest_by is not None and max_entries is not None:
            raise ConfigurationError(f"store {name!r}: newest_by and max_entries exclude each other")
        if value is not None and options.get("value_serde", "json") != "json":
            raise ConfigurationError(f"store {name!r}: value=[...] makes JSON: leave value_serde out")
        frame = dataframe if value is None else with_json_value(dataframe, value)
        if newest_by is not None:
            # Not above: it keeps state in Python, which Spark 3.5 lacks.
            from processor.outputs.newest import newest  # noqa: PLC0415

            frame = newest(frame, newest_by)
        query = self._sole(name, frame, output_mode)
        query.max_entries, query.aggregator = max_entries, aggregator
        query.store(name, kind=kind, **options)

    def window_store(
        self,
        name: str,
        dataframe: DataFrame,
        window_size: timedelta,
        *,
        kind: str = WINDOW,
        output_mode: str = OutputMode.UPDATE,
        **options: Unpack[WindowOptions],
    ) -> None:
        """Declare a window store with its own query (see `Query.window_store`)."""
        self._sole(name, dataframe, output_mode).window_store(name, window_size, kind=kind, **options)

    def session_store(
        self,
        name: str,
        dataframe: DataFrame,
        *,
        kind: str = SESSION,
        output_mode: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> None:
        """Declare a session store with its own query (see `Query.session_store`).

        Default output mode: "append" if the frame has Spark's `session_window` column, because Spark emits those
        sessions once, when they close; else "update".
        """
        if output_mode is None:
            closes = FrameLayout(SESSION).takes_sparks_sessions(dataframe.columns)
            output_mode = OutputMode.APPEND if closes else OutputMode.UPDATE
        self._sole(name, dataframe, output_mode).session_store(name, kind=kind, **options)

    def versioned_store(
        self,
        name: str,
        dataframe: DataFrame,
        history_retention: timedelta,
        *,
        output_mode: str = OutputMode.UPDATE,
        **options: Unpack[VersionedOptions],
    ) -> None:
        """Declare a versioned store with its own query (see `Query.versioned_store`)."""
        self._sole(name, dataframe, output_mode).versioned_store(name, history_retention, **options)

    def global_store(
        self, name: str, topic: str, key_serde: str = "string", value_serde: str = "json", *, in_memory: bool = False
    ) -> None:
        """Declare a global store: every node holds and serves the whole compacted topic, unchanged."""
        self._check_new(name)
        self._followed_stores[name] = StoreDeclaration(
            name, name, 0, topic, KEY_VALUE, key_serde, value_serde, in_memory=in_memory, is_global=True
        )

    def source_store(
        self, name: str, topic: str, key_serde: str = "string", value_serde: str = "json", *, in_memory: bool = False
    ) -> None:
        """Declare a store that is the latest value of each key in a compacted topic: nodes follow the topic itself.

        Spark takes no part, so an entry shows milliseconds after its record is written. Each partition has an active
        and standbys, as those of a store that a query writes. What makes the records must place them as Kafka's own
        producers do (murmur2); nodes check it before they say that a key isn't there.
        """
        self._check_new(name)
        self._followed_stores[name] = StoreDeclaration(
            name, name, 0, topic, KEY_VALUE, key_serde, value_serde, in_memory=in_memory, foreign=True
        )

    def check(self) -> None:
        """Check the rules that need all declarations.

        Raises:
            ConfigurationError: the application has no store, a query has no output, or a name or topic is used twice.

        """
        if not self.queries and not self.followed_stores:
            raise ConfigurationError(
                f"application {self.application_id} declares no store: call app.store(...) in build"
            )
        for query in self.queries:
            if not query.outputs:
                raise ConfigurationError(f"query {query.name!r} has no output: declare a store or a topic on it")
        names = [*(store.name for store in self.stores), *self._followed_stores]
        topics = [output.topic for output in self.outputs]
        # A source store has tasks of its own, which are called by its name.
        groups = [*(query.name for query in self.queries), *self._followed_stores]
        twice = sorted({name for every in (names, topics, groups) for name in every if every.count(name) > 1})
        if twice:
            raise ConfigurationError(f"{twice[0]!r} is declared twice: give one of them another name")

    def encode_structs(self) -> None:
        """Register the Avro schemas of structs in stores, and have them written so. It asks the registry.

        Raises:
            ConfigurationError: the registry can't be reached, or refuses a schema.

        """
        for query in self.queries:
            query.encode_structs(self.registry)

    def _sole(self, name: str, dataframe: DataFrame, output_mode: str) -> Query:
        self._check_new(name)
        return self.query(name, dataframe, output_mode=output_mode)

    def _check_new(self, name: str) -> None:
        if name in self._followed_stores or any(name == store.name for store in self.stores):
            raise ConfigurationError(f"store {name!r} is declared twice: give one of them another name")

    def _source(self, source: Source) -> DataFrame:
        if _BROKERS in {name.lower() for name in source.options}:
            raise ConfigurationError(
                f"topic {source.topic!r} has the option {_BROKERS}: an application's topics are all at its own brokers "
                "(bootstrap), where their backlog and refused records are read, too. Have another cluster's topic "
                "mirrored there"
            )
        known = self._sources.get(source.topic)
        if known is None:
            known = (source, self._read_source(source))
            self._sources[source.topic] = known
        elif known[0] != source:
            raise ConfigurationError(f"topic {source.topic!r} is declared twice, as {known[0].kind} and {source.kind}")
        return known[1]
