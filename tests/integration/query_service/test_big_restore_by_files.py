"""200 MB that come by a peer's files, with 1 and 10 records of each key: all are there, and it prints how much faster.

`python -m bench.files` measures; here nothing depends on a time.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from statehouse.contract.assignment import TaskAssignment
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.polling import poll_until

BYTES = 200_000_000
VALUE = 100
KEYS = BYTES // (VALUE + 16)
ASKED = 2_000


@pytest.mark.long
@pytest.mark.feature("store-files-peer")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("records_a_key", [1, 10])
def test_a_big_store_comes_by_files(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, records_a_key: int
) -> None:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        produce_many(fleet, records_a_key)
        first = fleet.node("n1", engine="go")
        by_records_s = restored_within(fleet, first, TaskAssignment("n1"))
        assert restored_by(first) == "log"
        second = fleet.node("n2", engine="go")
        by_files_s = restored_within(fleet, second, TaskAssignment("n1", ("n2",)))
        assert restored_by(second) == "peer n1"
        assert_equal(first, second, records_a_key)
        sys.stdout.write(
            f"\n{BYTES // 1_000_000} MB, {records_a_key} records a key: {by_records_s:.1f} s by records, "
            f"{by_files_s:.1f} s by files, {by_records_s / by_files_s:.1f} x\n"
        )


def value_of(number: int, nth: int) -> str:
    return f"{number * 1_000 + nth:0{VALUE}}"


def produce_many(fleet: Fleet, records_a_key: int) -> None:
    """Write records of each key, in one round after the other, keys in no order."""
    producer = Producer(
        {"bootstrap.servers": fleet.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
    )
    numbers = list(range(KEYS))
    for nth in range(records_a_key):
        random.shuffle(numbers)
        for count, number in enumerate(numbers):
            if count % 1_000 == 0:
                poll_until(lambda: producer.poll(0) >= 0 and len(producer) < 400_000, 60, "the broker to follow")
            producer.produce(fleet.changelog, key=b"%016d" % number, value=value_of(number, nth).encode(), partition=0)
    assert producer.flush(300) == 0


def restored_within(fleet: Fleet, node: ServerProcess, holders: TaskAssignment) -> float:
    node.node()  # it is up
    began = time.monotonic()
    fleet.assign(holders)
    fleet.wait_running([node], 900)
    return time.monotonic() - began


def restored_by(node: ServerProcess) -> str:
    ((store,),) = (task.stores for task in node.node().tasks)
    return str(store.restored_by)


def assert_equal(first: ServerProcess, second: ServerProcess, records_a_key: int) -> None:
    """Assert that both have all keys, with their last values."""
    for node in (first, second):
        count = query_service_pb2.CountRequest(store=STORE, partition=0, exact=True)
        assert node.call(node.query.Count, count, 60).count == KEYS
    for number in random.sample(range(KEYS), ASKED):
        assert second.get(f"{number:016}").value.text == value_of(number, records_a_key - 1)
