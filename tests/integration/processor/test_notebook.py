"""A notebook whose three lines publish a stream; its kernel is killed in a batch, and the notebook run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import nbformat
import pytest
from confluent_kafka import KafkaException
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.notebook import publish
from statehouse.contract.topology import changelog_topic
from statehouse.errors import ConfigurationError, LookupFailure
from statehouse.kafka.offsets import last_stable_offsets
from statehouse.kafka.renewed import RenewedAdmin
from statehouse.local.jars import resolve_jars
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import check_counts, messages
from tests.support.fleet import Servers
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until
from tests.support.proxy import children_of

USERS: Final = 10
RECORDS: Final = 200

# What a notebook has before ours: a session, and a frame.
SESSION: Final = """
from pyspark.sql import SparkSession, functions as F
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", {jars!r}).config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR").config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
clicks = (
    spark.readStream.format("kafka").option("kafka.bootstrap.servers", {bootstrap!r})
    .option("subscribe", {topic!r}).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 25).load()
)
number = F.col("value").cast("string").cast("long")
users = clicks.groupBy(F.col("key").cast("string").alias("user"))
sums = users.agg(F.count("*").alias("count"), F.sum(number).alias("sum"))
"""
PUBLISH: Final = """
from processor.notebook import publish
settings = dict(bootstrap={bootstrap!r}, checkpoint_dir={checkpoints!r}, router={router!r})
published = publish(sums, store={store!r}, key="user", **settings)
"""
GET: Final = """
import time
from statehouse.errors import LookupFailure
deadline = time.monotonic() + 120
value = None
while (value is None or value["count"] < {count}) and time.monotonic() < deadline and published.failure is None:
    try:
        value = published.get("u3")
    except LookupFailure:
        pass
    time.sleep(0.05)
published.stop()
print(value)
"""


@pytest.mark.feature("stream-published-notebook")
def test_a_frame_of_a_session_that_runs_is_published_and_read(
    spark: SparkSession, kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    store, topic = unique_name("sums"), unique_name("clicks")
    create_topic(kafka.bootstrap, topic)
    produce(kafka.bootstrap, topic, [(f"u{n % USERS}".encode(), str(n).encode()) for n in range(RECORDS)])
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    clicks = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    user = F.col("key").cast("string").alias("user")
    counts = clicks.groupBy(user).agg(F.count("*").alias("count"))
    with Servers(kafka.bootstrap, store, tmp_path) as servers:
        servers.node("n1")
        router = servers.router()
        checkpoints = str(tmp_path / "checkpoints")
        published = publish(
            counts, store=store, key="user", bootstrap=kafka.bootstrap, checkpoint_dir=checkpoints, router=router.target
        )

        def is_there() -> bool:
            try:
                return published.get("u3") == {"count": RECORDS // USERS}
            except LookupFailure:
                assert published.failure is None
                return False

        poll_until(is_there, 120, "the count")
        read = published.frame(value_schema="count BIGINT", pushdown=True).where("key = 'u4'").select("value.count")
        assert read.collect() == [(RECORDS // USERS,)]
        published.stop()
    assert not spark.streams.active, "the session goes on, and the query has ended"


KERNEL: Final = """
from pyspark.sql import SparkSession
from processor.notebook import readable
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
readable(spark)
try:
    spark.read.format("statehouse").option("router", "127.0.0.1:1").option("store", "s").load()
except Exception as error:
    print("SAYS", error)
"""


def test_a_kernel_without_the_variable_of_its_python_reads_stores(tmp_path: Path) -> None:
    """Spark would look for data sources with the first python3 in PATH, here one that has nothing."""
    bare = tmp_path / "python3"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", KERNEL], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert "127.0.0.1:1 can't be reached" in done.stdout, done.stdout + done.stderr[-2000:]


@pytest.mark.feature("stream-published-notebook")
@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_notebook_publishes_and_gets_though_its_kernel_is_killed(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    store, topic = unique_name("sums"), unique_name("clicks")
    create_topic(kafka.bootstrap, topic)
    produce(kafka.bootstrap, topic, [(f"u{n % USERS}".encode(), str(n).encode()) for n in range(RECORDS)])
    with Servers(kafka.bootstrap, store, tmp_path) as servers:
        servers.node("n1")
        router = servers.router()
        given = {
            "jars": ",".join(map(str, resolve_jars("spark"))),
            "bootstrap": kafka.bootstrap,
            "topic": topic,
            "store": store,
            "checkpoints": str(tmp_path / "checkpoints"),
            "router": router.target,
            "count": RECORDS // USERS,
        }
        make: Any = nbformat.v4
        cells = [make.new_code_cell(source.format(**given)) for source in (SESSION, PUBLISH, GET)]
        notebook = make.new_notebook(cells=cells)
        changelog = changelog_topic(store, store)
        killer = threading.Thread(target=kill_after_records, args=(kafka.bootstrap, changelog, tmp_path))
        first = client_of(notebook, tmp_path)
        killer.start()
        with pytest.raises(DeadKernelError):
            first.execute()
        killer.join()
        written = len(messages(kafka.bootstrap, changelog))
        assert written > 0
        client_of(notebook, tmp_path).execute()
    (output,) = notebook.cells[2].outputs
    sums = {
        f"u{user}": [sum(range(user, user + USERS * n, USERS)) for n in range(RECORDS // USERS + 1)]
        for user in range(USERS)
    }
    assert output.text.strip() == str({"count": RECORDS // USERS, "sum": sums["u3"][-1]})
    check_counts(kafka.bootstrap, changelog, sums)
    assert len(messages(kafka.bootstrap, changelog)) > written


def client_of(notebook: Any, directory: Path) -> NotebookClient:
    # The kernel says its pid, for the test to kill it.
    hook = f"import os; open({str(directory / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    notebook.cells[0].source = hook + notebook.cells[0].source.removeprefix(hook)
    return NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(directory)}}
    )


def kill_after_records(bootstrap: str, changelog: str, directory: Path) -> None:
    """Kill the kernel and its JVM once the first batches are written; batches follow one another without a pause."""
    # Its first questions come before the topic is there, and a client may be lost by an answer.
    admin = RenewedAdmin(bootstrap, "test-notebook")

    def has_written() -> bool:
        with suppress(KafkaException):
            return admin.ask(lambda client: last_stable_offsets(client, [(changelog, 0)]))[changelog, 0] > 2 * USERS
        return False

    poll_until(has_written, 200, "the first batches")
    pid = int((directory / "pid").read_text())
    for each in [*children_of(pid), pid]:
        os.kill(each, signal.SIGKILL)


def test_what_can_not_be_published_is_refused(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match="isn't streaming"):
        publish(spark.range(3), store="numbers", key="id")
    with pytest.raises(ConfigurationError, match="lacks the key user; it has timestamp, value"):
        publish(stream, store="numbers", key="user")
    with pytest.raises(ConfigurationError, match="only the key"):
        publish(stream.select("value"), store="numbers", key="value")
    with pytest.raises(ConfigurationError, match="can't be made"):
        publish(stream, store="numbers", key="value", values={"n": "nothing + 1"})
    with pytest.raises(ConfigurationError, match="application id"):
        publish(stream, store="no such name!", key="value")
