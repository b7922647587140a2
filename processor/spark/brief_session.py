"""A Spark session that is open for seconds, to look at plans: it starts soon, says nothing, and runs nothing."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from pyspark.sql import SparkSession

from processor.settings import ProcessorSettings
from processor.spark.class_archive import submitted_with
from processor.spark.session import open_session

# The session is too short for the second compiler.
_FAST_START: Final = ("-XX:TieredStopAtLevel=1",)
_MASTER: Final = "spark.master"
_SAID_MAX: Final = 4_000


@contextmanager
def brief_session(application_id: str, settings: ProcessorSettings) -> Iterator[SparkSession]:
    """Open a session in this process, whatever master the settings name; in this context it is open.

    What Java says while it starts is shown only if that fails.
    """
    conf = {name: value for name, value in settings.spark_conf.items() if name != _MASTER}
    local = settings.model_copy(update={"spark_master": "local[1]", "spark_conf": conf})
    with tempfile.TemporaryFile() as said:
        try:
            with submitted_with(_FAST_START), _stderr_into(said):
                session = open_session(application_id, local)
        except BaseException:
            said.seek(0)
            sys.stderr.write(said.read()[-_SAID_MAX:].decode(errors="replace"))
            raise
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def _stderr_into(file: BinaryIO) -> Iterator[None]:
    """Have what this process and those that it starts write to stderr go into a file."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
