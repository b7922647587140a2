"""The Spark application of the benchmarks: a store that has the latest value of each key of a topic.

`bench.sides.ours` runs it with `python -m processor.cli`; environment variables set its id and its source topic.
"""

from __future__ import annotations

import os

from bench.sides.ours import STORE
from processor.application import Application

application_id = os.environ.get("BENCH_APPLICATION_ID", "bench")


def build(app: Application) -> None:
    """Declare the source and the store."""
    records = app.stream(os.environ["BENCH_SOURCE"])
    app.store(STORE, records, value_serde="string")
