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
from typing import Any, Final, Protocol, TypedDict, Unpack

from pyspark.sql import DataFrame

from processor.ownership.settings import StoreDeclaration
from processor.sink.layouts import Layout
from statehouse.errors import ConfigurationError
from statehouse.topology import (
    KEY_VALUE,
    SESSION,
    STORE_KINDS,
    VERSIONED,
    WINDOW,
    changelog_topic,
    checked_name,
    updates_topic,
)

_NOTHING: Final = timedelta(0)
_DAY: Final = timedelta(days=1)


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


class OutputMode(StrEnum):
    """When Spark emits an aggregate's rows: its own output modes."""

    UPDATE = "update"
    """Each batch emits the rows it changed."""
    APPEND = "append"
    """A window or session is emitted once, when the watermark has closed it."""


class StoreOptions(TypedDict, total=False):
    """What every store that a frame feeds can be told."""

    key_serde: str
    """How keys are serialized; default "string"."""
    value_serde: str
    """How values are serialized; default "json"."""
    partitions: int
    """Of the changelog; default: the largest source's at first creation."""
    config: Mapping[str, str]
    """Settings of the store's topic, stronger than ours."""
    in_memory: bool
    """Nodes keep the store in memory only; default False."""
    logging: bool
    """False: an ephemeral store. Its updates go to a topic of short retention and it starts empty after a move."""
    output_mode: str
    """Spark's, "update" or "append"."""


@dataclass(frozen=True, slots=True)
class Store:
    """A declared store, with the frame that feeds it. Its declaration's partition count isn't known yet."""

    declaration: StoreDeclaration
    frame: DataFrame
    layout: Layout
    partitions: int | None = None
    """As asked for; None: the largest source's at first creation."""
    config: Mapping[str, str] = field(default_factory=dict)
    max_entries: int | None = None
    """Entries a partition keeps at most."""
    output_mode: OutputMode = OutputMode.UPDATE

    @property
    def name(self) -> str:
        """The store's name."""
        return self.declaration.name


