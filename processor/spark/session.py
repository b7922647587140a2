"""The Spark session of an application."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyspark
import structlog
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from processor.jvm.jar import task_jar
from processor.settings import ProcessorSettings
from processor.spark.class_archive import driver_from_archive
from processor.spark.plans import is_local
from processor.spark.versions import NEWEST, SparkVersion, is_known
from processor.spark.worker_sockets import DIRECTORY, ENABLED, forget_gone, socket_conf
from statehouse.errors import ConfigurationError
from statehouse.local.errors import SparkJavaEnded
from statehouse.local.jars import resolve_jars
from statehouse.local.java import find_java

log = structlog.get_logger(__name__)

FILTER_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
"""With it, stores that are read as frames with the option `pushdown` are asked only for what the filters say."""
_PROJECT_ROOT: Final = Path(__file__).resolve().parents[2]
# Since which version a class of Spark's is in a package of its own.
_MOVED: Final = SparkVersion(4, 1)
_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_CONNECTOR: Final = "spark-sql-kafka-0-10"
_CONNECT: Final = "pyspark.sql.connect"
# PySpark writes each failed analysis to them, with its plan and two stacks; the exception has what counts.
_OF_ANALYSES: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_LOCAL_FILES: Final = "statehouse.files.LocalFiles"
_STATE_STORE: Final = f"{_STREAMING}.state.RocksDBStateStoreProvider"


def open_session(application_id: str, settings: ProcessorSettings) -> SparkSession:
    """Return the running session (spark-submit, a notebook), or a new one with the settings that we need.

    A new one has our own jar and those of the Kafka connector, which are fetched once into a cache, unless `spark.jars`
    or `spark.jars.packages` has it.

    Raises:
        CompilationFailed: the compiler refuses our classes.
        ConfigurationError: this version of Spark is too old.
        ConnectorUnknown: we know of no connector for it, and none is set.
        JavaNotFound, JavaTooOld, SparkJavaEnded: Spark's Java doesn't start.

    """
    if not is_known(pyspark.__version__):
        log.warning(
            "no application was run with this version of Spark yet", spark=pyspark.__version__, newest=str(NEWEST)
        )
    # Workers must run the driver's Python and find the same modules.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = _python_path(os.environ.get("PYTHONPATH", ""))
    for name in _OF_ANALYSES:
        logging.getLogger(name).disabled = True
    is_running = SparkContext._active_spark_context is not None  # noqa: SLF001 - it has no public name
    local_files = _local_files(settings)
    conf = _defaults(settings) | local_files | _worker_sockets(settings, is_running=is_running) | settings.spark_conf
    for name in ("spark.remote", "spark.api.mode"):
        if conf.get(name, "classic") != "classic":
            refuse_connect(_CONNECT)
    if "SPARK_REMOTE" in os.environ:
        refuse_connect(_CONNECT)
    if not _submitted():
        ours = [task_jar(), *(() if _has_connector(conf) else resolve_jars("spark"))]
        conf["spark.jars"] = ",".join([*filter(None, [conf.get("spark.jars")]), *map(str, ours)])
    builder = SparkSession.builder.appName(application_id)
    master = _master(settings)
    if master is not None:
        builder = builder.master(master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    with driver_from_archive(conf) if settings.class_archive else nullcontext():
        session = _started(builder)
    session.sparkContext.setLogLevel(conf["spark.log.level"])
    if not is_running and local_files.items() & conf.items():
        _omit_checksum_files(session)
    return session


def _started(builder: SparkSession.Builder) -> SparkSession:
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        find_java()  # says what is wrong with it
        raise SparkJavaEnded from error


def refuse_connect(module: str) -> None:
    """Refuse what a session of Spark Connect has made; `module`: the module of its class.

    Raises:
        ConfigurationError: it is Spark Connect.

    """
    if module.startswith(_CONNECT):
        raise ConfigurationError(
            "this is a session of Spark Connect, whose client can't run the sink: use a classic session, as "
            "SparkSession.builder.master(...) opens it without SPARK_REMOTE, spark.remote and spark.api.mode=connect"
        )


def tidy_session(session: SparkSession) -> None:
    """Take away what Spark lets pile up while a session runs."""
    directory = session.sparkContext.getConf().get(DIRECTORY)
    if directory is not None:
        forget_gone(session._jvm, directory)  # noqa: SLF001 - the gateway to the JVM has no public name


def _defaults(settings: ProcessorSettings) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Each batch describes its plan for the page that is off. The long form took 5 % of a leaderboard's batch.
        "spark.sql.ui.explainMode": "simple",
        "spark.log.level": "ERROR",  # Spark and its Kafka client log many warnings that tell a user nothing
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
        # A batch uploads its changes instead of a snapshot: 10 ms per partition instead of 60.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stopTimeout": f"{settings.stop_timeout_ms}ms",  # no limit by default
        # Without event-time timers, a batch that only advances watermarks is never needed.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # Recounting the bytes of a Python batch for each row took a tenth of a stateful query's JVM time.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        FILTER_PUSHDOWN: "true",
        # HotSpot never compiles larger methods, and parsing a record makes one: smaller methods are faster.
        "spark.sql.codegen.hugeMethodLimit": "8000",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }


def _local_files(settings: ProcessorSettings) -> dict[str, str]:
    """Return settings that make checkpoints on a local disk fast (docs/adr/0033).

    By default Spark sets the permissions of each checkpoint file, twice. Without its native library (as in Spark from
    pip) Hadoop starts a `chmod` process for each: more than half of a small batch's time.
    """
    scheme = urlsplit(settings.checkpoint_dir).scheme
    if scheme != "file" and (scheme or not _is_local(settings)):
        return {}
    has_moved = SparkVersion.parse(pyspark.__version__) >= _MOVED
    if has_moved and _driver_finds(_LOCAL_FILES):
        return {_FILE_MANAGER: _LOCAL_FILES}
    package = f"{_STREAMING}.checkpointing" if has_moved else _STREAMING
    return {_FILE_MANAGER: f"{package}.FileSystemBasedCheckpointFileManager"}


def _driver_finds(name: str) -> bool:
    """Whether a driver's Java finds a class of ours: one that we start does, others may not have our jar."""
    gateway = SparkContext._gateway  # noqa: SLF001 - it has no public name
    if gateway is None:
        return not _submitted()
    loader = gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(name)
    except Py4JJavaError:
        return False
    return True


