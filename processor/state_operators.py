"""Which of Spark's two Python interfaces runs our state operators: a checkpoint goes on only with the one it names.

A call with Spark's `Row`s costs half as much as one with pandas' frames (ADR 14). But Spark writes the operator's name
into the checkpoint, and refuses another. So an application goes on with pandas while a checkpoint of it does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

import structlog
from pyspark.sql import SparkSession

from processor.checkpoint import CheckpointReader

log = structlog.get_logger(__name__)

WITH_PANDAS: Final = "statehouse.stateOperators.withPandas"
"""A setting of the Spark session while frames are made; "true" or "false"."""
_PANDAS: Final = "transformWithStateInPandasExec"
_ALWAYS_PANDAS: Final = {"stream_time"}
"""States of operators that use pandas in either case."""


def settings_to_go_on(session: SparkSession, directory: str) -> dict[str, str]:
    """Return the session's settings with which an application's frames must be made.

    Args:
        session: where the frames will be made.
        directory: with the checkpoints of all the application's queries; it need not exist.

    """
    if not uses_pandas(CheckpointReader(session, directory).texts("*/state/*/_metadata/v2/*")):
        return {}
    log.info("state operators go on with pandas, as the checkpoints have them: a new checkpoint makes them faster")
    return {WITH_PANDAS: "true"}


def is_with_pandas(session: SparkSession) -> bool:
    """Whether state operators are to be made with pandas."""
    return str(session.conf.get(WITH_PANDAS, "false")) == "true"


def uses_pandas(texts: Iterable[str]) -> bool:
    """Whether one of our operators uses pandas; `texts`: Spark's metadata of each operator (a version line, JSON)."""
    for text in texts:
        _, _, body = text.partition("\n")
        operator = json.loads(body)
        if operator["operatorInfo"]["operatorName"] == _PANDAS:
            variables = json.loads(operator["operatorPropertiesJson"])["stateVariables"]
            if {variable["stateName"] for variable in variables} != _ALWAYS_PANDAS:
                return True
    return False
