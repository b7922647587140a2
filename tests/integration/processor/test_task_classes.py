"""Java classes of a jar in driver and executors of sessions that began without it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from processor.jvm.jar import write_jar
from processor.spark.task_classes import loader_with, task_object
from tests.support.spark_cluster import ENVIRONMENT, SPARK_HOME

_ROOT: Final = Path(__file__).parents[3]
_SOURCE: Final = Path(__file__).with_name("java") / "Tripled.java"
_SUBMITTED: Final = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from processor.spark.task_classes import loader_with
session = SparkSession.builder.getOrCreate()
tripled = loader_with(session.sparkContext, Path(sys.argv[1])).loadClass("Tripled").newInstance()
numbers = session._jvm.java.util.ArrayList([1, 2, 3])
print("tripled", *tripled.of(session._jsc, numbers))
session.stop()
"""


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("with space") / "test-classes.jar"
    write_jar([_SOURCE], path)
    return path


def test_a_running_session_gets_classes_for_driver_and_tasks(spark: SparkSession, jar: Path) -> None:
    tripled = loader_with(spark.sparkContext, jar).loadClass("Tripled").newInstance()
    assert list(tripled.of(spark._jsc, spark._jvm.java.util.ArrayList([1, 2, 3]))) == [3, 6, 9]


def test_a_loader_has_the_classes_that_the_driver_has(spark: SparkSession, jar: Path) -> None:
    loader = loader_with(spark.sparkContext, jar)
    name = "org.apache.spark.SparkContext"
    assert loader.loadClass(name).equals(spark._jsc.sc().getClass())
    assert loader.loadClass("statehouse.files.LocalFiles").getClassLoader().equals(loader.getParent())


def test_a_class_that_the_jar_lacks_is_named(spark: SparkSession) -> None:
    with pytest.raises(Py4JJavaError, match=r"ClassNotFoundException: statehouse\.Absent"):
        task_object(spark, "statehouse.Absent")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,1,1024]"])
def test_a_submitted_application_gets_them_too(tmp_path: Path, jar: Path, master: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(_SUBMITTED)
    command = [SPARK_HOME / "bin" / "spark-submit", "--master", master, program, jar]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert "tripled 3 6 9" in done.stdout, done.stderr[-2000:]
