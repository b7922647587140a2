"""Runs a processor as a program: until a signal asks it to stop, or it fails."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

import structlog
from confluent_kafka import KafkaException
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from processor.application.topology import Topology
from processor.run.processor import Processor
from processor.settings import ProcessorSettings
from processor.spark.failures import beginning
from statehouse.errors import StatehouseError

log = structlog.get_logger(__name__)


def run(topology_module: str, settings: ProcessorSettings) -> int:
    """Run an application until SIGINT or SIGTERM; return the exit code: 0, or 1 after saying why."""
    return run_until_asked(
        lambda: Processor(Topology.load(topology_module).of_version(settings.application_version), settings)
    )


def run_until_asked(make: Callable[[], Processor]) -> int:
    """Run the processor that `make` makes until SIGINT or SIGTERM; return the exit code: 0, or 1 after saying why."""
    # A signal handler can interrupt any code, even another handler: it must not lock or log.
    asked: list[int] = []

    def ask(signum: int, _frame: FrameType | None) -> None:
        asked.append(signum)

    processor: Processor | None = None
    exit_code = 0
    try:
        processor = make()
        processor.start()
        # After the session: Spark installs its own handler for SIGINT, which would cancel the batch.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, ask)
        processor.wait(lambda: bool(asked))
        log.info("stopping after the batch under way", signal=signal.Signals(asked[0]).name)
    except StatehouseError as error:
        log.error("processor stopped", error=type(error).__name__, reason=str(error))  # noqa: TRY400 - the text is the message
        exit_code = 1
    except KafkaException as failure:
        log.error("processor stopped", error="KafkaException", reason=failure.args[0].str())  # noqa: TRY400 - same
        exit_code = 1
    except (PySparkException, Py4JError) as failure:
        log.error("processor stopped", error=type(failure).__name__, reason=beginning(failure))  # noqa: TRY400 - same
        exit_code = 1
    finally:
        if processor is not None:
            processor.stop()
    return exit_code
