"""The same file holds the load generator to it (bench/loadgen/data_test.go)."""

from __future__ import annotations

import json
from pathlib import Path

from bench.data import VALUE_LENGTH, key_of, value_of
from statehouse.contract.partitioning import CONFORMANCE_VECTORS, partition_for

_DATA = json.loads((Path(__file__).parents[3] / "bench" / "loadgen" / "testdata" / "data.json").read_text())


def test_data_is_what_the_load_generator_expects():
    for entry in _DATA["entries"]:
        key = key_of(entry["number"])
        assert key == entry["key"]
        assert value_of(entry["number"], entry["version"]) == entry["value"]
        assert len(entry["value"]) == VALUE_LENGTH
        assert partition_for(key.encode(), 64) == entry["partition_of_64"]


def test_the_load_generator_places_keys_as_kafka_does():
    hashes = [(bytes.fromhex(entry["data"]), entry["murmur2"]) for entry in _DATA["hashes"]]
    assert hashes == list(CONFORMANCE_VECTORS)
