"""What an application of Spark's own operators imports must not need state in Python: Spark 3.5 has none."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LACKING = "import sys; sys.modules['processor.spark.state_api'] = None; import "


@pytest.mark.parametrize(
    "module", ["processor.application", "processor.run.command", "processor.run.check", "examples.page_views.topology"]
)
def test_no_state_in_python_is_imported(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", _LACKING + module], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
