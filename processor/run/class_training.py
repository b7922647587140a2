"""The run after which Java knows which classes Spark's driver needs: a small application on a broker of its own.

`processor.spark.class_archive` runs it, with the archive's path as argument, and ends it if it takes too long.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from pyspark import SparkContext

from processor.application import Application
from processor.application.topology import Topology
from processor.operators.aggregators import TopN
from processor.operators.fold import aggregate
from processor.operators.json_records import FieldType, parse_json
from processor.run.processor import Processor
from processor.settings import ProcessorSettings
from processor.spark.class_archive import submitted_with
from statehouse.contract.topology import changelog_topic
from statehouse.kafka import clients
from statehouse.kafka.offsets import last_stable_offsets
from statehouse.kafka.topics import TopicSpec, ensure_topics
from statehouse.local.class_archives import making
from statehouse.local.kafka import EmbeddedKafka

_APPLICATION: Final = "class-training"
_EVENTS: Final = "training-events"
_STORES: Final = ("latest", "best")
_PARTITIONS: Final = 2
_BATCHES: Final = 3
_RECORDS: Final = 20
_TIMEOUT_S: Final = 60.0
# The run is too short for the second compiler. An archive has no compiled code, and fits all options of compilers.
_FAST_START: Final = ("-XX:TieredStopAtLevel=1",)


def train(archive: Path) -> None:
    """Run the application for a few batches, and have Java write its classes into `archive`; files go next to it."""
    directory = archive.parent
    with EmbeddedKafka(directory / "kafka") as broker:
        admin = clients.admin(broker.bootstrap, _APPLICATION)
        ensure_topics(admin, [TopicSpec(_EVENTS, _PARTITIONS)], _TIMEOUT_S)
        settings = ProcessorSettings(
            bootstrap=broker.bootstrap,
            checkpoint_dir=str(directory / "checkpoints"),
            spark_master="local[2]",
            spark_conf={"spark.local.dir": str(directory / "spark")},
            class_archive=False,
        )
        processor = Processor(Topology(_APPLICATION, _build), settings)
        with submitted_with([*_FAST_START, *making(archive)]):
            processor.start()
        for _ in range(_BATCHES):
            before = _records(admin)
            _produce(broker.bootstrap)
            processor.wait(partial(_have_grown, admin, before))
        processor.stop()
        _end_jvm()


def _build(app: Application) -> None:
    events = app.stream(_EVENTS)
    app.store(_STORES[0], events)
    scores = parse_json(events, {"player": FieldType.TEXT, "score": FieldType.NUMBER})
    app.store(_STORES[1], aggregate(scores, TopN(3, by="score", fields={"player": "player", "score": "score"})))


def _produce(bootstrap: str) -> None:
    producer = clients.producer(bootstrap, _APPLICATION)
    for number in range(_RECORDS):
        value = f'{{"player": "p{number}", "score": {time.time():.3f}}}'
        producer.produce(_EVENTS, key=str(number).encode(), value=value.encode(), partition=number % _PARTITIONS)
    producer.flush(_TIMEOUT_S)
    producer.close()


def _records(admin: AdminClient) -> list[int]:
    """Return how many records each store has."""
    return [
        sum(last_stable_offsets(admin, [(changelog, each) for each in range(_PARTITIONS)]).values())
        for changelog in (changelog_topic(_APPLICATION, store) for store in _STORES)
    ]


def _have_grown(admin: AdminClient, before: Sequence[int]) -> bool:
    return all(now > then for now, then in zip(_records(admin), before, strict=True))


def _end_jvm() -> None:
    """End Spark's JVM, as the end of this process would, and wait until it has written the archive."""
    context: Any = SparkContext._active_spark_context  # noqa: SLF001 - it has no public name
    context.stop()
    jvm: Any = SparkContext._gateway  # noqa: SLF001 - as above
    jvm.proc.stdin.close()
    jvm.proc.wait()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
