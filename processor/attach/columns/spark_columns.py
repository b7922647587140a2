"""Goes between PySpark's columns and Spark's own expressions: what PySpark has no public name for, in one place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

_ATTEMPT = "v"


def expression_of(session: SparkSession, column: Column) -> Any:  # noqa: ANN401 - an object of the JVM
    """Return a column's expression."""
    java: Any = column._jc  # noqa: SLF001 - see above
    if _is_before_4(session):
        return java.expr()
    return _utils(session).expression(java)


def column_of(session: SparkSession, expression: Any) -> Column:  # noqa: ANN401 - as above
    """Return the column of an expression."""
    if _is_before_4(session):
        return Column(session._jvm.org.apache.spark.sql.Column(expression))  # noqa: SLF001 - see above
    from pyspark.sql.classic.column import Column as Classic  # noqa: PLC0415 - only there since Spark 4.0

    return Classic(_utils(session).column(expression))


def attempt(session: SparkSession, column: Column) -> Column:
    """Return a struct with the column's value as `v`; null for a row where it can't be computed."""
    inner = expression_of(session, F.struct(column.alias(_ATTEMPT)))
    return column_of(session, session._jvm.org.apache.spark.sql.catalyst.expressions.TryEval(inner))  # noqa: SLF001 - see above


def value_of(attempted: Column) -> Column:
    """Return the value of an attempt; null where it failed."""
    return attempted.getField(_ATTEMPT)


def sequence(session: SparkSession, items: Sequence[Any]) -> Any:  # noqa: ANN401 - as above
    """Return a Scala Seq."""
    return session._jvm.PythonUtils.toSeq(list(items))  # noqa: SLF001 - see above


def listed(items: Any) -> list[Any]:  # noqa: ANN401 - as above
    """Return the items of a Scala Seq."""
    return [items.apply(place) for place in range(items.size())]


def _utils(session: SparkSession) -> Any:  # noqa: ANN401 - as above
    return session._jvm.org.apache.spark.sql.classic.ExpressionUtils  # noqa: SLF001 - see above


def _is_before_4(session: SparkSession) -> bool:
    return int(session.version.partition(".")[0]) < 4


def pruned(session: SparkSession, frame: DataFrame, partitions: Collection[int]) -> DataFrame:
    """Return the rows of some of a frame's partitions; tasks run for these alone. Only for frames of one stage."""
    jvm: Any = session._jvm  # noqa: SLF001 - see above
    rows = frame._jdf.queryExecution().toRdd()  # noqa: SLF001 - see above
    # A Scala set of numbers is a function from a number to whether it is in the set.
    wanted = jvm.PythonUtils.toSeq([int(each) for each in partitions]).toSet()
    tag = rows.elementClassTag()
    kept = jvm.org.apache.spark.rdd.PartitionPruningRDD(rows, wanted, tag)
    java: Any = session._jsparkSession  # noqa: SLF001 - see above
    return _frame(session, java.internalCreateDataFrame(kept, frame._jdf.schema(), False))  # noqa: SLF001 - Spark's own order of arguments


def _frame(session: SparkSession, java: Any) -> DataFrame:  # noqa: ANN401 - as above
    if _is_before_4(session):
        return DataFrame(java, session)
    from pyspark.sql.classic.dataframe import DataFrame as Classic  # noqa: PLC0415 - only there since Spark 4.0

    return Classic(java, session)
