"""What runs in Spark's executors: rows go to Redis in pipelines, as its users write them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import Any, Final

import redis

from statehouse.local.ports import LOOPBACK

_PIPELINE_ROWS: Final = 1_000


@cache
def client(port: int) -> redis.Redis:
    """Return the client of this process: Spark's Python workers stay for further batches."""
    return redis.Redis(host=LOOPBACK, port=port)


def write_rows(port: int, rows: Iterable[Any]) -> None:
    """Set each row's key to its value."""
    left = iter(rows)
    while chunk := list(islice(left, _PIPELINE_ROWS)):
        pipeline = client(port).pipeline(transaction=False)
        for row in chunk:
            pipeline.set(bytes(row.key), bytes(row.value))
        pipeline.execute()
