"""The sink's task, in Java, on generated rows: it places, caches and judges them as Python's own modules do."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE
from processor.sink.batch import described
from processor.sink.partitions import placed
from processor.sink.protocol import OutputTopic, SinkTarget
from processor.sink.record_cache import last_of_each_key
from processor.sink.store_values import StoreValues
from processor.sink.task_rows import OUTPUT, RECORD_COLUMNS, SINK_PARTITION, SUFFIX, TIMESTAMP_MS
from processor.sink.value_check import with_unreadable_refused
from statehouse.contract.batch_cuts import batch_in
from statehouse.contract.partitioning import CONFORMANCE_VECTORS
from statehouse.local.kafka import EmbeddedKafka
from statehouse.serdes.json_documents import read_json
from tests.integration.processor.support import headers, messages
from tests.support.json_cases import JSON_CASES
from tests.support.kafka import create_topic
from tests.support.moments import HEADER_VECTORS
from tests.support.settings import SINK_LIMITS
from tests.support.task_rows import task_classes, type_of, write_rows

ROW_BYTES: Final = 40
"""What a cached row counts beside its key and value."""
CACHED: Final = (0, 1)
SEEDS: Final = [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 12))]


@pytest.fixture
def target(kafka: EmbeddedKafka, unique_name: Callable[[str], str]) -> SinkTarget:
    application = unique_name("app")
    outputs = (
        OutputTopic("documents", f"{application}-documents", 3, record_cache=True, values=StoreValues("d", "json")),
        OutputTopic("bytes", f"{application}-bytes", 3, record_cache=True, values=StoreValues("b", "bytes")),
        OutputTopic("topic", f"{application}-topic", 5),
    )
    for each in outputs:
        create_topic(kafka.bootstrap, each.topic, partitions=each.partition_count, config={"retention.ms": "-1"})
    create_topic(kafka.bootstrap, f"{application}-dead", partitions=2, config={"retention.ms": "-1"})
    return SinkTarget(
        kafka.bootstrap, application, "query", outputs, f"{application}-dead", 2, uuid.uuid4().hex, **SINK_LIMITS
    )


def generated(seed: int, *, has_offsets: bool) -> list[dict[str, Any]]:
    """Rows of few keys, some refused, some that their store can't read, some that delete, some without a key."""
    chosen = random.Random(seed)
    keys = [key for key, _ in CONFORMANCE_VECTORS] + [b"%d" % number for number in range(8)]
    rows: list[dict[str, Any]] = []
    for number in range(chosen.randrange(1, 150)):
        output = chosen.randrange(3)
        row = {
            OUTPUT: output,
            KEY: None if output == 2 and chosen.random() < 0.2 else chosen.choice(keys),
            SUFFIX: chosen.choice([b"", b"", b"\x00" * 12]),
            VALUE: chosen.choice([b"%d" % number, b'{"n": %d}' % number, None, b"\xff%d" % number]),
            TIMESTAMP_MS: chosen.choice([None, 1, 2, 3, 1_000_000]),
            TOPIC: "source",
            PARTITION: chosen.choice([None, 0, 7]),
            OFFSET: number if has_offsets else None,
        }
        if chosen.random() < 0.1:
            row |= {REASON: "not_json", DETAIL: "why"}
        rows.append(row)
    return rows


def by_python(target: SinkTarget, rows: list[dict[str, Any]]) -> pa.Table:
    """Return what Python's modules make of rows: placed, and with those that the store can't read refused."""
    none = dict.fromkeys(RECORD_COLUMNS)
    table = pa.Table.from_pylist([none | row for row in rows], type_of(*RECORD_COLUMNS))
    judged = with_unreadable_refused(table, [each.values for each in target.outputs])
    return placed(judged, [each.partition_count for each in target.outputs])


def of_key(found: list[tuple[Any, ...]]) -> dict[Any, list[Any]]:
    """Return values in order, by what is before them."""
    grouped = defaultdict(list)
    for *key, value in found:
        grouped[tuple(key)].append(value)
    return dict(grouped)


def written(target: SinkTarget, place: int) -> list[Message]:
    return messages(str(target.brokers), target.outputs[place].topic)


