"""How Spark's metadata of operators is read; that its files are as here, `tests/integration` shows."""

from __future__ import annotations

import pytest

from processor.spark.state_operators import uses_pandas
from tests.support.operator_metadata import metadata

ROWS = metadata("transformWithStateInPySparkExec", "aggregates", "rows")
PANDAS = metadata("transformWithStateInPandasExec", "aggregates", "rows")
STREAM_TIME = metadata("transformWithStateInPandasExec", "stream_time")
NATIVE = 'v2\n{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"},"operatorPropertiesJson":""}'


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], False),
        ([ROWS, NATIVE], False),
        ([STREAM_TIME, ROWS], False),
        ([PANDAS], True),
        ([ROWS, NATIVE, STREAM_TIME, PANDAS], True),
    ],
)
def test_which_operators_use_pandas(texts: list[str], expected: bool):
    assert uses_pandas(texts) is expected
