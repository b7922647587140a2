"""Keeps the rate of an application's batches next to its checkpoints, for the next run's limit (see `batch_limit`)."""

from __future__ import annotations

import math
from typing import Final

import structlog
from pyspark.sql import SparkSession

from processor.reports.progress import BatchProgress
from processor.run.batch_limit import RateMeter
from processor.spark.checkpoint import CheckpointReader

log = structlog.get_logger(__name__)

NOTE: Final = "_events-per-second"


class KeptRate:
    """The file with the rate, in the directory of the application's checkpoints."""

    def __init__(self, session: SparkSession, directory: str) -> None:
        self._checkpoints = CheckpointReader(session, directory)

    def read(self) -> float | None:
        """Return the rate that the last run measured; None if there is none, or it can't be read."""
        text = self._checkpoints.note(NOTE)
        if text is None:
            return None
        try:
            rate = float(text)
        except ValueError:
            rate = math.nan
        if rate > 0 and math.isfinite(rate):
            return rate
        log.warning("the rate of the last run can't be read: batches begin as at a first start", found=text[:40])
        return None

    def keep(self, meter: RateMeter, batch: BatchProgress) -> None:
        """Have the meter take a batch, and write what it says."""
        rate = meter.take(batch)
        if rate is not None:
            self._checkpoints.write_note(NOTE, f"{rate:.1f}")
