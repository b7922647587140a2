"""The outputs of a query: changelogs of stores, and topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypedDict, Unpack

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.aggregators import Aggregator
from processor.operators.suppression import Suppression, WindowCloses
from processor.outputs.avro_records import avro_schema, encoded, registered
from processor.ownership.declarations import StoreDeclaration
from processor.rows import KEY, REASON, TIMESTAMP, VALUE, remedy_for
from processor.rows import WINDOW as WINDOW_COLUMN
from processor.sink.layouts import FUTURE_BOUND_MS, TOPIC_OUTPUT, FrameLayout
from processor.sink.store_values import ANY_VALUES, StoreValues
from processor.spark.places import called_at
from processor.spark.plans import makes_one_row_a_batch
from statehouse.contract.topology import (
    KEY_VALUE,
    SESSION,
    STORE_KINDS,
    VERSIONED,
    WINDOW,
    changelog_topic,
    checked_name,
    updates_topic,
)
from statehouse.errors import ConfigurationError
from statehouse.keys.columns import KeyColumn
from statehouse.serdes.plugins import SerdeOptions

_NOTHING: Final = timedelta(0)
_DAY: Final = timedelta(days=1)
_FUTURE_BOUND: Final = timedelta(milliseconds=FUTURE_BOUND_MS)
AVRO: Final = "avro"
"""The serde that structs are written for."""


class OutputMode(StrEnum):
    """When Spark emits the rows of an aggregate: Spark's output modes."""

    UPDATE = "update"
    """Each batch emits the rows that it changed."""
    APPEND = "append"
    """Spark emits a window or session once, after the watermark has closed it."""


class TopicOptions(TypedDict, total=False):
    """Options for every output of a query."""

    where: Column | None
    """Selects the query's rows for this output; default: all. It never receives dead letters."""
    columns: Mapping[str, Column]
    """Columns of this output that replace the query's, by name: `{"value": F.col("total")}`."""
    partitions: int | None
    """Partition count of the topic; default: its present count, or at its creation the largest source's."""
    config: Mapping[str, str]
    """Settings of the topic; they override our defaults."""


class StoreOptions(TopicOptions, total=False):
    """Options for every store that a query feeds."""

    key_serde: str
    """Serialization of keys; default "string"."""
    value_serde: str
    """Serialization of values; default "json"."""
    key_columns: tuple[KeyColumn, ...]
    """Keys are JSON documents made of these columns: then readers may give the columns."""
    in_memory: bool
    """Nodes keep the store in memory only; default False."""
    logging: bool
    """False: an ephemeral store. Its updates go to a topic with short retention, and it is empty after a move."""
    record_cache: bool
    """True: only a key's last row in a batch is published. False: every row is published (Kafka Streams'
    `withCachingDisabled`); the query must then make a row for each update. Versioned stores publish every row."""


class WindowOptions(StoreOptions, total=False):
    """More options for window stores."""

    retention: timedelta
    """How long windows stay queryable, in stream time; default a day."""
    grace: timedelta
    """How late events may come, as told to `withWatermark`; default 0."""
    retain_duplicates: bool
    """True: a window may have several values; the integer column `sequence` distinguishes them."""
    future_bound: timedelta
    """How far a window's start may be after its record's own timestamp (the frame's `record_time`) and the time of the
    batch; what is farther becomes a dead letter. Default 7 days."""


class VersionedOptions(StoreOptions, total=False):
    """More options for versioned stores."""

    future_bound: timedelta
    """How far a version's time may be after its record's own timestamp (the frame's `record_time`) and the time of the
    batch; what is farther becomes a dead letter. Default 7 days."""


class SessionOptions(StoreOptions, total=False):
    """More options for session stores."""

    inactivity_gap: timedelta
    """The gap of Spark's `session_window`, if the frame takes its bounds from that."""
    retention: timedelta
    """How long sessions stay queryable, in stream time; default a day."""
    grace: timedelta
    """How late events may come, as told to `withWatermark`; default 0."""
    future_bound: timedelta
    """How far a session's end may be after its record's own timestamp (the frame's `record_time`) and the time of the
    batch; what is farther becomes a dead letter. Default 7 days."""


