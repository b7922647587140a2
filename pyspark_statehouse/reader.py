"""Reads a store for Spark: a Spark partition for each of the store's, as Arrow batches."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_statehouse.filters import HAS_FILTERS, Pushed, pushed
from pyspark_statehouse.options import OFF, ReadOptions
from statehouse.client import Client, ClientTls
from statehouse.client.answers import Store
from statehouse.client.columns import checked_columns, columns_of
from statehouse.client.frames import NO_MOMENT
from statehouse.client.store_frame import EVERY_KEY, FramePart, StoreFrame, parts_of
from statehouse.contract.key_ranges import Comparison, Operator, key_value, ranges_of
from statehouse.contract.paging import KeyRange
from statehouse.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_LOG: Final = logging.getLogger(__name__)
# Spark before 4.2 gives times in UTC without being asked.
_UTC: Final = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
_NOTHING: Final = FramePart(0, ())
# A type of Spark's as one writes it; what is no type is a list of fields.
_TYPE: Final = re.compile(r"\s*(?:(?:struct|array|map)\s*<.*>|\w+)\s*", re.IGNORECASE | re.DOTALL)
_COMPARED: Final = (
    ("key", "key", Operator.EQUAL),
    ("from", "from_key", Operator.AT_LEAST),
    ("to", "to_key", Operator.AT_MOST),
    ("prefix", "prefix", Operator.PREFIX),
)


def connected(options: ReadOptions) -> Client:
    """Return a client of the router that the options name.

    Raises:
        ConfigurationError: a file for TLS can't be used.

    """
    tls = ClientTls.from_texts(options.tls_files) or ClientTls.from_environment()
    return Client(
        options.router, timeout=options.timeout, max_message_bytes=options.max_message_bytes, direct=False, tls=tls
    )


def described(options: ReadOptions) -> Store:
    """Ask the router for the store.

    Raises:
        LookupFailure: there is no such store, or no router.

    """
    with connected(options) as client:
        return client.describe(options.store)


def schema_of(store: Store, options: ReadOptions) -> str:
    """Return the store's columns in Spark's DDL.

    Raises:
        ConfigurationError: an option doesn't fit the store.

    """
    columns = columns_of(store, raw=options.raw)
    types = {field.name: field.dataType.simpleString() for field in from_arrow_schema(columns, False)}
    if options.value_schema is not None:
        types["value"] = _type_text(options.value_schema)
    return ", ".join(f"`{name}` {kind}" for name, kind in types.items())


def _type_text(text: str) -> str:
    return text if _TYPE.fullmatch(text) else f"struct<{text}>"


class StoreReader(DataSourceReader):  # type: ignore[misc] # pyspark has no types here
    """Plans and does the read of a store."""

    def __init__(self, options: ReadOptions, schema: StructType, store: Store) -> None:
        """Prepare.

        Raises:
            ConfigurationError: the schema or an option doesn't fit the store.

        """
        if options.pushdown and not HAS_FILTERS:
            raise ConfigurationError("option pushdown=true: this Spark pushes no filters down; Spark 4.1 or newer does")
        self._options, self._store = options, store
        self._columns = checked_columns(to_arrow_schema(schema, **_UTC), store, raw=options.raw)
        self._pushed = Pushed(_asked(store, options), options.partition, options.from_ms, options.to_ms)

    @property
    def pushFilters(self) -> Callable[[list[Filter]], list[Filter]]:  # noqa: N802 - Spark's name
        """Take over filters; return those that are left to Spark.

        Where Spark pushes no filters down it refuses readers that take some over (it compares `__func__`), so that none
        is ignored. None is: Spark then filters on its own, and this reads more than it must.
        """
        push: Any = partial(_push, self)
        push.__func__ = DataSourceReader.pushFilters
        return push  # type: ignore[no-any-return] # it has to be Any to have another attribute

    def partitions(self) -> list[InputPartition]:
        """Return what the tasks read: a partition of the store each, or a part of it."""
        read = self._pushed
        frame = StoreFrame(
            self._store, self._columns, self._options.raw, read.from_ms, read.to_ms, self._options.as_of_ms
        )
        parts = parts_of(self._store, read.ranges, read.partitions)
        if parts and self._options.moment != OFF:
            frame = self._of_moment(frame, parts)
        # Without any, Spark would make one that we don't know.
        return [InputPartition((frame, part)) for part in parts or (_NOTHING,)]

    def _of_moment(self, frame: StoreFrame, parts: Sequence[FramePart]) -> StoreFrame:
        """Return the frame with the moment that all tasks read; without one if the store shows none."""
        options = self._options
        with connected(options) as client:
            agreed = client.frame_of_moment(
                frame, parts, options.moment, freshness=options.freshness, patience=options.patience
            )
        if agreed.moment is None:
            why = agreed.schema.metadata[NO_MOMENT.encode()].decode()
            _LOG.warning("store %s is read as of no moment: %s", self._store.name, why)
        return replace(agreed, schema=frame.schema)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a part's pages as pyarrow.RecordBatches.

        Raises:
            LookupFailure: it could not be read within the bounds.

        """
        frame, part = partition.value
        options = self._options
        with connected(options) as client:
            yield from client.frame_batches(
                frame, part, page_size=options.page_size, freshness=options.freshness, patience=options.patience
            )


def _push(reader: StoreReader, filters: list[Filter]) -> list[Filter]:
    store, options = reader._store, reader._options  # noqa: SLF001 - a method of it, as Spark needs it
    if not options.pushdown:
        return filters
    key_serde = "bytes" if options.raw else store.key_serde
    reader._pushed, left = pushed(filters, reader._pushed, key_serde, store.kind)  # noqa: SLF001 - as above
    return left


def _asked(store: Store, options: ReadOptions) -> tuple[KeyRange, ...]:
    """Return the ranges of keys that the options ask for."""
    comparisons = []
    for name, field, operator in _COMPARED:
        text = getattr(options, field)
        if text is not None:
            try:
                comparison = Comparison(operator, key_value(store.key_serde, text))
                ranges_of(store.key_serde, [comparison])
            except ValueError as error:
                raise ConfigurationError(f"option {name}={shown(text)} of store {store.name}: {error}") from error
            comparisons.append(comparison)
    if not comparisons:
        return EVERY_KEY
    ranges = ranges_of(store.key_serde, comparisons)
    if not ranges:
        raise ConfigurationError(f"options from and to of store {store.name}: no key is between them; exchange them")
    return ranges
