"""Spark's classes for state in Python. Where Spark lacks them, importing this says so by name."""

from __future__ import annotations

import pyspark

from processor.spark.versions import Feature, ensure_has
from processor.spark.worker_memory import keep_modules

ensure_has(pyspark.__version__, Feature.PYTHON_STATE)

from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle  # noqa: E402 - see above

__all__ = ("OurStatefulProcessor", "StatefulProcessorHandle")


class OurStatefulProcessor(StatefulProcessor):  # type: ignore[misc] # pyspark counts as untyped
    """Has its worker keep its modules after a task."""

    def close(self) -> None:
        """End a task."""
        keep_modules()
