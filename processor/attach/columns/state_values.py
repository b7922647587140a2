"""Makes finished values of what an aggregation keeps between batches: `avg` of a sum and a count.

Spark's own final expressions do it. They come from a plan of the same aggregation over a frame without rows, whose
buffers must be those that the state has: by number, name and type. The caller says what is aggregated, or it is
guessed from the state's schema (`aggregate_columns.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import LongType, StructField, StructType

from processor.attach.columns.aggregate_columns import aggregates_of
from processor.attach.columns.json_forms import unique_names
from processor.attach.columns.spark_columns import column_of, listed, sequence
from processor.spark.failures import beginning
from statehouse.errors import ConfigurationError

_DECLARATIVE: Final = "org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate"
_KEY: Final = "_key_"
STATE_KEY: Final = "_state_key"
"""The column with the key of a state's row."""
STATE_VALUE: Final = "_state_value"


@dataclass(frozen=True, slots=True)
class StateValues:
    """The values that are made of a state's columns.

    Attributes:
        columns: name -> the value, over the state's columns.
        default: the names of the columns, of these and of the state's, that make the value unless others are named.
        doubts: what the state's schema can't tell, for people.

    """

    columns: Mapping[str, Column]
    default: Sequence[str]
    doubts: Sequence[str] = ()


Buffer = tuple[str, str]
"""The name and the type of a column that an aggregate keeps."""


def as_it_is(kind: StructType) -> StateValues:
    """Return the columns themselves: of what isn't an aggregation."""
    return StateValues({}, kind.names)


def finished_by_schema(session: SparkSession, kind: StructType, names: Sequence[str]) -> StateValues:
    """Return the values that the schema of an aggregation's state tells of.

    Args:
        session: makes the plan.
        kind: the state's value, with the names that Spark gives.
        names: those that differ.

    """
    found = aggregates_of(kind, names)
    made = [each for each in found if each.sql is not None]
    finals: Sequence[Column] = ()
    if made:
        fields = [StructField(f"c{place}", each.input or LongType()) for place, each in enumerate(made)]
        calls = [(each.sql or "").format(f"c{place}") for place, each in enumerate(made)]
        over = [name for each in made for name in each.uses]
        finals = plan(session, StructType(fields), calls, over)[1]
    unread = iter(finals)
    columns: dict[str, Column] = {}
    default: list[str] = []
    as_they_are = [name for each in found for name in each.served]
    for each in found:
        if each.sql is None:
            default += each.served
            continue
        # A finished value may have the name of what it is made of: then it hides that.
        name = unique_names([*as_they_are, *columns, each.name])[-1]
        columns[name] = next(unread)
        default.append(name)
    return StateValues(columns, default, [each.doubt for each in found if each.doubt])


def finished_by_words(
    session: SparkSession,
    kind: StructType,
    names: Sequence[str],
    aggregates: Mapping[str, str],
    inputs: str,
    keys: StructType,
) -> StateValues:
    """Return the values of the aggregates that the caller has named, in the job's order.

    Args:
        session: makes the plan.
        kind: the state's value, with the names that Spark gives.
        names: those that differ.
        aggregates: name -> SQL, as in `total -> sum(amount)`.
        inputs: the columns that they read, as DDL: `amount DECIMAL(6,2), at TIMESTAMP`.
        keys: the columns of the key, which they may name too.

    Raises:
        ConfigurationError: Spark keeps something else for them than the state has, or one can't be finished.

    """
    fields = _inputs(inputs, keys)
    buffers, finals = plan(session, fields, [f"{sql} AS `{name}`" for name, sql in aggregates.items()], names)
    have = [(each.name, each.dataType.simpleString()) for each in kind.fields]
    if buffers != have:
        raise ConfigurationError(
            f"the state isn't of these aggregates: for them Spark keeps {_shown(buffers)}; the state has "
            f"{_shown(have)}. Name all aggregates of the job, in its order (--aggregate), and the types of what they "
            "read (--input)"
        )
    return StateValues(dict(zip(aggregates, finals, strict=True)), [*aggregates])