@dataclass(frozen=True, slots=True)
class Output:
    """A topic to which a query writes rows."""

    topic: str
    layout: FrameLayout
    declaration: StoreDeclaration | None = None
    """Declares the store behind this topic, its partition count not known yet; None if the topic has no store."""
    where: Column | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    partitions: int | None = None
    """The requested partition count; None: the topic's present count, or the largest source's."""
    config: Mapping[str, str] = field(default_factory=dict)
    record_cache: bool = False
    schemas: Mapping[str, str] = field(default_factory=dict)
    """The Avro schema of `key` and of `value`, where the rows have a struct for it."""

    @property
    def name(self) -> str:
        """The name of the store, else of the topic; a topic and a store may have the same name."""
        return self.topic if self.declaration is None else self.declaration.name

    @property
    def values(self) -> StoreValues:
        """The store, if there is one, and what its values are."""
        declared = self.declaration
        return ANY_VALUES if declared is None else StoreValues(declared.name, declared.value_serde)


class Query:
    """A streaming query of Spark and its outputs, committed together: see `Application.query`.

    One Kafka transaction holds all records that a batch writes to partition p of the outputs, dead letters included.
    So readers see a key's update, and the key's record in another output with as many partitions, both or neither.
    """

    def __init__(
        self,
        application_id: str,
        name: str,
        frame: DataFrame,
        output_mode: str = OutputMode.UPDATE,
        conf: Mapping[str, str] | None = None,
        suppress: Suppression | None = None,
    ) -> None:
        self._application_id = application_id
        self.name, self.frame = checked_name("query", name), frame
        self.conf: Mapping[str, str] = dict(conf or {})
        self.max_entries: int | None = None
        self.aggregator: Aggregator | None = None
        self.declared_at = called_at()
        """The statement that declares it; None if no code of people's own does."""
        self._outputs: dict[str, Output] = {}
        try:
            self.output_mode = OutputMode(output_mode)
        except ValueError as error:
            raise ConfigurationError(f"query {name!r}: output_mode {output_mode!r} must be update or append") from error
        self.suppress = suppress
        if suppress is not None:
            self._check_suppress(suppress)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The declared outputs, in order."""
        return tuple(self._outputs.values())

    @property
    def stores(self) -> tuple[Output, ...]:
        """The outputs that are stores."""
        return tuple(output for output in self.outputs if output.declaration is not None)

    def store(self, name: str, *, kind: str = KEY_VALUE, **options: Unpack[StoreOptions]) -> None:
        """Declare a key-value store, or a store of a custom `kind`, fed by rows `key, value[, timestamp]`."""
        if kind != KEY_VALUE and kind in STORE_KINDS:
            raise ConfigurationError(
                f"store {name!r}: declare a {kind} store with {kind}_store(...), which takes its times"
            )
        self._declare(name, FrameLayout(kind), {}, options)

    def window_store(
        self, name: str, window_size: timedelta, *, kind: str = WINDOW, **options: Unpack[WindowOptions]
    ) -> None:
        """Declare a window store, fed by rows `key, window_start, value`; the start is a Spark timestamp.

        Instead of `window_start`, rows may have the column `window` that Spark's `window(...)` makes. `kind` may name a
        custom kind that builds on windows.
        """
        retention, grace = options.pop("retention", _DAY), options.pop("grace", _NOTHING)
        retain_duplicates = options.pop("retain_duplicates", False)
        future_bound_ms = _millis(name, "future_bound", options.pop("future_bound", _FUTURE_BOUND))
        _check_retention(name, retention, "window size", window_size, grace)
        declared = {
            "retention_ms": _millis(name, "retention", retention),
            "window_size_ms": _millis(name, "window_size", window_size),
            "retain_duplicates": retain_duplicates,
        }
        layout = FrameLayout(WINDOW, retain_duplicates, future_bound_ms=future_bound_ms)
        self._declare(name, layout, declared | _built_on(WINDOW, kind, name), options)

    def session_store(self, name: str, *, kind: str = SESSION, **options: Unpack[SessionOptions]) -> None:
        """Declare a session store, fed by rows `key, session_start, session_end, value`; both bounds are event times.

        Instead of the bounds, rows may have the column `session_window` that Spark's `session_window(...)` makes, with
        the same `inactivity_gap`. If rows show sessions before they close, a session that is merged into another one
        needs a row with a null value. `kind` may name a custom kind that builds on sessions.
        """
        gap, grace = options.pop("inactivity_gap", _NOTHING), options.pop("grace", _NOTHING)
        retention = options.pop("retention", _DAY)
        _check_retention(name, retention, "inactivity gap", gap, grace)
        future_bound_ms = _millis(name, "future_bound", options.pop("future_bound", _FUTURE_BOUND))
        layout = FrameLayout(
            SESSION, inactivity_gap_ms=_millis(name, "inactivity_gap", gap), future_bound_ms=future_bound_ms
        )
        declared = {"retention_ms": _millis(name, "retention", retention)}
        self._declare(name, layout, declared | _built_on(SESSION, kind, name), options)

    def versioned_store(self, name: str, history_retention: timedelta, **options: Unpack[VersionedOptions]) -> None:
        """Declare a versioned store, fed by rows `key, value, timestamp`: each row is a version, valid from then on.

        The query must keep every version as a row: an aggregate that emits a key once per batch loses the versions in
        between.
        """
        options["record_cache"] = False
        retention_ms = _millis(name, "history_retention", history_retention)
        future_bound_ms = _millis(name, "future_bound", options.pop("future_bound", _FUTURE_BOUND))
        layout = FrameLayout(VERSIONED, future_bound_ms=future_bound_ms)
        self._declare(name, layout, {"retention_ms": retention_ms}, options)

    def topic(self, topic: str, **options: Unpack[TopicOptions]) -> None:
        """Declare an output topic, fed by rows `key, value[, timestamp]`; each row becomes a record.

        The key of a record selects its partition, as in changelogs; a record without a key keeps the partition number
        of its source. A missing topic is created. Another query of the application may read the topic; it then sees
        the committed records of this one.
        """
        self._check_new(topic, topic)
        _check_options(topic, options, TopicOptions.__optional_keys__)
        layout = FrameLayout(TOPIC_OUTPUT)
        checked_name("topic", topic)
        self._outputs[topic] = Output(topic, layout, **self._common(topic, layout, options))

    def _declare(self, name: str, layout: FrameLayout, declared: Mapping[str, Any], options: StoreOptions) -> None:
        is_ephemeral = not options.get("logging", True)
        topic = (updates_topic if is_ephemeral else changelog_topic)(self._application_id, name)
        self._check_new(name, topic)
        _check_options(name, options, StoreOptions.__optional_keys__)
        serdes = {KEY: options.get("key_serde", "string"), VALUE: options.get("value_serde", "json")}
        declaration = StoreDeclaration(
            name,
            self.name,
            0,
            topic,
            key_serde=serdes[KEY],
            value_serde=serdes[VALUE],
            in_memory=options.get("in_memory", False),
            ephemeral=is_ephemeral,
            committed=not is_ephemeral,
            key_columns=options.get("key_columns", ()),
            **{"kind": layout.kind, **declared},
        )
        record_cache = options.get("record_cache", True)
        if not record_cache and layout.kind != VERSIONED and makes_one_row_a_batch(self.frame):
            raise ConfigurationError(
                f"store {name!r}: record_cache=False needs a row for each update, but its query's operator gives a key "
                "one row a batch: tell a Python operator record_cache=False too; Spark's native aggregates can't"
            )
        common = self._common(name, layout, options, [column for column in serdes if serdes[column] == AVRO])
        self._outputs[topic] = Output(topic, layout, declaration, record_cache=record_cache, **common)

    def encode_structs(self, registry: SerdeOptions) -> None:
        """Register the schemas of the outputs whose rows have structs, and have the structs written as Avro.

        Raises:
            ConfigurationError: the registry can't be reached, or refuses a schema.

        """
        for topic, output in self._outputs.items():
            columns = dict(output.columns)
            for name, schema in output.schemas.items():
                schema_id = registered(schema, f"{topic}-{name}", registry)
                columns[name] = encoded(columns.get(name, F.col(name)), schema, schema_id)
            self._outputs[topic] = replace(output, columns=columns, schemas={})

    def _common(
        self, name: str, layout: FrameLayout, options: TopicOptions, as_avro: Collection[str] = ()
    ) -> dict[str, Any]:
        columns = dict(options.get("columns") or {})
        partitions = options.get("partitions")
        if partitions is not None and partitions < 1:
            raise ConfigurationError(f"{name!r}: partitions={partitions} must be at least 1")
        frame = self.frame.withColumns(columns) if columns else self.frame
        if options.get("where") is not None:
            frame.where(options["where"])  # so that a wrong name is found here, and not when the query starts
        types = dict(frame.dtypes)
        structs = [column for column in as_avro if types.get(column, "").startswith("struct<")]
        schemas = {
            column: avro_schema(frame.schema[column].dataType, self._application_id, name, column) for column in structs
        }
        if REASON in types and VALUE not in self.frame.columns:
            raise ConfigurationError(
                f"store {name!r}: its frame has dead letters, whose value is their record's: keep the column `value`"
            )
        if VALUE in structs and VALUE not in columns and REASON in types:
            raise ConfigurationError(
                f"store {name!r}: its frame has dead letters, whose value is their record's, and a struct as value: "
                "give the store a value of its own, columns={'value': F.struct(...)}"
            )
        if structs and (self.suppress is not None or self.max_entries is not None):
            raise ConfigurationError(f"store {name!r}: with suppress or max_entries its frame must hold bytes")
        layout.check(name, types | dict.fromkeys(structs, "binary"))
        return {
            "schemas": schemas,
            "where": options.get("where"),
            "columns": columns,
            "partitions": partitions,
            "config": dict(options.get("config") or {}),
        }

    def _check_suppress(self, suppress: Suppression) -> None:
        """Raise ConfigurationError if `suppress` can't work on this query."""
        if self.output_mode is not OutputMode.UPDATE:
            raise ConfigurationError(f"query {self.name!r}: suppress goes with output mode update only")
        needed = {KEY, TIMESTAMP} | ({WINDOW_COLUMN} if isinstance(suppress, WindowCloses) else set())
        absent = sorted(needed - set(self.frame.columns))
        if absent:
            raise ConfigurationError(
                f"query {self.name!r}: its frame lacks {', '.join(absent)}, which suppress needs: "
                f"{remedy_for(absent[0])}"
            )

    def _check_new(self, name: str, topic: str) -> None:
        if topic in self._outputs:
            raise ConfigurationError(f"{name!r} is declared twice: give one of them another name")
        if self.max_entries is not None and self._outputs:
            raise ConfigurationError(f"query {self.name!r}: its store is bounded by max_entries and stands alone")


