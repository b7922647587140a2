"""A topology with a bug refuses records; it is mended, and a replay of its dead letters leaves the right state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.application.topology import Topology
from processor.operators.aggregators import Reduce
from processor.operators.fold import aggregate
from processor.operators.json_records import FieldType, parse_json
from processor.operators.refusals import refuse
from processor.run.processor import Processor
from processor.settings import ProcessorSettings
from statehouse.cli.exits import ExitCode
from statehouse.contract.topology import changelog_topic, commits_topic, dead_letters_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import commits, messages, store_of
from tests.support.constants import settings_of
from tests.support.kafka import create_topic
from tests.support.statehouse import Ran, statehouse

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

STORE = "totals"


def first(row: Any) -> Any:
    return {"orders": 1, "sum": row["amount"]}


def added(state: Any, row: Any) -> Any:
    return {"orders": state["orders"] + 1, "sum": state["sum"] + row["amount"]}


class Orders:
    """An application that adds orders up, and takes none above ten if it has the bug."""

    def __init__(self, bootstrap: str, name: str, directory: Path) -> None:
        self.bootstrap, self.name, self.topic = bootstrap, name, f"{name}-orders"
        self._directory = directory
        self._settings = settings_of(
            ProcessorSettings, bootstrap=bootstrap, checkpoint_dir=str(directory / "checkpoint")
        )
        create_topic(bootstrap, self.topic, partitions=2)

    def send(self, *orders: tuple[str, int]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"})
        for key, amount in orders:
            producer.produce(self.topic, key=key, value=json.dumps({"amount": amount}), headers=[("from", b"shop")])
        assert producer.flush(30) == 0

    def run_until(self, expected: dict[str, Any], reasons: dict[str, int], *, has_bug: bool, refused: int) -> None:
        """Run the processor until it has published a store, dead letters, and their numbers by reason."""

        def build(application: Application) -> None:
            orders: DataFrame = parse_json(application.stream(self.topic), {"amount": FieldType.INTEGER})
            if has_bug:
                orders = refuse(orders, (F.col("amount") > 10, "too_much", "more than ten"))
            # As people do who don't know better: a dead letter's row has another value than its record.
            orders = orders.withColumn("value", F.lit("lost").cast("binary"))
            application.store(STORE, aggregate(orders, Reduce(added, first=first)))

        processor = Processor(Topology(self.name, build), self._settings)
        processor.start()
        try:
            processor.wait(
                lambda: self.store() == expected and self._refused() == refused and self._reasons() == reasons
            )
        finally:
            processor.stop()

    def store(self) -> dict[str, Any]:
        found = store_of(messages(self.bootstrap, changelog_topic(self.name, STORE)))
        return {key.decode(): json.loads(value) for key, value in found.items()}

    def _refused(self) -> int:
        return len(messages(self.bootstrap, dead_letters_topic(self.name)))

    def _reasons(self) -> dict[str, int] | None:
        """Return what the newest report says of this process' dead letters."""
        newest = list(commits(self.bootstrap, commits_topic(self.name)))[-1:]
        return dict(newest[0].figures.dead_letters_by_reason) if newest and newest[0].HasField("figures") else None

    def command(self, *words: str) -> Ran:
        """Run the command on its own: the processor here logs to where a test's output goes."""
        where = ("--bootstrap", self.bootstrap, "--application-id", self.name)
        return statehouse(self._directory, "dead-letters", *where, *words)


@pytest.mark.feature("dead-letters-replayed")
@pytest.mark.feature("dead-letters-whole")
@pytest.mark.feature("dead-letters-by-reason")
def test_a_replay_after_the_topology_is_mended_leaves_the_right_state(
    spark: SparkSession, kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    del spark  # the processor takes the session that there is
    orders = Orders(kafka.bootstrap, unique_name("app"), tmp_path)
    orders.send(("ann", 3), ("ann", 30), ("bob", 5), ("bob", 50), ("cid", 70))
    with_bug = {"ann": {"orders": 1, "sum": 3}, "bob": {"orders": 1, "sum": 5}}
    orders.run_until(with_bug, {"too_much": 3}, has_bug=True, refused=3)
    letters = json.loads(orders.command("-o", "json").out)
    assert {(each["key"], each["value"], each["query"], each["reason"]) for each in letters} == {
        (key, f'{{"amount": {amount}}}', STORE, "too_much") for key, amount in (("ann", 30), ("bob", 50), ("cid", 70))
    }
    assert all(each["original"] and each["headers"] == [{"name": "from", "value": "shop"}] for each in letters)
    done = orders.command("--replay")
    assert done.out.split() == ["TOPIC", "REPLAYED", orders.topic, "3"], done.err
    mended = {
        "ann": {"orders": 2, "sum": 33},
        "bob": {"orders": 2, "sum": 55},
        "cid": {"orders": 1, "sum": 70},
    }
    orders.run_until(mended, {}, has_bug=False, refused=6)  # three of these records note the replay

    again = orders.command("--replay")
    assert again.code == ExitCode.USAGE
    assert "3 dead letters of these were replayed before. Replay again?" in again.err
    assert json.loads(orders.command("--replay", "--no", "-o", "json").out)["replayed"] == {}
    assert orders.store() == mended
