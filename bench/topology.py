"""The Spark application of the benchmarks: a store that has the latest value of each key of a topic.

Run by `statehouse process`; `bench.sides.ours` says by variables what it is called and reads.
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
