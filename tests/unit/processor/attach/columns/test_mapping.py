"""Names and bytes of entries, and what is refused before any state is read."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from processor.attach.cli import named
from processor.attach.columns.json_forms import unique_names
from processor.attach.columns.mapping import EntryMapping, double_bytes
from statehouse.errors import ConfigurationError


def test_a_name_that_comes_again_gets_a_number() -> None:
    assert unique_names(["count", "sum", "count", "count"]) == ["count", "sum", "count_2", "count_3"]
    assert unique_names(["count_2", "count", "count"]) == ["count_2", "count", "count_3"]


def test_doubles_are_eight_bytes() -> None:
    numbers = [1.5, None, -0.0, float("inf")]
    expected = [None if number is None else struct.pack(">d", number) for number in numbers]
    assert double_bytes(pa.array(numbers, pa.float64())).to_pylist() == expected


@pytest.mark.feature("store-says-how")
def test_values_are_named() -> None:
    assert named(["n=count", "big = max > 5", "same=a=b"], "--value") == {"n": "count", "big": "max > 5", "same": "a=b"}


@pytest.mark.parametrize("given", [["count"], ["=count"], ["n="], ["n=a", "n=b"]])
def test_a_value_without_name_or_twice_is_refused(given: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="--value"):
        named(given, "--value")


def test_serdes_that_can_not_be_written_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="key serde 'avro' can't be written here"):
        EntryMapping(key_serde="avro")
    with pytest.raises(ConfigurationError, match="takes one value"):
        EntryMapping(value_serde="long")
    with pytest.raises(ConfigurationError, match="takes one value"):
        EntryMapping(values={"a": "x", "b": "y"}, value_serde="string")