@pytest.mark.feature("one-pool-stores")
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_placed_and_cached_as_python_does(
    spark: SparkSession, target: SinkTarget, seed: int, tasks: int
) -> None:
    rows = generated(seed, has_offsets=seed % 2 == 0)
    report = write_rows(spark, target, 0, rows, tasks=tasks)

    made = by_python(target, rows)
    kept = last_of_each_key(made, CACHED).to_pylist()
    for place, output in enumerate(target.outputs):
        found = [(each.partition(), each.key(), each.value()) for each in written(target, place)]
        expected = [
            (row[SINK_PARTITION], row[KEY], row[VALUE]) for row in kept if row[OUTPUT] == place and row[REASON] is None
        ]
        assert of_key(found) == of_key(expected)
        counts = report.counts
        assert counts[output.name, "changelog"] + counts[output.name, "tombstone"] == len(expected)
        assert counts[output.name, "bytes"] == sum(len(row[1] or b"") + len(row[2] or b"") for row in expected)
        ends = {partition: offset for (topic, partition), offset in report.ends.items() if topic == output.topic}
        last = {each.partition(): int(each.offset() or 0) + 1 for each in written(target, place)}
        assert ends == last
    refused = [row for row in kept if row[REASON] is not None]
    places = [(row[TOPIC], row[PARTITION], row[OFFSET]) for row in refused]
    letters = len({place for place in places if None not in place}) + sum(None in place for place in places)
    found_letters = messages(str(target.brokers), target.dead_letters_topic)
    assert len(found_letters) == letters
    reasons = Counter(headers(each)["reason"] for each in found_letters)
    assert {reason: report.counts["", reason] for reason in reasons} == reasons


@pytest.mark.feature("one-pool-stores")
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_its_size_the_last_row_of_each_key_is_written_last(
    spark: SparkSession, target: SinkTarget, seed: int
) -> None:
    cache = random.Random(seed).choice([0, 50, 100, 300, 1_000, 3_000])
    rows = generated(100 + seed, has_offsets=seed % 2 == 0)
    report = write_rows(spark, target, 0, rows, cache_bytes=cache)
    made = by_python(target, rows)
    last = {
        (row[OUTPUT], row[KEY]): row[VALUE] for row in last_of_each_key(made, CACHED).to_pylist() if not row[REASON]
    }
    counts = Counter((row[OUTPUT]) for row in made.to_pylist() if not row[REASON])
    for place in CACHED:
        found = written(target, place)
        assert {each.key(): each.value() for each in found} == {
            key: value for (output, key), value in last.items() if output == place
        }
        name = target.outputs[place].name
        assert len(found) == counts[place] - report.counts[name, "saved"], "a row is written, or saved"
        assert report.counts[name, "early"] <= len(found)
    sizes = [ROW_BYTES + len(row[KEY]) + len(row[VALUE] or b"") for row in made.to_pylist() if row[OUTPUT] in CACHED]
    if sum(sizes) <= cache:
        assert not any(kind == "early" for (_, kind) in +report.counts)


@pytest.mark.feature("exactly-once-batch")
def test_tasks_that_are_grouped_anew_write_every_key_once(spark: SparkSession, target: SinkTarget) -> None:
    """Spark groups partitions anew after a restart. What a batch has written belongs to its sink partitions."""
    rows = [{OUTPUT: output, KEY: b"%d" % key, VALUE: b"1"} for output in range(3) for key in range(60)]
    places = [row[SINK_PARTITION] for row in by_python(target, rows).to_pylist()]
    of_first_task = [row for row, place in zip(rows, places, strict=True) if place % 2 == 0]
    for batch_id, tasks in enumerate((3, 5, 1)):
        write_rows(spark, target, batch_id, of_first_task, tasks=2)  # and the driver is killed
        report = write_rows(spark, target, batch_id, rows, tasks=tasks)
        assert report.counts["", "skipped"] == len({place for place in places if place % 2 == 0})
        for place in range(3):
            found = Counter(each.key() for each in written(target, place))
            assert found == Counter({b"%d" % key: batch_id + 1 for key in range(60)})


@pytest.mark.parametrize(("batch_id", "value"), HEADER_VECTORS)
def test_the_header_s_value_is_the_one_that_is_read(spark: SparkSession, batch_id: int, value: str) -> None:
    assert task_classes(spark).BatchHeader.value(batch_id).hex() == value


@pytest.mark.feature("exactly-once-batch")
def test_every_record_of_a_store_names_its_batch_and_no_record_of_a_topic_does(
    spark: SparkSession, target: SinkTarget
) -> None:
    """Also a tombstone's, and also what a batch writes that runs again in part."""
    rows = [{OUTPUT: output, KEY: b"%d" % key, VALUE: b"1"} for output in range(3) for key in range(12)]
    rows += [row | {VALUE: None} for row in rows[::2]]
    first = [row for row, place in zip(rows, by_python(target, rows).to_pylist(), strict=True) if place[SINK_PARTITION]]
    for batch_id in (0, 5, 300):
        write_rows(spark, target, batch_id, first)  # and the driver is killed
        write_rows(spark, target, batch_id, rows, tasks=2)
    for place in CACHED:
        found = [(batch_in(each.headers()), each.key(), each.value()) for each in written(target, place)]
        assert Counter(batch_id for batch_id, _, _ in found) == {0: 12, 5: 12, 300: 12}
        for batch_id in (0, 5, 300):
            of_this = {key: value for named, key, value in found if named == batch_id}
            assert of_this == {b"%d" % key: b"1" if key % 2 else None for key in range(12)}
    assert all(each.headers() is None for each in written(target, 2))


