"""What Spark's reader says of each operator's state: whole, and by changes, with each provider."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from processor.attach.checkpoint import AttachedCheckpoint
from processor.attach.columns.mapping import EntryMapping, Rows, key_serde
from processor.attach.columns.state_values import STATE_KEY, STATE_VALUE, as_it_is
from processor.attach.operators import StateChoice, source_of
from processor.attach.reader import StateReader, state_operators
from processor.outputs.frames import set_for_a_while
from processor.rows import KEY, VALUE
from statehouse.errors import ConfigurationError

_STATE: Final = "org.apache.spark.sql.execution.streaming.state"
_ROCKSDB: Final = "spark.sql.streaming.stateStore.rocksdb"
_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PROVIDERS: Final = {
    "changelogs": {},
    "snapshots": {f"{_ROCKSDB}.changelogCheckpointing.enabled": "false"},
    "default": {"spark.sql.streaming.stateStore.providerClass": f"{_STATE}.HDFSBackedStateStoreProvider"},
    "format-2": {_FORMAT: "2"},
}
EVENTS: Final = "user string, country string, amount long, at timestamp"
# Each list is a batch.
BATCHES: Final = [
    [("ann", "FR", 1, 0), ("bob", "DE", 2, 1), ("ann", "FR", 5, 2)],
    [("ann", "IT", 3, 4), ("eve", "FR", 7, 5)],
    [("bob", "DE", 9, 60), ("eve", "FR", 1, 61)],
    [("ann", "FR", 2, 120), ("dan", "DE", 4, 121)],
]
Bytes = dict[bytes, bytes | None]


class Sums(StatefulProcessor):  # type: ignore[misc] # Spark's has no types
    """A value, a map and a list for each user."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "amount long")
        self._countries = handle.getMapState("countries", "country string", "amount long")
        self._amounts = handle.getListState("amounts", "amount long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803, ARG002 - Spark's names
        total = self._total.get()[0] if self._total.exists() else 0
        for frame in rows:
            for country, amount in zip(frame["country"], frame["amount"], strict=True):
                total += int(amount)
                self._countries.updateValue((country,), (total,))
                self._amounts.appendValue((int(amount),))
        self._total.update((total,))
        yield pd.DataFrame({"user": [key[0]], "amount": [total]})

    def close(self) -> None:
        pass


def counted(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    count = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"user": [key[0]], "n": [count]})


def joined(events: DataFrame) -> DataFrame:
    left = events.select("user", "amount", "at").alias("l")
    right = events.select(F.col("user").alias("who"), F.col("at").alias("then")).alias("r")
    return left.join(right, F.expr("user = who AND then BETWEEN at AND at + INTERVAL 10 SECONDS"))