def plan(
    session: SparkSession, fields: StructType, calls: Sequence[str], over: Sequence[str]
) -> tuple[list[Buffer], list[Column]]:
    """Return what Spark keeps for aggregates over these fields, and their final values over the struct STATE_VALUE.

    `over`: the struct's fields that have what is kept.

    Raises:
        ConfigurationError: one can't be: Spark doesn't know it, or it keeps what only Spark itself can read.

    """
    frame = session.createDataFrame(
        session.sparkContext.emptyRDD(), StructType([StructField(_KEY, LongType()), *fields.fields])
    )
    try:
        grouped: Any = frame.groupBy(_KEY).agg(*map(F.expr, calls))
        optimized = grouped._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - has no public name
    except PySparkException as error:
        raise ConfigurationError(
            f"the aggregates can't be planned: {beginning(error)}. Their columns: {fields.simpleString()} (--input)"
        ) from error
    jvm: Any = session._jvm  # noqa: SLF001 - as above
    # What only the results need is put over the aggregation at times.
    found = jvm.org.apache.spark.sql.catalyst.planning.PhysicalAggregation.unapply(optimized)
    outputs = None
    if found.isEmpty() and optimized.getClass().getSimpleName() == "Project":
        outputs = listed(optimized.projectList())[1:]
        found = jvm.org.apache.spark.sql.catalyst.planning.PhysicalAggregation.unapply(optimized.child())
    if found.isEmpty():
        raise ConfigurationError("the aggregates can't be planned: name plain aggregates, as in sum(amount)")
    declarative = jvm.java.lang.Class.forName(_DECLARATIVE)
    buffers: list[Buffer] = []
    places: dict[int, Any] = {}
    finals: dict[int, Any] = {}
    for each in listed(found.get().productElement(1)):
        function = each.aggregateFunction()
        if not declarative.isInstance(function):
            raise ConfigurationError(
                f"{function.prettyName()}() can't be finished: what it keeps can only be read by Spark itself. Leave "
                "all aggregates out to have the state's own columns, or take it out of the job's query"
            )
        for attribute in listed(function.aggBufferAttributes()):
            if len(buffers) < len(over):
                name = sequence(session, [STATE_VALUE, over[len(buffers)]])
                places[attribute.exprId().id()] = jvm.org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute(name)
            buffers.append((attribute.name(), attribute.dataType().simpleString()))
        finals[each.resultAttribute().exprId().id()] = function.evaluateExpression()
    results = listed(found.get().productElement(2))[1:]  # the first is the key
    if len(buffers) != len(over):
        return buffers, []
    made = [_put(session, _put(session, each, finals), places) for each in results]
    if outputs is not None:
        over_it = {each.exprId().id(): _unnamed(whole) for each, whole in zip(results, made, strict=True)}
        made = [_put(session, each, over_it) for each in outputs]
    return buffers, [column_of(session, each) for each in made]


def _put(session: SparkSession, expression: Any, instead: Mapping[int, Any]) -> Any:  # noqa: ANN401 - of the JVM
    """Return an expression of Spark with others instead of some of its attributes, by their ids."""
    children = listed(expression.children())
    if not children:
        name = expression.getClass().getSimpleName()
        return instead.get(expression.exprId().id(), expression) if name == "AttributeReference" else expression
    made = [_put(session, each, instead) for each in children]
    return expression.withNewChildren(sequence(session, made))


def _unnamed(expression: Any) -> Any:  # noqa: ANN401 - as above
    """Return an expression without the name that it has as a column."""
    return expression.child() if expression.getClass().getSimpleName() == "Alias" else expression


def _inputs(inputs: str, keys: StructType) -> StructType:
    try:
        declared = StructType.fromDDL(inputs) if inputs.strip() else StructType([])
    except PySparkException as error:
        raise ConfigurationError(
            f"--input {inputs!r} isn't a list of columns with types: {beginning(error)}"
        ) from error
    taken = {name.lower() for name in declared.names}
    return StructType([*declared.fields, *(each for each in keys.fields if each.name.lower() not in taken)])


def _shown(buffers: Sequence[Buffer]) -> str:
    return ", ".join(map(" ".join, buffers)) or "nothing"
