"""Commands, checked in order against the state of their objects. Run it with `statehouse process`.

A valid command changes its object: the object's new state goes to the store, the command to `valid-operations`. An
invalid command goes to `invalid-operations` with the reason. All three commit together. The state machine is Spark's
operator for arbitrary state, used as without Statehouse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from processor.application import Application
from processor.operators.json_records import FieldType, parse_json
from processor.operators.refusals import refuse
from processor.rows import (
    DETAIL,
    KEY,
    OFFSET,
    ORIGIN,
    PARTITION,
    REASON,
    REFUSAL,
    TIMESTAMP,
    TOPIC,
    VALUE,
    DeadLetterReason,
)

application_id = "command-validation"

COMMANDS: Final = "commands"
STORE: Final = "objects"
VALID: Final = "valid-operations"
INVALID: Final = "invalid-operations"
# Retention counts from a record's time, and a replay's are old: the broker would delete them within minutes.
_KEPT: Final = {"retention.ms": "-1"}

OBJECT: Final = "object"
REJECTED: Final = "rejected"
_OUT: Final = (*ORIGIN, *REFUSAL, OBJECT, REJECTED)
_OUT_TYPE: Final = (
    f"{KEY} binary, {VALUE} binary, {TOPIC} string, {PARTITION} int, {OFFSET} bigint, {TIMESTAMP} timestamp, "
    f"{REASON} string, {DETAIL} string, {OBJECT} string, {REJECTED} string"
)


def judge(current: str | None, operation: str, content: str) -> tuple[str | None, str | None]:
    """Return an object's state after a command, None for deleted, and why the command is rejected, None if it isn't."""
    match operation, current:
        case "create", None:
            return content, None
        case "create", _:
            return current, "it exists already"
        case (("modify" | "delete"), None):
            return None, "it does not exist"
        case "modify", _:
            return content, None
        case "delete", _:
            return None, None
        case _:
            return current, f"operation {operation!r} is none of create, modify, delete"


class Judge(StatefulProcessor):  # type: ignore[misc] # pyspark counts as untyped
    """Judges the commands for one object."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state: the object's content."""
        self._object = handle.getValueState("object", "content string")

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: tuple[str],  # noqa: ARG002
        rows: Iterator[Row],
        timerValues: object,  # noqa: N803, ARG002
    ) -> Iterable[Row]:
        """Yield each command with the result of the check; dead letters pass unchanged."""
        out = Row(*_OUT)
        kept = self._object.get()
        current = None if kept is None else kept[0]
        for row in sorted(rows, key=lambda row: (row.timestamp, row.partition, row.offset)):
            origin = [row[name] for name in (*ORIGIN, *REFUSAL)]
            if row.reason is not None:
                yield out(*origin, None, None)
                continue
            current, rejected = judge(current, row.operation, row.content)
            yield out(*origin, current, rejected)
        if current is None:
            self._object.clear()
        else:
            self._object.update((current,))

    def close(self) -> None:
        """Nothing is open."""


def judged(commands: DataFrame) -> DataFrame:
    """Return the commands with `object`, the object's state afterwards, and `rejected`, the reason for a rejection."""
    by_object = commands.withColumn("id", F.coalesce(F.col(KEY).cast("string"), F.lit(""))).groupBy("id")
    return by_object.transformWithState(
        statefulProcessor=Judge(), outputStructType=_OUT_TYPE, outputMode="Update", timeMode="None"
    )


def build(app: Application) -> None:
    """Declare the source, the check, and the outputs."""
    commands = parse_json(app.stream(COMMANDS), {"operation": FieldType.TEXT, "content": FieldType.TEXT})
    no_key = (F.col(KEY).isNull(), DeadLetterReason.NULL_KEY, "a command needs its object's id as key")
    verdicts = app.query(COMMANDS, judged(refuse(commands, no_key)))
    is_valid = F.col(REJECTED).isNull()
    content = F.when(F.col(OBJECT).isNotNull(), F.to_json(F.struct(F.col(OBJECT).alias("content"))))
    verdicts.store(STORE, where=is_valid, columns={VALUE: content})
    verdicts.topic(VALID, where=is_valid, config=_KEPT)
    verdict = F.struct(F.col(VALUE).cast("string").alias("command"), F.col(REJECTED).alias("reason"))
    verdicts.topic(INVALID, where=~is_valid, columns={VALUE: F.to_json(verdict)}, config=_KEPT)