JOBS: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    "aggregate": lambda events: events.groupBy("user").agg(
        F.count("*"), F.avg("amount").alias("mean"), F.max("amount")
    ),
    "aggregate of two keys": lambda events: events.groupBy("user", "country").count(),
    "windows": lambda events: events.groupBy(F.window("at", "30 seconds"), "user").agg(F.sum("amount")),
    "sessions": lambda events: events.groupBy(F.session_window("at", "10 seconds"), "user").count(),
    "deduplication": lambda events: events.dropDuplicates(["user", "country"]),
    "deduplication within watermark": lambda events: events.dropDuplicatesWithinWatermark(["user"]),
    "a function with state": lambda events: events.groupBy("user").applyInPandasWithState(
        counted, "user string, n long", "n long", "update", GroupStateTimeout.NoTimeout
    ),
    "a processor with state": lambda events: events.groupBy("user").transformWithStateInPandas(
        Sums(), "user string, amount long", "Update", "None"
    ),
    "aggregate by a key": lambda events: events.withColumnRenamed("user", "key").groupBy("key").agg(F.max("amount")),
    "join": joined,
    "limit": lambda events: events.limit(100),
}
_APPEND: Final = ("sessions", "join", "limit")


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """Runs a job once, a batch for each list of events; returns its checkpoint."""
    root = tmp_path_factory.mktemp("jobs")
    source = root / "events"
    source.mkdir()
    for number, batch in enumerate(BATCHES):
        lines = [
            json.dumps(
                {"user": user, "country": country, "amount": amount, "at": f"2026-01-01T00:{at // 60:02}:{at % 60:02}Z"}
            )
            for user, country, amount, at in batch
        ]
        file = source / f"{number}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (number, number))  # Spark reads the oldest first
    done: dict[tuple[str, str], str] = {}

    def run(job: str, provider: str) -> str:
        if (job, provider) in done:
            return done[job, provider]
        checkpoint = str(root / provider / job.replace(" ", "-"))
        events = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).json(str(source))
        # A reader may have set the format of what it read.
        conf = {"spark.sql.streaming.noDataMicroBatches.enabled": "false", _FORMAT: "1", **PROVIDERS[provider]}
        with set_for_a_while(spark, conf):
            query = (
                JOBS[job](events.withWatermark("at", "5 seconds"))
                .writeStream.format("noop")
                .outputMode("append" if job in _APPEND else "update")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        done[job, provider] = checkpoint
        return checkpoint

    return run


def reader_of(spark: SparkSession, checkpoint: str, choice: StateChoice, mapping: EntryMapping) -> StateReader:
    source = source_of(state_operators(spark, checkpoint), choice)
    version = AttachedCheckpoint(spark, checkpoint).batch(len(BATCHES) - 1).version
    return StateReader(spark, checkpoint, source, mapping, version)


def collected(frame: DataFrame) -> Bytes:
    return {bytes(row[KEY]): None if row[VALUE] is None else bytes(row[VALUE]) for row in frame.collect()}


def applied(before: Bytes, changes: Bytes) -> Bytes:
    return {key: value for key, value in {**before, **changes}.items() if value is not None}


def check_reads(spark: SparkSession, checkpoint: str, choice: StateChoice, *, has_changes: bool = True) -> list[Bytes]:
    """Every read between two batches leads from the one's state to the other's; returns the states."""
    total = EntryMapping(key="'total'") if "limit" in checkpoint else EntryMapping()
    reader = reader_of(spark, checkpoint, choice, total)
    files = AttachedCheckpoint(spark, checkpoint)
    nothing = spark.createDataFrame([], f"{KEY} binary, {VALUE} binary")
    states = [collected(reader.entries(batch)) for batch in range(len(BATCHES))]
    assert len({json.dumps(sorted(map(str, state.items()))) for state in states}) > 1, "the state never changes"
    assert collected(reader.state(1, nothing)) == states[1]
    for before, last in ((0, 3), (1, 2), (2, 3)):
        rows = [(bytearray(key), bytearray(value or b"")) for key, value in states[before].items()]
        old = spark.createDataFrame(rows, nothing.schema)
        assert applied(states[before], collected(reader.state(last, old))) == states[last]
        if has_changes:
            assert applied(states[before], collected(reader.changes(before + 1, last, None))) == states[last]
            changed = files.changed_partitions(choice.operator_id, choice.state_store, before + 1, last)
            assert applied(states[before], collected(reader.changes(before + 1, last, changed))) == states[last]
    return states


@pytest.mark.feature("changes-batch-where")
def test_an_aggregate_is_read_whole_and_by_changes(spark: SparkSession, ran: Callable[[str, str], str]) -> None:
    checkpoint = ran("aggregate", "changelogs")
    states = check_reads(spark, checkpoint, StateChoice())
    assert states[-1][b"ann"] == b'{"count":4,"avg":2.75,"max":5}'


@pytest.mark.parametrize("provider", ["changelogs", pytest.param("default", marks=pytest.mark.long)])
def test_only_partitions_that_a_batch_has_changed_are_read(
    spark: SparkSession, ran: Callable[[str, str], str], provider: str
) -> None:
    directory = ran("aggregate of two keys", provider)
    checkpoint = AttachedCheckpoint(spark, directory)
    for batch in range(1, len(BATCHES)):
        feed = spark.read.format("statestore").option("readChangeFeed", "true").option("changeStartBatchId", batch)
        rows = feed.option("changeEndBatchId", batch).load(directory).select("partition_id").distinct().collect()
        assert checkpoint.changed_partitions(0, "default", batch, batch) == {row[0] for row in rows}


@pytest.mark.feature("changes-batch-where")
def test_windows_that_are_over_are_deleted(spark: SparkSession, ran: Callable[[str, str], str]) -> None:
    states = check_reads(spark, ran("windows", "changelogs"), StateChoice())
    assert any(states[batch].keys() - states[batch + 1].keys() for batch in range(len(states) - 1)), "no key ever goes"


@pytest.mark.feature("store-says-how")
def test_values_and_keys_are_made_by_sql(spark: SparkSession, ran: Callable[[str, str], str]) -> None:
    checkpoint = ran("aggregate", "changelogs")

    def read(mapping: EntryMapping) -> Bytes:
        return collected(reader_of(spark, checkpoint, StateChoice(), mapping).entries(3))

    assert read(EntryMapping(values={"mean": "sum / count_2", "who": "user"}))[b"ann"] == b'{"mean":2.75,"who":"ann"}'
    assert read(EntryMapping(key="upper(user)", values={"n": "count"}, value_serde="long"))[b"ANN"] == bytes(7) + b"\4"
    assert read(EntryMapping(values={"n": "-count"}, value_serde="long"))[b"ann"] == b"\xff" * 7 + b"\xfc"
    assert read(EntryMapping(values={"m": "max"}, value_serde="string"))[b"bob"] == b"9"
    assert read(EntryMapping(values={"m": "sum"}, value_serde="double"))[b"ann"] == b"\x40\x26" + bytes(6)
    by_length = read(EntryMapping(key="length(user)", values={"n": "count"}))
    assert by_length.keys() == {bytes(7) + b"\3"}, "integers are longs"


@pytest.mark.long
def test_a_state_with_a_column_key(spark: SparkSession, ran: Callable[[str, str], str]) -> None:
    checkpoint = ran("aggregate by a key", "changelogs")
    assert check_reads(spark, checkpoint, StateChoice())[-1][b"ann"] == b'{"max":5}'
    mapping = EntryMapping(key="upper(key)", values={"value": "max", "key": "key"})
    made = collected(reader_of(spark, checkpoint, StateChoice(), mapping).entries(3))
    assert made[b"ANN"] == b'{"value":5,"key":"ann"}'


@pytest.mark.feature("store-says-how")
def test_keys_that_become_one_are_seen(spark: SparkSession, ran: Callable[[str, str], str]) -> None:
    mapping = EntryMapping(key="length(user)")
    reader = reader_of(spark, ran("aggregate", "changelogs"), StateChoice(), mapping)
    with pytest.raises(ConfigurationError, match=r'the keys \{"user":"ann"\} and \{"user":"eve"\} of the state'):
        reader.refuse_clash(3)
    reader_of(spark, ran("aggregate", "changelogs"), StateChoice(), EntryMapping(key="upper(user)")).refuse_clash(3)


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        (EntryMapping(key="name"), "the key has the columns user, the value avg, count, sum, count_2, max"),
        (EntryMapping(values={"n": "total"}), "the value avg, count, sum, count_2, max"),
        (EntryMapping(values={"n": "count +"}), "can't be made"),
    ],
)
def test_what_does_not_fit_the_columns_is_refused(
    spark: SparkSession, ran: Callable[[str, str], str], mapping: EntryMapping, says: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        reader_of(spark, ran("aggregate", "changelogs"), StateChoice(), mapping).entries(3)
    assert says.lower() in str(refused.value).lower()


@pytest.mark.feature("aggregates-deduplication-joins")
@pytest.mark.long
def test_variables_of_a_processor_with_state(spark: SparkSession, ran: Callable[[str, str], str]) -> None:
    checkpoint = ran("a processor with state", "changelogs")
    assert check_reads(spark, checkpoint, StateChoice(variable="total"))[-1][b"ann"] == b'{"amount":11}'
    lists = check_reads(spark, checkpoint, StateChoice(variable="amounts"), has_changes=False)
    assert lists[-1][b"bob"] == b'{"list":[{"amount":2},{"amount":9}]}'
    maps = check_reads(spark, checkpoint, StateChoice(variable="countries"))
    assert maps[-1][b'{"user":"ann","country":"IT"}'] == b'{"amount":9}'


@pytest.mark.feature("isn-t-checkpoint")
def test_what_is_not_a_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no query has a checkpoint in"):
        AttachedCheckpoint(spark, str(tmp_path)).wait_for_a_batch(0)
    with pytest.raises(ConfigurationError, match="can't be read"):
        AttachedCheckpoint(spark, "nowhere://x/y")


def test_a_path_that_sparks_reader_does_not_find_is_refused(
    spark: SparkSession, ran: Callable[[str, str], str], tmp_path: Path
) -> None:
    spaced = tmp_path / "a checkpoint"
    shutil.copytree(ran("aggregate", "changelogs"), spaced)
    with pytest.raises(ConfigurationError, match="name it by a link"):
        AttachedCheckpoint(spark, str(spaced))
    link = tmp_path / "link"
    link.symlink_to(spaced)
    assert AttachedCheckpoint(spark, str(link)).latest_committed() == len(BATCHES) - 1
    check_reads(spark, str(link), StateChoice())


@pytest.mark.feature("isn-t-checkpoint")
def test_a_newer_format_is_refused(spark: SparkSession, ran: Callable[[str, str], str], tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "metadata").write_text(Path(ran("aggregate", "changelogs"), "metadata").read_text())
    (tmp_path / "commits" / "0").write_text("v9\n{}")
    with pytest.raises(ConfigurationError, match=r"'v9'.*newer Spark"):
        AttachedCheckpoint(spark, str(tmp_path)).batch(0)
    (tmp_path / "commits" / "0").unlink()
    with pytest.raises(ConfigurationError, match="committed no batch"):
        AttachedCheckpoint(spark, str(tmp_path)).wait_for_a_batch(0)


@pytest.mark.feature("changes-batch-where")
def test_the_newest_batch_is_found(spark: SparkSession, ran: Callable[[str, str], str]) -> None:
    checkpoint = AttachedCheckpoint(spark, ran("aggregate", "changelogs"))
    assert [checkpoint.newest_after(batch) for batch in (None, 0, 1, 2, 3)] == [3] * 5
    assert checkpoint.newest_after(99) == 3
    assert checkpoint.partitions_of(1) == 2
    assert checkpoint.partitions_of(99) is None


@pytest.mark.feature("aggregates-deduplication-joins")
@pytest.mark.long
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("job", [name for name in JOBS if name != "a processor with state"])
def test_each_operator_with_each_provider(
    spark: SparkSession, ran: Callable[[str, str], str], job: str, provider: str
) -> None:
    checkpoint = ran(job, provider)
    stores = ["left-keyWithIndexToValue", "right-keyWithIndexToValue"] if job == "join" else ["default"]
    for store in stores:
        check_reads(spark, checkpoint, StateChoice(state_store=store), has_changes=provider != "snapshots")


@pytest.mark.long
@pytest.mark.parametrize("provider", ["changelogs", "snapshots", "format-2"])
@pytest.mark.parametrize("variable", ["total", "countries", "amounts"])
def test_each_variable_with_each_provider(
    spark: SparkSession, ran: Callable[[str, str], str], variable: str, provider: str
) -> None:
    checkpoint = ran("a processor with state", provider)
    has_changes = provider != "snapshots" and variable != "amounts"
    check_reads(spark, checkpoint, StateChoice(variable=variable), has_changes=has_changes)


def test_the_serde_of_a_key_fits_its_type(spark: SparkSession) -> None:
    def serde_of(kind: str) -> str:
        rows = spark.createDataFrame([], f"{STATE_KEY} struct<{kind}>, {STATE_VALUE} struct<n: int>")
        return key_serde(Rows(rows, as_it_is(StructType.fromDDL("n int"))), EntryMapping())

    assert serde_of("k: string") == "string"
    assert serde_of("k: int") == "long"
    assert serde_of("k: double") == "double"
    assert serde_of("k: binary") == "bytes"
    assert serde_of("k: date") == "string"
    assert serde_of("k: string, m: int") == "json"
