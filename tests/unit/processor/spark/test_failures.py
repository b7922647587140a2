import pytest

from processor.spark.failures import beginning, where_raised


def test_a_long_reason_is_cut():
    assert beginning("\n".join("abcdefghijkl")) == "\n".join("abcdefgh")


def test_the_reason_of_a_python_worker_stands_below_its_traceback():
    reason = """[STREAM_FAILED] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
    ~~~~~~~^^
pyspark.errors.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
statehouse.errors.ConfigurationError: key b'k1' has two updates
	at org.apache.spark.api.python.BasePythonRunner
"""
    assert beginning(reason) == "statehouse.errors.ConfigurationError: key b'k1' has two updates"


IN_A_WORKER = """[STREAM_FAILED] Query [id = 5] terminated with exception: An exception was thrown:
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 1, in main
    process()
  File "/app/processor/operators/workers/keyed.py", line 7, in _added
    add()
  File "/app/topology.py", line 19, in add
    1 / 0
    ~~^~~
  File "/usr/lib/python3.11/statistics.py", line 3, in mean
    raise
ZeroDivisionError: division by zero
while it processed record orders/3/812
	at org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.feature("failures-are-seen")
@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (IN_A_WORKER, "ZeroDivisionError at topology.py:19, record orders/3/812"),
        (
            IN_A_WORKER.replace("/app/topology.py", "/x/site-packages/pyspark/a.py"),
            "ZeroDivisionError at statistics.py:3",
        ),
        ("[STREAM_FAILED] Query failed: [DIVIDE_BY_ZERO] Division of 7 by zero. SQLSTATE: 22012", "DIVIDE_BY_ZERO"),
        ("Job aborted\nCaused by: org.apache.kafka.common.errors.TimeoutException: no 4711", "TimeoutException"),
        (OSError("secret"), "OSError"),
    ],
)
def test_a_failure_is_named_without_its_message(failure: object, expected: str):
    assert where_raised(failure).removesuffix(", record orders/3/812") == expected.removesuffix(", record orders/3/812")
