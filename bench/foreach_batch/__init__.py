"""The Spark application that fills Redis: `python -m bench.foreach_batch`, which `bench.sides.redis` runs."""

from __future__ import annotations

from typing import Final

CHECKPOINT: Final = "redis"
"""Where the query's checkpoint is, within the directory of checkpoints."""
