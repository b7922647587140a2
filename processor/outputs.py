"""What a query writes to: changelogs of stores, and topics beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypedDict, Unpack

from pyspark.sql import Column, DataFrame

from processor.operators.aggregators import Aggregator
from processor.operators.suppression import Suppression, WindowCloses
from processor.ownership.settings import StoreDeclaration
from processor.plans import makes_one_row_a_batch
from processor.rows import KEY, TIMESTAMP
from processor.rows import WINDOW as WINDOW_COLUMN
from processor.sink.layouts import TOPIC_OUTPUT, Layout
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


class OutputMode(StrEnum):
    """When Spark emits an aggregate's rows: its own output modes."""

    UPDATE = "update"
    """Each batch emits the rows it changed."""
    APPEND = "append"
    """A window or session is emitted once, when the watermark has closed it."""


class TopicOptions(TypedDict, total=False):
    """What every output of a query can be told."""

    where: Column | None
    """Which of the query's rows go to this output; default all. Dead letters never do."""
    columns: Mapping[str, Column]
    """This output's own columns, by name, in the place of the query's: `{"value": F.col("total")}`."""
    partitions: int | None
    """Of the topic; default: what it has, or else the largest source's at its creation."""
    config: Mapping[str, str]
    """Settings of the topic, stronger than ours."""


class StoreOptions(TopicOptions, total=False):
    """What every store that a query feeds can be told."""

    key_serde: str
    """How keys are serialized; default "string"."""
    value_serde: str
    """How values are serialized; default "json"."""
    in_memory: bool
    """Nodes keep the store in memory only; default False."""
    logging: bool
    """False: an ephemeral store. Its updates go to a topic of short retention and it starts empty after a move."""
    record_cache: bool
    """True: of a key's rows in a batch the last is published. False: all of them are (Kafka Streams'
    `withCachingDisabled`); what made them must then make a row for each update. Versions are never cached."""


class WindowOptions(StoreOptions, total=False):
    """What a window store can be told besides."""

    retention: timedelta
    """How long windows stay queryable, in stream time; default a day."""
    grace: timedelta
    """How late events may come, as told to `withWatermark`; default 0."""
    retain_duplicates: bool
    """A window has several values, told apart by an integer column `sequence`."""


class SessionOptions(StoreOptions, total=False):
    """What a session store can be told besides."""

    inactivity_gap: timedelta
    """Of Spark's `session_window`, if that is where the bounds come from."""
    retention: timedelta
    """How long sessions stay queryable, in stream time; default a day."""
    grace: timedelta
    """How late events may come, as told to `withWatermark`; default 0."""


@dataclass(frozen=True, slots=True)
class Output:
    """A topic that rows of a query go to."""

    topic: str
    layout: Layout
    declaration: StoreDeclaration | None = None
    """Of the store whose topic it is, its partition count not known yet; None for a topic that is no store's."""
    where: Column | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    partitions: int | None = None
    """As asked for; None: what the topic has, or the largest source's."""
    config: Mapping[str, str] = field(default_factory=dict)
    record_cache: bool = False

    @property
    def name(self) -> str:
        """The store's name, or the topic's; a topic may have the name of a store."""
        return self.topic if self.declaration is None else self.declaration.name