def _omit_checksum_files(session: SparkSession) -> None:
    """Have Hadoop write local files without a file of checksums (`.crc`) next to each.

    Each such file costs another `chmod` process (docs/adr/0014 says what it guarded). LocalFiles writes none; state
    stores' snapshots and our notes come without it.
    """
    files = session._jvm.org.apache.hadoop.fs.FileSystem  # noqa: SLF001 - the gateway to the JVM has no public name
    files.getLocal(session._jsc.hadoopConfiguration()).setWriteChecksum(False)  # noqa: SLF001 - same


def _worker_sockets(settings: ProcessorSettings, *, is_running: bool) -> dict[str, str]:
    """Return settings that make Python workers fast, if they run on this machine.

    On executors elsewhere nobody can make the directory before Spark needs it.
    """
    if not _is_local(settings) or ENABLED in settings.spark_conf:
        return {}
    if is_running:
        log.info("Python workers stay as they are: the Spark session was running already")
        return {}
    return socket_conf()


def _master(settings: ProcessorSettings) -> str | None:
    """Return Spark's master; None if spark-submit has chosen it."""
    return settings.spark_conf.get("spark.master") or settings.spark_master or (None if _submitted() else "local[*]")


def _is_local(settings: ProcessorSettings) -> bool:
    return is_local(_master(settings) or "")


def _python_path(inherited: str) -> str:
    paths = [str(_PROJECT_ROOT), str(Path.cwd()), *inherited.split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(path for path in paths if path))


def _submitted() -> bool:
    """Whether spark-submit started this process, and so chose the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _has_connector(conf: dict[str, str]) -> bool:
    """Whether somebody's own jars have Kafka's connector."""
    return any(_CONNECTOR in conf.get(name, "") for name in ("spark.jars", "spark.jars.packages"))
