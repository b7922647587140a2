"""The sketch that the topology makes and the store reads.

A count-min sketch (Cormode and Muthukrishnan, 2005) counts items in a table of fixed size: each item adds to one
counter in every row, and its estimate is the smallest of these. Collisions only add, so no estimate is too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from datasketches import count_min_sketch

RELATIVE_ERROR: Final = 0.01
CONFIDENCE: Final = 0.99


@dataclass(frozen=True, slots=True)
class Estimate:
    """How often an item was counted.

    Attributes:
        estimate: at least the true count.
        lower: at most the true count, with CONFIDENCE: the estimate minus RELATIVE_ERROR times the total count.

    """

    estimate: int
    lower: int


def new_sketch() -> count_min_sketch:
    """Return an empty sketch: 11 kB when serialized, whatever it counts."""
    return count_min_sketch(
        count_min_sketch.suggest_num_hashes(CONFIDENCE), count_min_sketch.suggest_num_buckets(RELATIVE_ERROR)
    )


def read_sketch(data: bytes) -> count_min_sketch:
    """Return a sketch from its serialized form.

    Raises:
        ValueError: the bytes aren't a sketch.

    """
    try:
        sketch = count_min_sketch.deserialize(data)
    except (IndexError, ValueError) as error:
        raise ValueError(f"not a count-min sketch: {error}") from error
    # The library accepts a few missing bytes, and any number of extra ones.
    if sketch.get_serialized_size_bytes() != len(data):
        raise ValueError(f"not a count-min sketch: {len(data)} bytes, {sketch.get_serialized_size_bytes()} are due")
    return sketch


def estimate_of(sketch: count_min_sketch, item: str) -> Estimate:
    """Return how often an item was counted."""
    estimate = sketch.get_estimate(item)
    error = sketch.get_relative_error() * sketch.total_weight
    return Estimate(round(estimate), max(0, round(estimate - error)))
