"""A notebook's kernel and the session that it has opened."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from processor.spark.session import FILTER_PUSHDOWN
from pyspark_statehouse import DefaultSource


def readable(session: SparkSession) -> None:
    """Have a session read stores as frames, with this kernel's Python.

    On its own, Spark looks for data sources with the first python3 in PATH, which need not have the packages that this
    kernel has.
    """
    use_this_python(session)
    session.conf.set(FILTER_PUSHDOWN, "true")
    session.dataSource.register(DefaultSource)


def use_this_python(session: SparkSession) -> None:
    """Have a session's workers run this kernel's Python, unless another one was chosen or they are elsewhere."""
    context = session.sparkContext
    is_chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if context.master.startswith("local") and not is_chosen:
        context.pythonExec = sys.executable
