"""librdkafka's partitioner and the rule give each key the same partition."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.partitioning import partition_for
from statehouse.kafka import partitioner as module
from statehouse.kafka.partitioner import partitioner

COMPILED = partitioner()


def test_the_wheels_have_it() -> None:
    assert COMPILED is not partition_for


@given(st.binary(max_size=300), st.integers(1, 2**31 - 1))
def test_both_agree(key: bytes, partition_count: int) -> None:
    assert COMPILED(key, partition_count) == partition_for(key, partition_count)


def test_a_topic_has_partitions() -> None:
    with pytest.raises(ValueError, match="partition_count is 0"):
        COMPILED(b"k", 0)


@pytest.mark.parametrize("found", [lambda _key, _count: 0, AttributeError("no such name"), OSError("no such file")])
def test_one_that_is_missing_or_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    def librdkafkas() -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(module, "_librdkafkas", librdkafkas)
    assert partitioner() is partition_for
