"""A batch that a crash cut off is written again as it was, though a table has changed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from processor.application import Application
from processor.application.topology import Topology
from processor.operators.aggregators import TopN
from processor.operators.joins import JoinedTable, global_table_aggregate
from processor.operators.json_records import FieldType, parse_json, parse_json_table
from processor.run.processor import Processor
from processor.settings import ProcessorSettings
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import changelog_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import messages, store_of
from tests.support.constants import settings_of
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]

DEADLINE_S = 90.0
STORE, PARTITIONS = "best-sales", 2
COMMITTED, CUT_OFF = 0, 1
PRODUCTS = [next(key for key in map(str, range(99)) if partition_for(key.encode(), PARTITIONS) == p) for p in (0, 1)]


class Sales:
    """An application that keeps a product's best sales, each with the product's name of its time."""

    def __init__(self, bootstrap: str, unique_name: Callable[[str], str], directory: Path) -> None:
        self.bootstrap, self.checkpoint = bootstrap, directory / "checkpoint"
        self.application, self.sales, self.products = (unique_name(name) for name in ("app", "sales", "products"))
        self.changelog = changelog_topic(self.application, STORE)
        create_topic(bootstrap, self.sales)
        create_topic(bootstrap, self.products, config={"cleanup.policy": "compact"})
        self._prices = iter(range(99, 0, -1))
        self._starts = 0

    def build(self, app: Application) -> None:
        sales = parse_json(app.stream(self.sales), {"product": FieldType.TEXT, "price": FieldType.NUMBER})
        products = parse_json_table(app.global_table(self.products), {"name": FieldType.TEXT})
        lookup = JoinedTable(products, "product", {"name": "name"}, "unknown_product", "products")
        best = TopN(9, by="price", fields={"name": "name", "price": "price"})
        app.store(STORE, global_table_aggregate(sales, lookup, best), partitions=PARTITIONS)

    def rename(self, name: str) -> None:
        rows = [(product.encode(), json.dumps({"name": name}).encode()) for product in PRODUCTS]
        produce(self.bootstrap, self.products, rows)

    def sell(self) -> None:
        """Sell one of each product, for less than before."""
        sold = [json.dumps({"product": product, "price": next(self._prices)}) for product in PRODUCTS]
        produce(self.bootstrap, self.sales, [(None, sale.encode()) for sale in sold])

    @contextmanager
    def running(self) -> Iterator[None]:
        # Workers live as long as the session. A setting of the sink's that differs lets them take up its partitions
        # anew, as a new driver's do: what they remember of what is committed would have ended with them.
        self._starts += 1
        settings = settings_of(
            ProcessorSettings,
            bootstrap=self.bootstrap,
            checkpoint_dir=str(self.checkpoint),
            write_timeout_ms=60_000 + self._starts,
        )
        processor = Processor(Topology(self.application, self.build), settings)
        try:
            processor.start()
            yield
        finally:
            processor.stop()

    def wait_for(self, *names: str) -> None:
        """Wait until each product's sales have these names, the best first."""
        expected = {product: list(names) for product in PRODUCTS}
        poll_until(lambda: self.names() == expected, DEADLINE_S, f"{names}")

    def records(self) -> dict[int, list[tuple[bytes, bytes, int]]]:
        """Return each partition's keys, values and timestamps in the changelog."""
        found: dict[int, list[tuple[bytes, bytes, int]]] = {COMMITTED: [], CUT_OFF: []}
        for each in messages(self.bootstrap, self.changelog):
            found[each.partition()].append((each.key(), each.value(), each.timestamp()[1]))
        return found

    def names(self) -> dict[str, list[str]]:
        stored = store_of(messages(self.bootstrap, self.changelog))
        return {key.decode(): [sale["name"] for sale in json.loads(value)] for key, value in stored.items()}

    def crash_between_the_commits_of_two_partitions(self) -> None:
        """Leave what such a crash leaves: a batch that Spark has planned and not committed, and one marker behind."""
        directory = self.checkpoint / self.application / STORE
        # The newest that was planned: a stop may come before Spark has committed it.
        batch_id = max(int(path.name) for path in (directory / "offsets").iterdir() if path.name.isdigit())
        for path in (directory / "commits").glob(f"*{batch_id}*"):
            path.unlink()
        query_id = json.loads((directory / "metadata").read_text())["id"]
        group = {"bootstrap.servers": self.bootstrap, "group.id": f"{self.application}-{query_id}-sink"}
        marker = Consumer(group)
        marker.commit(offsets=[TopicPartition(self.changelog, CUT_OFF, batch_id)], asynchronous=False)
        marker.close()


@pytest.mark.feature("batch-runs-again")
def test_a_replayed_batch_gives_the_same_records_though_a_global_table_was_updated_meanwhile(
    spark: SparkSession, kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
):
    shop = Sales(kafka.bootstrap, unique_name, tmp_path)
    shop.rename("old")
    shop.sell()
    with shop.running():
        shop.wait_for("old")
        shop.sell()
        shop.wait_for("old", "old")
    before = shop.records()
    shop.crash_between_the_commits_of_two_partitions()
    shop.rename("new")
    with shop.running():
        shop.sell()
        shop.wait_for("old", "old", "new")

    after = shop.records()
    replayed = {COMMITTED: before[COMMITTED], CUT_OFF: [*before[CUT_OFF], before[CUT_OFF][-1]]}
    assert {partition: records[:-1] for partition, records in after.items()} == replayed
