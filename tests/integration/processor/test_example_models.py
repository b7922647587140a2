"""Examples on events that try them: late, doubled, deleted, null, out of order, malformed; equal to plain Python.

Where a batch ends may change three things, and the models know the batches: which payments come too late for a window,
and, for timestamps that go back, which of a key's rows the sums of a table and a join count. It changes nothing else.
So the same events are run in one batch and in several.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.features import topology as features
from examples.fraud import topology as fraud
from examples.inventory import topology as inventory
from processor.testing import TopologyTest
from tests.integration.processor.models import as_bytes, in_batches, refused_of
from tests.integration.processor.models import features as features_model
from tests.integration.processor.models import fraud as fraud_model
from tests.integration.processor.models import inventory as inventory_model

pytestmark = pytest.mark.timeout(1200)

SEED = 20261128


def sizes(batches: int) -> list[Any]:
    """Return how many events there are, and in how many batches; few ones in so many as take seconds."""
    given = [(2_000, batches), (2_000, 1), (100_000, 8)]
    return [
        pytest.param(
            events,
            count,
            id=f"{events} events, {count} batches, seed {SEED}",
            marks=[] if count == batches else pytest.mark.long,
        )
        for events, count in given
    ]


@pytest.mark.feature("examples-equal-models")
@pytest.mark.parametrize(("events", "batches"), sizes(4))
def test_windows_of_cards(spark: SparkSession, tmp_path: Path, events: int, batches: int):
    given = list(in_batches(fraud_model.made(events, SEED), batches, random.Random(SEED)))
    topology = TopologyTest(fraud.application_id, fraud.build, spark, tmp_path)
    for batch in given:
        topology.pipe(fraud.PAYMENTS, *batch).run()
    windows, refused = fraud_model.expected(given)
    assert topology.store(fraud.STORE) == windows
    assert refused_of(topology.dead_letters) == as_bytes(refused)
    assert {window["suspicious"] for window in windows.values()} == {True, False}
    in_time, _ = fraud_model.expected([[record for batch in given for record in batch]])
    assert (in_time == windows) == (batches == 1), "some payments come too late, unless all are in one batch"


@pytest.mark.feature("examples-equal-models")
@pytest.mark.parametrize(("events", "batches"), sizes(2))
def test_items_and_their_sums(spark: SparkSession, tmp_path: Path, events: int, batches: int):
    given = list(in_batches(inventory_model.made(events, SEED), batches, random.Random(SEED)))
    topology = TopologyTest(inventory.application_id, inventory.build, spark, tmp_path)
    for batch in given:
        topology.pipe(inventory.CHANGES, *batch).run()
    items, sums, refused = inventory_model.expected(given)
    assert topology.store(inventory.ITEMS) == items
    assert topology.store(inventory.STOCK) == sums
    assert refused_of(topology.dead_letters) == as_bytes(refused)
    assert len(items) > inventory_model.ITEMS // 4


@pytest.mark.feature("examples-equal-models")
@pytest.mark.feature("newest-by")
@pytest.mark.parametrize(("events", "batches"), sizes(2))
def test_features_of_users(spark: SparkSession, tmp_path: Path, events: int, batches: int):
    given = list(in_batches(features_model.made(events, SEED), batches, random.Random(SEED)))
    topology = TopologyTest(features.application_id, features.build, spark, tmp_path)
    for batch in given:
        for topic in (features.EVENTS, features.PROFILES):
            topology.pipe(topic, *(record for each, record in batch if each == topic))
        topology.run()
    known, online, refused = features_model.expected(given)
    assert topology.store(features.FEATURES) == known
    assert topology.store(features.ONLINE) == online
    assert refused_of(topology.dead_letters) == as_bytes(refused)
    assert 0 < len(online) < len(known), "some have logged out"
