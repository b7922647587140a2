"""Stores as DataFrames: `spark.read.format("statehouse").option("router", ...).option("store", ...).load()`.

PySpark finds data sources in top-level packages whose names begin with `pyspark_`, by the class `DefaultSource`. It
imports them in each session that asks for any data source of Python, so the rest is imported when a store is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_statehouse.reader import StoreReader
    from statehouse.client.answers import Store

__all__ = ("DefaultSource",)


class DefaultSource(DataSource):  # type: ignore[misc] # pyspark has no types here
    """The data source "statehouse". Its options are in `pyspark_statehouse.options`."""

    _store: Store | None = None
    """Known from `schema` on, which Spark does not call if the user gives a schema."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "statehouse"

    def schema(self) -> str:
        """Ask the router for the store; return its columns.

        Raises:
            ConfigurationError: an option is wrong.
            LookupFailure: there is no such store, or no router.

        """
        from pyspark_statehouse.options import ReadOptions  # noqa: PLC0415 - see the module
        from pyspark_statehouse.reader import described, schema_of  # noqa: PLC0415 - see the module

        options = ReadOptions.of(self.options)
        self._store = described(options)
        return schema_of(self._store, options)

    def reader(self, schema: StructType) -> StoreReader:
        """Return the reader of the columns."""
        from pyspark_statehouse.options import ReadOptions  # noqa: PLC0415 - see the module
        from pyspark_statehouse.reader import StoreReader, described  # noqa: PLC0415 - see the module

        options = ReadOptions.of(self.options)
        return StoreReader(options, schema, self._store or described(options))