def _built_on(layout: str, kind: str, name: str) -> dict[str, str]:
    """Return the kind and layout of a store that is of a built-in kind, or of a custom kind that builds on it.

    Raises:
        ConfigurationError: the kind is another built-in one.

    """
    if kind == layout:
        return {"kind": kind}
    if kind in STORE_KINDS:
        raise ConfigurationError(f"store {name!r}: a {kind} store does not build on {layout}s: name a custom kind")
    return {"kind": kind, "layout": layout}


def _check_options(name: str, options: Mapping[str, Any], known: frozenset[str]) -> None:
    unknown = options.keys() - known
    if unknown:
        raise ConfigurationError(
            f"{name!r}: unknown {', '.join(sorted(unknown))}; further options are {', '.join(sorted(known))}"
        )


def _millis(store: str, what: str, duration: timedelta) -> int:
    """Return a duration in milliseconds.

    Raises:
        ConfigurationError: the duration isn't a whole number of milliseconds, or is negative.

    """
    millis, rest = divmod(duration, timedelta(milliseconds=1))
    if rest or millis < 0:
        raise ConfigurationError(f"store {store!r}: {what}={duration} must be whole milliseconds, and not negative")
    return millis


def _check_retention(store: str, retention: timedelta, what: str, length: timedelta, grace: timedelta) -> None:
    """Raise ConfigurationError if entries would expire while updates of them may still come."""
    if grace < _NOTHING:
        raise ConfigurationError(f"store {store!r}: grace={grace} can't be negative")
    if retention <= length + grace:
        raise ConfigurationError(
            f"store {store!r}: its retention ({retention}) must be larger than {what} + grace ({length} + {grace} = "
            f"{length + grace}), or it would drop what may still be updated: raise the retention"
        )
