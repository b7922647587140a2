"""Spark's classes for state in Python. Where Spark lacks them, importing this says so by name."""

from __future__ import annotations

import pyspark

from processor.spark.versions import Feature, ensure_has

ensure_has(pyspark.__version__, Feature.PYTHON_STATE)

from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle  # noqa: E402 - see above

__all__ = ("StatefulProcessor", "StatefulProcessorHandle")