def test_of_a_record_the_first_refusal_makes_a_dead_letter(spark: SparkSession, target: SinkTarget) -> None:
    """Spark makes a row for each sliding window, and each output may refuse a record."""

    def refused(place: tuple[str | None, int | None, int | None], reason: str | None) -> dict[str, Any]:
        of_place = dict(zip((TOPIC, PARTITION, OFFSET), place, strict=True))
        return {OUTPUT: 2, KEY: b"k", VALUE: reason and reason.encode(), REASON: reason, **of_place}

    rows = [refused(("orders", 3, 812), "late") for _ in range(12)]
    rows += [refused(("orders", 3, 812), "raised"), refused(("orders", 3, 812), None)]
    rows += [refused(place, "other") for place in (("a", 0, 0), ("b", 0, 0), ("a", 1, 0), ("a", 0, 1))]
    rows += [refused((None, None, None), "of_none")] * 2
    report = write_rows(spark, target, 0, rows)
    letters = messages(str(target.brokers), target.dead_letters_topic)
    assert Counter(each.value() for each in letters) == {b"late": 1, b"other": 4, b"of_none": 2}
    assert report.unread == 5, "no such topic is there to read them again"
    assert report.counts["", "late"] == 1


@pytest.mark.parametrize("case", JSON_CASES, ids=lambda case: case.name)
def test_json_is_judged_as_by_every_other_reader(spark: SparkSession, case: Any) -> None:
    assert task_classes(spark).Values.isReadable("json", case.data) is not bool(case.refused)


_NEAR_JSON = st.lists(
    st.sampled_from(
        [
            *'{}[]:,"\\/-+.eE0123456789 \t\n\r',
            *("true", "null", "NaN", "Infinity", "1e309", '"a":', "[" * 31, "]" * 31),
            *("\\u", "d83d", "\\ude00", "\x00", "\x1f", "\ufeff", "é", "😀"),
        ]
    ),
    max_size=12,
).map("".join)
_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40) | _NEAR_JSON.map(str.encode), max_size=40), st.lists(_DOCUMENTS, max_size=5))
def test_whatever_the_bytes_java_and_python_judge_alike(data: list[bytes], documents: list[Any]) -> None:
    def python(each: bytes) -> bool:
        try:
            read_json(each)
        except ValueError:
            return False
        return True

    values = task_classes(SparkSession.active()).Values
    made = (json.dumps(each, ensure_ascii=index % 2 == 0).encode() for index, each in enumerate(documents))
    for each in chain(data, made):
        assert values.isReadable("json", each) is python(each), each


@pytest.mark.parametrize(
    ("serde", "value", "is_readable"),
    [
        ("string", "Zoë".encode(), True),
        ("string", b"\xff", False),
        ("string", b"\xed\xa0\x80", False),
        ("long", b"12345678", True),
        ("long", b"5", False),
        ("double", b"", False),
        ("bytes", b"\xff", True),
        ("avro", b"\xff", True),
        ("", b"NaN", True),
        ("json", None, True),
    ],
)
def test_each_serde_judges_its_values(
    spark: SparkSession, serde: str, value: bytes | None, *, is_readable: bool
) -> None:
    assert task_classes(spark).Values.isReadable(serde, value) is is_readable


class Clock:
    """Milliseconds, as a test has them."""

    def __init__(self) -> None:
        self.now = 0

    def getAsLong(self) -> int:  # noqa: N802 - Java's name
        return self.now

    class Java:
        implements = ("java.util.function.LongSupplier",)


def test_writers_are_kept_while_they_are_used_and_not_for_ever(spark: SparkSession, target: SinkTarget) -> None:
    """Each has a thread and connections."""
    clock = Clock()
    writers = task_classes(spark).Writers(2, 10, clock)
    read = task_classes(spark).Target.of(described(target))
    taken = [writers.take(read, partition) for partition in range(3)]
    again = writers.take(read, 0)
    assert not again.equals(taken[0]), "nobody else has the one that is in use"
    for each in taken[:2]:
        writers.giveBack(each)
    assert writers.take(read, 0).equals(taken[0])
    for each in taken:
        writers.giveBack(each)
    assert writers.size() == 2, "the one unused for longest goes"
    clock.now = 11
    writers.giveBack(again)
    assert writers.size() == 1, "nobody has used the others for long"
