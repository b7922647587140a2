"""The example's topology on real Spark: a histogram for each path and minute, under the keys of a window store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from response_times.histograms import BUCKETS
from response_times.topology import KIND, REQUESTS, STORE, application_id, build

from processor.application import Application
from processor.testing import Record, TopologyTest
from statehouse.contract.topology import WINDOW

pytestmark = pytest.mark.timeout(240)
MINUTE_MS = 60_000


def request(path: str, ms: float, at_ms: int) -> Record:
    return Record(path, json.dumps({"ms": ms}), at_ms)


def histogram(**buckets: int) -> list[int]:
    return [buckets.get(f"b{bucket}", 0) for bucket in range(BUCKETS)]


@pytest.mark.feature("custom-kinds-layouts")
def test_each_path_and_minute_has_a_histogram(spark: SparkSession, tmp_path: Path) -> None:
    kinds: list[tuple[str, str]] = []

    def build_and_look(app: Application) -> None:
        build(app)
        kinds.extend((store.declaration.kind, store.declaration.built_on) for store in app.stores if store.declaration)

    topology = TopologyTest(application_id, build_and_look, spark, tmp_path)
    assert kinds == [(KIND, WINDOW)]
    topology.pipe(
        REQUESTS,
        request("/home", 0.5, 0),
        request("/home", 9, 1),
        request("/home", 15.9, 59_999),
        request("/home", 16, MINUTE_MS),
        request("/cart", 1e7, 2),
        request("/cart", -1, 2),
        Record("/cart", "no request", 3),
    )
    assert topology.run().store(STORE) == {
        ("/home", 0): histogram(b0=1, b4=2),
        ("/home", MINUTE_MS): histogram(b5=1),
        ("/cart", 0): histogram(**{f"b{BUCKETS - 1}": 1}),
    }
