import pytest

from processor.spark.checkpoint import parse_offsets
from statehouse.errors import ConfigurationError

ENTRY = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{"spark.sql.shuffle.partitions":"2"}}
{"scores":{"1":7,"0":3}}
-
{"players":{"0":4}}
5
"""


def test_offsets_of_all_kafka_sources_are_read():
    assert parse_offsets(ENTRY) == {("scores", 0): 3, ("scores", 1): 7, ("players", 0): 4}


def test_another_version_is_refused_with_the_remedy():
    with pytest.raises(ConfigurationError, match="Spark version the project pins"):
        parse_offsets("v2\n{}\n")