class Application:
    """A topology under construction: what `build(app)` of a topology module fills.

    Keys and values of frames are serialized already (strings or bytes); a null value is a tombstone, `timestamp` the
    event time of the changelog's record. A frame with VERDICT columns carries dead letters too; these need `topic`,
    `partition` and `offset`. Each declaration raises ConfigurationError if it can't work, and says what to change.

    Attributes:
        application_id: prefix of every topic of the application.

    """

    def __init__(self, application_id: str, read_source: SourceReader) -> None:
        self.application_id = checked_name("application id", application_id)
        self._read_source = read_source
        self._sources: dict[str, tuple[Source, DataFrame]] = {}
        self._stores: dict[str, Store] = {}
        self._global_stores: dict[str, StoreDeclaration] = {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """The declared sources, in order."""
        return tuple(source for source, _ in self._sources.values())

    @property
    def stores(self) -> tuple[Store, ...]:
        """The declared stores that have a frame, in order."""
        return tuple(self._stores.values())

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

    def store(
        self,
        name: str,
        dataframe: DataFrame,
        *,
        kind: str = KEY_VALUE,
        max_entries: int | None = None,
        **options: Unpack[StoreOptions],
    ) -> None:
        """Declare a key-value store, or one of a custom `kind`, fed by rows `key, value[, timestamp]`.

        With `max_entries` a partition of the changelog keeps so many entries, the last updated ones (LRU; reads don't
        count): what an update displaces gets a tombstone in the same transaction. Updates apply in the order of their
        `timestamp`, then of `partition` and `offset`. So a frame of events should keep `topic`, `partition` and
        `offset` of its source; an aggregate grouped by the key has one row a key and batch, and needs none of them.
        The query ends with an error at a batch in which a key has two different rows and nothing that orders them. It
        doesn't start without its checkpoint if the changelog has records, as their recency is lost.
        """
        if kind != KEY_VALUE and kind in STORE_KINDS:
            raise ConfigurationError(f"store {name!r}: declare a {kind} store with app.{kind}_store(...)")
        if max_entries is not None:
            if max_entries < 1:
                raise ConfigurationError(f"store {name!r}: max_entries={max_entries} must be at least 1")
            if kind != KEY_VALUE or options.get("output_mode", OutputMode.UPDATE) != OutputMode.UPDATE:
                raise ConfigurationError(
                    f"store {name!r}: max_entries goes with a key-value store in output mode update only"
                )
        self._declare(name, dataframe, Layout(kind), {}, options, max_entries=max_entries)

    def window_store(
        self,
        name: str,
        dataframe: DataFrame,
        window_size: timedelta,
        *,
        retention: timedelta = _DAY,
        grace: timedelta = _NOTHING,
        retain_duplicates: bool = False,
        **options: Unpack[StoreOptions],
    ) -> None:
        """Declare a window store, fed by rows `key, window_start, value`, the start a Spark timestamp.

        In the place of `window_start` the frame may have the column `window` that Spark's `window(...)` gives. `grace`
        is how late events may come, as told to `withWatermark`; windows stay queryable for `retention` of stream time.
        With `retain_duplicates` a window has several values, told apart by an integer column `sequence`.
        """
        _check_retention(name, retention, "window size", window_size, grace)
        declared = {
            "retention_ms": _millis(name, "retention", retention),
            "window_size_ms": _millis(name, "window_size", window_size),
            "retain_duplicates": retain_duplicates,
        }
        self._declare(name, dataframe, Layout(WINDOW, retain_duplicates), declared, options)

    def session_store(
        self,
        name: str,
        dataframe: DataFrame,
        *,
        inactivity_gap: timedelta = _NOTHING,
        retention: timedelta = _DAY,
        grace: timedelta = _NOTHING,
        **options: Unpack[StoreOptions],
    ) -> None:
        """Declare a session store, fed by rows `key, session_start, session_end, value`, both bounds event times.

        In the place of the bounds the frame may have the column `session_window` that Spark's `session_window(...)`
        gives, with the same `inactivity_gap`. Spark emits these once, when they close, so that the output mode is then
        "append". A frame that emits sessions before they close must emit a null value for each that is merged into
        another.
        """
        _check_retention(name, retention, "inactivity gap", inactivity_gap, grace)
        gap_ms = _millis(name, "inactivity_gap", inactivity_gap)
        layout = Layout(SESSION, inactivity_gap_ms=gap_ms)
        if layout.takes_sparks_sessions(dataframe.columns):
            options.setdefault("output_mode", OutputMode.APPEND)
        self._declare(name, dataframe, layout, {"retention_ms": _millis(name, "retention", retention)}, options)

    def versioned_store(
        self, name: str, dataframe: DataFrame, history_retention: timedelta, **options: Unpack[StoreOptions]
    ) -> None:
        """Declare a versioned store, fed by rows `key, value, timestamp`: a version each, valid from its timestamp.

        Every row is a version, so the frame must have them all: an aggregate that emits a key once a batch has lost
        those in between.
        """
        retention_ms = _millis(name, "history_retention", history_retention)
        self._declare(name, dataframe, Layout(VERSIONED), {"retention_ms": retention_ms}, options)

    def global_store(
        self, name: str, topic: str, key_serde: str = "string", value_serde: str = "json", *, in_memory: bool = False
    ) -> None:
        """Declare a global store: every node holds all of a compacted topic, which is served as it is."""
        self._check_new(name)
        self._global_stores[name] = StoreDeclaration(
            name, name, 0, topic, KEY_VALUE, key_serde, value_serde, in_memory=in_memory, is_global=True
        )

    def _declare(
        self,
        name: str,
        dataframe: DataFrame,
        layout: Layout,
        declared: Mapping[str, Any],
        options: StoreOptions,
        *,
        max_entries: int | None = None,
    ) -> None:
        self._check_new(name)
        unknown = options.keys() - StoreOptions.__optional_keys__
        if unknown:
            known = ", ".join(sorted(StoreOptions.__optional_keys__))
            raise ConfigurationError(
                f"store {name!r}: unknown {', '.join(sorted(unknown))}; further options are {known}"
            )
        is_ephemeral = not options.get("logging", True)
        topic = updates_topic if is_ephemeral else changelog_topic
        declaration = StoreDeclaration(
            name,
            name,
            0,
            topic(self.application_id, name),
            layout.kind,
            options.get("key_serde", "string"),
            options.get("value_serde", "json"),
            in_memory=options.get("in_memory", False),
            ephemeral=is_ephemeral,
            **declared,
        )
        partitions = options.get("partitions")
        if partitions is not None and partitions < 1:
            raise ConfigurationError(f"store {name!r}: partitions={partitions} must be at least 1")
        layout.check(name, dict(dataframe.dtypes))
        self._stores[name] = Store(
            declaration,
            dataframe,
            layout,
            partitions,
            dict(options.get("config") or {}),
            max_entries,
            _output_mode(name, options.get("output_mode", OutputMode.UPDATE)),
        )

    def _check_new(self, name: str) -> None:
        if name in self._stores or name in self._global_stores:
            raise ConfigurationError(f"store {name!r} is declared twice: give one of them another name")

    def _source(self, source: Source) -> DataFrame:
        known = self._sources.get(source.topic)
        if known is None:
            known = (source, self._read_source(source))
            self._sources[source.topic] = known
        elif known[0] != source:
            raise ConfigurationError(f"topic {source.topic!r} is declared twice, as {known[0].kind} and {source.kind}")
        return known[1]


def _output_mode(store: str, mode: str) -> OutputMode:
    try:
        return OutputMode(mode)
    except ValueError as error:
        raise ConfigurationError(f"store {store!r}: output_mode {mode!r} must be update or append") from error


def _millis(store: str, what: str, duration: timedelta) -> int:
    """Return a duration in milliseconds.

    Raises:
        ConfigurationError: it isn't a whole number of them, or is negative.

    """
    millis, rest = divmod(duration, timedelta(milliseconds=1))
    if rest or millis < 0:
        raise ConfigurationError(f"store {store!r}: {what}={duration} must be whole milliseconds, and not negative")
    return millis


def _check_retention(store: str, retention: timedelta, what: str, length: timedelta, grace: timedelta) -> None:
    """Refuse a retention that would drop what may still be updated."""
    if grace < _NOTHING:
        raise ConfigurationError(f"store {store!r}: grace={grace} can't be negative")
    if retention <= length + grace:
        raise ConfigurationError(
            f"store {store!r}: its retention ({retention}) must be larger than {what} + grace ({length} + {grace} = "
            f"{length + grace}), or it would drop what may still be updated: raise the retention"
        )
