"""The sketch store's answers against counts that are known."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from word_sketch.sketches import RELATIVE_ERROR, estimate_of, new_sketch, read_sketch
from word_sketch.store import CountMinSketchStore

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.rocksdb_engine import RocksDBEngine
from statehouse.contract.topology import StoreSpec
from statehouse.errors import LookupFailure, Reason

SPEC = StoreSpec("sketches", "t", 1, 0, "count-min-sketch", value_serde="bytes")
AT = Checkpoint("t", "id", 1, 1)


def counted(seed: int, words: int = 20_000, vocabulary: int = 2_000) -> Counter[str]:
    """Some words often, most rarely."""
    source = random.Random(seed)
    return Counter(f"word-{int(source.paretovariate(0.6)) % vocabulary}" for _ in range(words))


def sketch_of(counts: Counter[str]) -> bytes:
    sketch = new_sketch()
    for word, count in counts.items():
        sketch.update(word, count)
    return sketch.serialize()


def test_the_truth_is_never_above_the_estimate_and_almost_always_within_the_bounds() -> None:
    counts = counted(1)
    sketch = read_sketch(sketch_of(counts))
    estimates = {word: estimate_of(sketch, word) for word in [*counts, "never said"]}
    assert all(counts[word] <= found.estimate for word, found in estimates.items())
    outside = [word for word, found in estimates.items() if counts[word] < found.lower]
    assert len(outside) <= 0.01 * len(estimates)
    assert all(found.estimate - found.lower <= RELATIVE_ERROR * counts.total() + 1 for found in estimates.values())
    top, truth = counts.most_common(1)[0]
    assert estimates[top].lower > 0.5 * truth, "what is said often is told well"


def test_bytes_that_are_no_sketch_are_told() -> None:
    data = sketch_of(counted(2))
    for damaged in (b"", b"x", data[:-1], b"\xff" * 40):
        with pytest.raises(ValueError, match="not a count-min sketch"):
            read_sketch(damaged)


@pytest.mark.feature("kinds-one-own")
@pytest.mark.parametrize("in_memory", [True, False])
def test_store_answers_its_query(in_memory: bool, tmp_path: Path) -> None:
    counts = counted(3)
    store = CountMinSketchStore(SPEC, MemoryEngine(10**7) if in_memory else RocksDBEngine(tmp_path))
    store.apply([ChangelogRecord(b"news", sketch_of(counts), 1), ChangelogRecord(b"bad", b"no sketch", 1)], AT)
    word, truth = counts.most_common(1)[0]
    found = store.query("estimate", b"news", {"item": word})
    assert isinstance(found, dict)
    assert found.keys() == {"estimate", "lower", "upper"}
    assert found["lower"] <= truth <= found["estimate"] == found["upper"]  # type: ignore[operator]
    assert store.query("estimate", b"other", {"item": word}) is None
    for wrong in ({}, {"item": 3}, {"item": word, "more": True}):
        with pytest.raises(LookupFailure) as failure:
            store.query("estimate", b"news", wrong)
        assert failure.value.reason is Reason.INVALID_REQUEST
    with pytest.raises(LookupFailure) as failure:
        store.query("estimate", b"bad", {"item": word})
    assert failure.value.reason is Reason.VALUE_UNDECODABLE
    store.apply([ChangelogRecord(b"news", None, 2)], AT)
    assert store.query("estimate", b"news", {"item": word}) is None
    store.close()
