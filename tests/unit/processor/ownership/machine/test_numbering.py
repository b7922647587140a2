"""Sub-topology numbers, and declarations that don't fit together."""

from __future__ import annotations

from typing import Any

import pytest

from processor.ownership.declarations import StoreDeclaration
from processor.ownership.machine.numbering import numbered
from statehouse.errors import ConfigurationError


def declared(name: str, query: str = "query", partitions: int = 2, **fields: Any) -> StoreDeclaration:
    return StoreDeclaration(name, query, partitions, fields.pop("topic", f"app-{name}"), **fields)


def test_global_stores_have_no_sub_topology() -> None:
    specs, sub_topologies = numbered([declared("a"), declared("g", is_global=True), declared("z", "other")], {}, {})
    assert {number: sub.query for number, sub in sub_topologies.items()} == {0: "other", 1: "query"}
    assert specs["g"].is_global
    assert specs["a"].sub_topology == 1


def test_ephemeral_stores_have_tasks_of_their_own() -> None:
    specs, _ = numbered([declared("a"), declared("e", partitions=3, ephemeral=True), declared("f", "other")], {}, {})
    assert len({spec.sub_topology for spec in specs.values()}) == 3
    with pytest.raises(ConfigurationError, match="store e is ephemeral and a is not, and both are of query query"):
        numbered([declared("a"), declared("e", ephemeral=True)], {}, {})
    numbered([declared("e", ephemeral=True), declared("f", ephemeral=True), declared("g", is_global=True)], {}, {})


def test_a_topic_is_one_store_s() -> None:
    with pytest.raises(ConfigurationError, match="stores a and b both have the topic t"):
        numbered([declared("a", topic="t"), declared("b", topic="t", is_global=True)], {}, {})


def test_the_topic_of_a_global_store_may_grow() -> None:
    small, _ = numbered([declared("g", is_global=True), declared("a")], {}, {})
    grown, _ = numbered([declared("g", partitions=5, is_global=True), declared("a")], small, {})
    assert grown["g"].partition_count == 5
    with pytest.raises(ConfigurationError, match="fixed for a store's life"):
        numbered([declared("a", partitions=5)], small, {})
    with pytest.raises(ConfigurationError, match="fixed for a store's life"):
        numbered([declared("g", partitions=5)], small, {})  # it was global, and its keys are placed from now on


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_global": True, "ephemeral": True}, "declare it as one of the two"),
        ({"is_global": True, "kind": "session", "retention_ms": 1}, "a global store is a key-value store"),
    ],
)
def test_global_stores_are_key_value_stores_with_a_log(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declared("g", **fields)
