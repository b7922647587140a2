"""Has Spark analyse the plan of each of a topology's queries; needs no Kafka and runs nothing."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.application.sources import KafkaSources
from processor.application.topology import Topology
from processor.outputs import OutputMode, Query
from processor.outputs.frames import partitioned_frame, query_settings, set_for_a_while
from processor.settings import ProcessorSettings
from processor.sink.records import OutputRows, records
from processor.spark.brief_session import brief_session
from processor.spark.mistakes import TopologyError, mistake_of
from statehouse.errors import StatehouseError
from statehouse.local.applications import ApplicationError, find_application


def check_application(name: str, settings: ProcessorSettings) -> Application:
    """Check the application of this name, or in the module of this name, in a Spark session of this process.

    Raises:
        NoApplication: there is none.
        TopologyError: it can't work.

    """
    try:
        found = find_application(name)
    except ApplicationError as error:
        if isinstance(error.__cause__, Exception):
            raise TopologyError(mistake_of(error.__cause__)) from error
        raise
    with brief_session(found.application_id, settings) as session:
        return checked(Topology.load(found.topology), session, settings)


def checked(topology: Topology, session: SparkSession, settings: ProcessorSettings) -> Application:
    """Return the application that a topology declares, if Spark can run its queries.

    Spark's Kafka source has its columns without asking a broker. A schema registry is asked by what reads its schemas,
    and nothing is registered.

    Raises:
        TopologyError: it can't work: the mistake that `build` raises, or those of all its queries.

    """
    sources = KafkaSources(session, settings.brokers, max_offsets=1)
    app = Application(topology.application_id, sources, settings.serde_options)
    topology.declare(app)
    mistakes = []
    for query in app.queries:
        try:
            with set_for_a_while(session, query_settings(query, settings.spark_conf)):
                _analyse(query, session)
        except (PySparkException, StatehouseError) as error:
            mistakes.append(mistake_of(error, query.declared_at))
    if mistakes:
        raise TopologyError(*mistakes)
    return app


def _analyse(query: Query, session: SparkSession) -> None:
    """Have Spark check a query's plan as at its start, and the columns of its records."""
    frame = partitioned_frame(query, {output.topic: output.partitions or 1 for output in query.outputs})
    jvm = session._jvm  # noqa: SLF001 - the gateway to the JVM has no public name
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = modes.Append() if query.output_mode is OutputMode.APPEND else modes.Update()
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - the plan has no public name in Python
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
    bytes_made = F.lit(None).cast("binary")  # of a struct, once its schema is registered
    outputs = [
        OutputRows(1, each.layout, each.where, {**each.columns, **dict.fromkeys(each.schemas, bytes_made)})
        for each in query.outputs
    ]
    records(frame, outputs)
