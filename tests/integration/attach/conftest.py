"""The Spark session of tests that read what Spark says of a state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from processor.testing import shared_session


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    with shared_session() as session:
        yield session
