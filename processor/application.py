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
from enum import StrEnum
from typing import Final, Protocol

from pyspark.sql import DataFrame

from processor.rows import KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE
from statehouse.errors import ConfigurationError
from statehouse.topology import changelog_topic, checked_name

_KEY_SERDES: Final = ("string", "long", "double", "bytes", "json")
_KEY_AND_VALUE: Final = (KEY, VALUE)
_DEAD_LETTER_COLUMNS: Final = (TOPIC, PARTITION, OFFSET, REASON)


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


@dataclass(frozen=True, slots=True)
class StoreDeclaration:
    """A declared store, with the frame that feeds it. `partitions` None: the largest source's at first creation."""

    name: str
    frame: DataFrame
    key_serde: str = "string"
    value_serde: str = "json"
    partitions: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)


class Application:
    """A topology under construction: what `build(app)` of a topology module fills.

    Attributes:
        application_id: prefix of every topic of the application.

    """

    def __init__(self, application_id: str, read_source: SourceReader) -> None:
        self.application_id = checked_name("application id", application_id)
        self._read_source = read_source
        self._sources: dict[str, tuple[Source, DataFrame]] = {}
        self._stores: dict[str, StoreDeclaration] = {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """The declared sources, in order."""
        return tuple(source for source, _ in self._sources.values())

    @property
    def stores(self) -> tuple[StoreDeclaration, ...]:
        """The declared stores, in order."""
        return tuple(self._stores.values())

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
        key_serde: str = "string",
        value_serde: str = "json",
        partitions: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Declare a store, fed by rows `key, value[, timestamp]`.

        Key and value are serialized already (strings or bytes); a null value is a tombstone, `timestamp` the event
        time of the changelog's record. A frame with VERDICT columns carries dead letters too; these need `topic`,
        `partition` and `offset`. `config` are settings of the changelog topic.

        Raises:
            ConfigurationError: the declaration can't work; the message says what to change.

        """
        if name in self._stores:
            raise ConfigurationError(f"store {name!r} is declared twice: give one of them another name")
        changelog_topic(self.application_id, name)
        for what, serde in (("key", key_serde), ("value", value_serde)):
            if serde not in _KEY_SERDES:
                raise ConfigurationError(f"store {name!r}: {what} serde {serde!r} is none of {', '.join(_KEY_SERDES)}")
        if partitions is not None and partitions < 1:
            raise ConfigurationError(f"store {name!r}: partitions={partitions} must be at least 1")
        needed = (*_KEY_AND_VALUE, *(_DEAD_LETTER_COLUMNS if REASON in dataframe.columns else ()))
        absent = [column for column in needed if column not in dataframe.columns]
        if absent:
            raise ConfigurationError(
                f"store {name!r}: its frame lacks {', '.join(absent)}; it has {', '.join(dataframe.columns)}"
            )
        self._stores[name] = StoreDeclaration(name, dataframe, key_serde, value_serde, partitions, dict(config or {}))

    def _source(self, source: Source) -> DataFrame:
        known = self._sources.get(source.topic)
        if known is None:
            known = (source, self._read_source(source))
            self._sources[source.topic] = known
        elif known[0] != source:
            raise ConfigurationError(f"topic {source.topic!r} is declared twice, as {known[0].kind} and {source.kind}")
        return known[1]
