"""Which of Spark's two Python interfaces runs our state operators: a checkpoint goes on only with the one it names.

A call with Spark's `Row`s costs half as much as one with pandas' frames (ADR 14). But Spark writes the operator's name
into the checkpoint, and refuses another. So an application goes on with pandas if its checkpoints were made with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

import pyspark
import structlog
from pyspark.sql import SparkSession

from processor.spark.checkpoint import CheckpointReader
from processor.spark.versions import Feature, has
from statehouse.errors import ConfigurationError

log = structlog.get_logger(__name__)

WITH_PANDAS: Final = "statehouse.stateOperators.withPandas"
"""A setting of the Spark session while frames are made; "true" or "false"."""
NOTE: Final = "_state-operators"
"""The file beside the checkpoints that says it: an operator with pandas may also be the user's own."""
_ROWS_NOTE: Final = "rows"
_PANDAS_NOTE: Final = "pandas"
_PANDAS: Final = "transformWithStateInPandasExec"
_ALWAYS_PANDAS: Final = {"stream_time"}
"""States of operators that use pandas in either case."""


def settings_to_go_on(session: SparkSession, directory: str) -> dict[str, str]:
    """Return the session's settings with which an application's frames must be made, and note them for later starts.

    Args:
        session: where the frames will be made.
        directory: with the checkpoints of all the application's queries; it need not exist.

    Raises:
        ConfigurationError: this Spark lacks the interface that the checkpoints name.

    """
    checkpoints = CheckpointReader(session, directory)
    noted = checkpoints.note(NOTE)
    if not has(pyspark.__version__, Feature.ROW_STATE) and noted != _PANDAS_NOTE:
        if noted is not None:
            raise ConfigurationError(
                f"the checkpoints in {directory} were made by a newer Spark, and Spark {pyspark.__version__} can't go "
                "on with the state in them: install the newer one, or reset the application"
            )
        checkpoints.write_note(NOTE, noted := _PANDAS_NOTE)
    if noted not in (_ROWS_NOTE, _PANDAS_NOTE):
        # Before there were notes, ours were always with pandas.
        noted = _PANDAS_NOTE if uses_pandas(checkpoints.texts("*/state/*/_metadata/v2/[0-9]*")) else _ROWS_NOTE
        checkpoints.write_note(NOTE, noted)
    if noted != _PANDAS_NOTE:
        return {}
    log.info("state operators go on with pandas, as the checkpoints have them: after a reset they are faster")
    return {WITH_PANDAS: "true"}


def is_with_pandas(session: SparkSession) -> bool:
    """Whether state operators are to be made with pandas."""
    return str(session.conf.get(WITH_PANDAS, "false")) == "true"


def uses_pandas(texts: Iterable[str]) -> bool:
    """Whether one of our operators may use pandas; `texts`: Spark's metadata of each (a version line, JSON)."""
    for text in texts:
        _, _, body = text.partition("\n")
        operator = json.loads(body)
        if operator["operatorInfo"]["operatorName"] == _PANDAS:
            variables = json.loads(operator["operatorPropertiesJson"])["stateVariables"]
            if {variable["stateName"] for variable in variables} != _ALWAYS_PANDAS:
                return True
    return False
