"""A session of Spark for tests."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from processor.settings import ProcessorSettings
from processor.spark.session import open_session


@contextmanager
def shared_session() -> Iterator[SparkSession]:
    """Open a Spark session for tests, with the processor's settings; it starts slowly, so let tests share it."""
    settings = ProcessorSettings(bootstrap="unused:1", checkpoint_dir="unused", spark_master="local[2]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = open_session("tests", settings)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    yield session
    session.stop()
