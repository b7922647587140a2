"""Shows the states that a checkpoint has: what `statehouse attach --list` prints. No Kafka, and a small Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from processor.attach.checkpoint import AttachedCheckpoint
from processor.attach.columns.mapping import EntryMapping
from processor.attach.columns.state_values import STATE_KEY, STATE_VALUE
from processor.attach.operators import StateChoice, StateOperator, source_of
from processor.attach.reader import StateReader, state_operators
from statehouse.cli import output
from statehouse.cli.output import Column, OutputFormat
from statehouse.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class StateRow:
    """A state of a checkpoint.

    Attributes:
        operator: the operator's id, and its name.
        options: what `attach` is given to serve it; empty if it can't.
        kind: what entries it has.
        partitions: how many the state has.
        key: the columns of the key, with their types.
        value: likewise.
        served: the fields of a value, unless others are named.
        serde: of the keys.
        read: `changes` of each batch, or the `whole` state.
        remarks: what can't be served or known, and what to do.

    """

    operator: str
    options: str
    kind: str
    partitions: int
    key: str = ""
    value: str = ""
    served: str = ""
    serde: str = ""
    read: str = ""
    remarks: Sequence[str] = ()


def show(directory: str, spark_conf: Mapping[str, str], form: OutputFormat) -> None:
    """Print the states of a checkpoint.

    Raises:
        ConfigurationError: there is no checkpoint, it can't be read, or no batch is committed.

    """
    states = listed_states(_session(spark_conf), directory)
    columns: list[Column[StateRow]] = [
        Column("OPERATOR", lambda each: each.operator),
        Column("OPTIONS", lambda each: each.options or "-"),
        Column("KIND", lambda each: each.kind),
        Column("KEY", lambda each: each.key or "-"),
        Column("KEY SERDE", lambda each: each.serde or "-"),
        Column("STATE HAS", lambda each: each.value or "-"),
        Column("VALUE", lambda each: each.served or "-"),
        Column("PARTITIONS", lambda each: each.partitions),
        Column("READ", lambda each: each.read or "-"),
    ]
    output.show_items(form, columns, states, lambda each: each.operator)
    if form in {OutputFormat.TABLE, OutputFormat.WIDE}:
        output.print_facts((f"{each.operator} {each.options}", remark) for each in states for remark in each.remarks)


def listed_states(session: SparkSession, directory: str) -> list[StateRow]:
    """Return the states of a checkpoint.

    Raises:
        ConfigurationError: as in `show`.

    """
    checkpoint = AttachedCheckpoint(session, directory)
    checkpoint.wait_for_a_batch(0)

    def listed(batch_id: int) -> list[StateRow]:
        version = checkpoint.batch(batch_id).version
        operators = state_operators(session, checkpoint.directory)
        return [
            _listed(session, directory, operators, each, variable, version)
            for each in operators
            for variable in (each.variables or [None])
        ]

    return checkpoint.of_newest(listed)


def _listed(
    session: SparkSession,
    directory: str,
    operators: Sequence[StateOperator],
    operator: StateOperator,
    variable: str | None,
    version: int,
) -> StateRow:
    choice = StateChoice(operator.operator_id, operator.state_store, variable)
    name = f"{operator.operator_id} {operator.name}"
    kind = operator.variables.get(variable, "") if variable else operator.state_store
    try:
        source = source_of(operators, choice)
        reader = StateReader(session, directory, source, EntryMapping(key="1"), version)
    except ConfigurationError as error:
        return StateRow(name, "", kind, operator.partitions, remarks=[str(error)])
    key, value = (reader.schema[part].dataType for part in (STATE_KEY, STATE_VALUE))
    finished = reader.finished
    remarks = [*finished.doubts]
    serde = ""
    if isinstance(key, StructType) and key.names:
        serde = StateReader(session, directory, source, EntryMapping(), version).key_serde
    else:
        remarks.append("it has one row without a key: give it one, as in --key \"'total'\"")
    return StateRow(
        name,
        choice.options,
        kind,
        operator.partitions,
        _columns(key),
        _columns(value),
        ", ".join(finished.default),
        serde,
        "changes" if reader.has_changes else "whole",
        remarks,
    )


def _columns(kind: object) -> str:
    if not isinstance(kind, StructType):
        return ""
    return ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in kind.fields)


def _session(spark_conf: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        **spark_conf,
    }
    builder = SparkSession.builder.master("local[1]").appName("statehouse-attach-list")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
