from processor.spark.failures import beginning


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
