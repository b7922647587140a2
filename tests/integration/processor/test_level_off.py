"""Simulated days of a join over three days: what is kept on disk stops growing once its time has come."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import structlog

from examples.window_join.topology import ORDERS, PAID, PAYMENTS, application_id
from statehouse.client import Client
from statehouse.contract.topology import changelog_topic
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.samples import Sample, create_topics, send
from tests.integration.processor.support import ProcessorProcess, messages
from tests.support.fleet import Servers
from tests.support.folder_size import size_of
from tests.support.kafka import alter_topic
from tests.support.polling import poll_until

log = structlog.get_logger(__name__)

CHANGELOGS = [changelog_topic(application_id, name) for name in (ORDERS, PAYMENTS)]
BEGAN_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAYS, STEPS_A_DAY, ORDERS_A_STEP = 13, 4, 150
STEP_S = 120.0
# Six hours take some seconds here. Brokers and Spark count by their clock and in batches, so that what they keep for
# seven days, a minute or a hundred batches must take as much less: else they would keep all that there is.
SEVEN_DAYS = {"retention.ms": "30000", "segment.ms": "5000"}
CHECKPOINT = {"minBatchesToRetain": "8", "stateStore.maintenanceInterval": "5s"}
# How many days' growth there may be in each: without an end of it there would be as many as there were days. A node
# keeps 6 days and an hour, in segments of half as long that it drops as a whole: 9 days and the logs. A changelog has
# what was written within the 30 s, four days at most. The checkpoint has the three days of the join's state in two
# snapshots, and the changes since.
DAYS_MAX = {"node": 10, "changelog": 7, "checkpoint": 8}
NOTE_BYTES, METHOD_BYTES = 6_000, 400


class Days:
    """An application that lives through days, and what it has on disk."""

    def __init__(self, broker: EmbeddedKafka, processor: ProcessorProcess, client: Client, at: Path) -> None:
        self._broker, self._processor, self._client = broker, processor, client
        self._directories = {
            "node": [at / "n1"],
            "changelog": [path for name in CHANGELOGS for path in (at / "kafka").rglob(f"{name}-0")],
            "checkpoint": [processor.checkpoint],
        }
        self._rng = random.Random(1)
        self._orders = 0

    def pass_one(self, number: int) -> dict[str, int]:
        """Let a day pass; return the sizes after it."""
        for step in range(STEPS_A_DAY):
            self._step(BEGAN_MS + (number * STEPS_A_DAY + step) * 24 * HOUR_MS // STEPS_A_DAY)
        sizes = {name: sum(map(size_of, at)) for name, at in self._directories.items()}
        log.info("a day has passed", day=number, **{name: f"{size // 1024} KiB" for name, size in sizes.items()})
        return sizes

    def _step(self, at_ms: int) -> None:
        names = [f"order-{self._orders + nth}" for nth in range(ORDERS_A_STEP)]
        self._orders += ORDERS_A_STEP
        orders = [Sample(ORDERS, name, self._value(amount=1.5), at_ms) for name in names]
        paid_ms = at_ms + HOUR_MS
        payments = [Sample(PAYMENTS, name, self._value(method=self._text(METHOD_BYTES)), paid_ms) for name in names]
        send(self._broker.bootstrap, [*orders, *payments])

        def is_done() -> bool:
            assert self._processor.is_running, self._processor.log_tail()
            is_served = all(self._is_served(store, names[-1]) for store in (ORDERS, PAYMENTS))
            return is_served and len(messages(self._broker.bootstrap, PAID)) >= self._orders

        poll_until(is_done, STEP_S, "the orders to be served and paired")

    def _value(self, **fields: object) -> str:
        return json.dumps({**fields, "note": self._text(NOTE_BYTES)})

    def _text(self, size: int) -> str:
        """Return what compression makes little of."""
        return self._rng.randbytes(size // 2).hex()

    def _is_served(self, store: str, name: str) -> bool:
        try:
            return any(True for _ in self._client.fetch_windows(store, name))
        except LookupFailure:
            return False


@pytest.mark.feature("where-spark-state")
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_disk_changelog_and_checkpoint_level_off(tmp_path: Path):
    checked_often = {"log.retention.check.interval.ms": "1000", "log.segment.delete.delay.ms": "100"}
    with EmbeddedKafka(data_dir=tmp_path / "kafka", config=checked_often) as broker:
        create_topics(broker.bootstrap, {name: {} for name in (ORDERS, PAYMENTS, PAID)}, 1)
        conf = [
            text for name, value in CHECKPOINT.items() for text in ("--conf", f"spark.sql.streaming.{name}={value}")
        ]
        processor = ProcessorProcess("examples.window_join.topology", broker.bootstrap, tmp_path, *conf)
        with Servers(broker.bootstrap, application_id, tmp_path) as servers:
            servers.node("n1")
            processor.start()
            try:
                processor.wait_for("processor started")
                for changelog in CHANGELOGS:
                    alter_topic(broker.bootstrap, changelog, SEVEN_DAYS)
                with Client(servers.router().target) as client:
                    days = Days(broker, processor, client, tmp_path)
                    figures = [days.pass_one(number) for number in range(DAYS)]
            finally:
                processor.kill()
    for name, days_max in DAYS_MAX.items():
        sizes = [figure[name] for figure in figures]
        assert max(sizes) <= days_max * sizes[0], f"{name} goes on growing: {sizes}"