class Query:
    """A streaming query of Spark and what its rows go to, committed together: see `Application.query`.

    All that a batch writes to partition p of its outputs is one Kafka transaction, dead letters included. So a key's
    update, and the record of the same key in an output with as many partitions, show to readers at once or not at all.
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
        """Those of them that are stores."""
        return tuple(output for output in self.outputs if output.declaration is not None)

    def store(self, name: str, *, kind: str = KEY_VALUE, **options: Unpack[StoreOptions]) -> None:
        """Declare a key-value store, or one of a custom `kind`, fed by rows `key, value[, timestamp]`."""
        if kind != KEY_VALUE and kind in STORE_KINDS:
            raise ConfigurationError(
                f"store {name!r}: declare a {kind} store with {kind}_store(...), which takes its times"
            )
        self._declare(name, Layout(kind), {}, options)

    def window_store(self, name: str, window_size: timedelta, **options: Unpack[WindowOptions]) -> None:
        """Declare a window store, fed by rows `key, window_start, value`, the start a Spark timestamp.

        In the place of `window_start` rows may have the column `window` that Spark's `window(...)` gives.
        """
        retention, grace = options.pop("retention", _DAY), options.pop("grace", _NOTHING)
        retain_duplicates = options.pop("retain_duplicates", False)
        _check_retention(name, retention, "window size", window_size, grace)
        declared = {
            "retention_ms": _millis(name, "retention", retention),
            "window_size_ms": _millis(name, "window_size", window_size),
            "retain_duplicates": retain_duplicates,
        }
        self._declare(name, Layout(WINDOW, retain_duplicates), declared, options)

    def session_store(self, name: str, **options: Unpack[SessionOptions]) -> None:
        """Declare a session store, fed by rows `key, session_start, session_end, value`, both bounds event times.

        In the place of the bounds rows may have the column `session_window` that Spark's `session_window(...)` gives,
        with the same `inactivity_gap`. Rows that show sessions before they close must have a null value for each that
        is merged into another.
        """
        gap, grace = options.pop("inactivity_gap", _NOTHING), options.pop("grace", _NOTHING)
        retention = options.pop("retention", _DAY)
        _check_retention(name, retention, "inactivity gap", gap, grace)
        layout = Layout(SESSION, inactivity_gap_ms=_millis(name, "inactivity_gap", gap))
        self._declare(name, layout, {"retention_ms": _millis(name, "retention", retention)}, options)

    def versioned_store(self, name: str, history_retention: timedelta, **options: Unpack[StoreOptions]) -> None:
        """Declare a versioned store, fed by rows `key, value, timestamp`: a version each, valid from its timestamp.

        Every row is a version, so the query must have them all: an aggregate that emits a key once a batch has lost
        those in between.
        """
        options["record_cache"] = False
        retention_ms = _millis(name, "history_retention", history_retention)
        self._declare(name, Layout(VERSIONED), {"retention_ms": retention_ms}, options)

    def topic(self, topic: str, **options: Unpack[TopicOptions]) -> None:
        """Declare an output topic, fed by rows `key, value[, timestamp]`; each row is a record.

        A record is placed by its key as in changelogs; one without a key goes to its source partition's number. The
        topic is created if it isn't there. It may be a source of another query of the application, which then reads
        what this one has committed.
        """
        self._check_new(topic, topic)
        _check_options(topic, options, TopicOptions.__optional_keys__)
        layout = Layout(TOPIC_OUTPUT)
        self._add(Output(checked_name("topic", topic), layout, **self._common(topic, layout, options)))

    def _declare(self, name: str, layout: Layout, declared: Mapping[str, Any], options: StoreOptions) -> None:
        is_ephemeral = not options.get("logging", True)
        topic = (updates_topic if is_ephemeral else changelog_topic)(self._application_id, name)
        self._check_new(name, topic)
        _check_options(name, options, StoreOptions.__optional_keys__)
        declaration = StoreDeclaration(
            name,
            self.name,
            0,
            topic,
            layout.kind,
            options.get("key_serde", "string"),
            options.get("value_serde", "json"),
            in_memory=options.get("in_memory", False),
            ephemeral=is_ephemeral,
            **declared,
        )
        record_cache = options.get("record_cache", True)
        if not record_cache and layout.kind != VERSIONED and makes_one_row_a_batch(self.frame):
            raise ConfigurationError(
                f"store {name!r}: record_cache=False needs a row for each update, but its query's operator gives a key "
                "one row a batch: tell a Python operator record_cache=False too; Spark's native aggregates can't"
            )
        common = self._common(name, layout, options)
        self._add(Output(topic, layout, declaration, record_cache=record_cache, **common))

    def _common(self, name: str, layout: Layout, options: TopicOptions) -> dict[str, Any]:
        columns = dict(options.get("columns") or {})
        partitions = options.get("partitions")
        if partitions is not None and partitions < 1:
            raise ConfigurationError(f"{name!r}: partitions={partitions} must be at least 1")
        layout.check(name, dict((self.frame.withColumns(columns) if columns else self.frame).dtypes))
        return {
            "where": options.get("where"),
            "columns": columns,
            "partitions": partitions,
            "config": dict(options.get("config") or {}),
        }

    def _check_suppress(self, suppress: Suppression) -> None:
        """Refuse what `suppress` can't hold back."""
        if self.output_mode is not OutputMode.UPDATE:
            raise ConfigurationError(f"query {self.name!r}: suppress goes with output mode update only")
        needed = {KEY, TIMESTAMP} | ({WINDOW_COLUMN} if isinstance(suppress, WindowCloses) else set())
        absent = sorted(needed - set(self.frame.columns))
        if absent:
            raise ConfigurationError(f"query {self.name!r}: its frame lacks {', '.join(absent)}, which suppress needs")

    def _check_new(self, name: str, topic: str) -> None:
        if topic in self._outputs:
            raise ConfigurationError(f"{name!r} is declared twice: give one of them another name")
        if self.max_entries is not None and self._outputs:
            raise ConfigurationError(f"query {self.name!r}: its store is bounded by max_entries and stands alone")

    def _add(self, output: Output) -> None:
        self._outputs[output.topic] = output


def _check_options(name: str, options: Mapping[str, Any], known: frozenset[str]) -> None:
    unknown = options.keys() - known
    if unknown:
        raise ConfigurationError(
            f"{name!r}: unknown {', '.join(sorted(unknown))}; further options are {', '.join(sorted(known))}"
        )


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
