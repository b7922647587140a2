"""What kills lose: of the stores while Spark writes to them, and of Spark's driver in the middle of a batch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bench.checkpoints import committed, planned
from bench.data import key_of, value_of
from bench.failure import BenchFailure
from bench.measure import Result, Stage
from bench.records import produce
from bench.sides.servers import Servers
from bench.waiting import wait_for
from processor.spark.checkpoint import Offsets
from statehouse.contract.partitioning import partition_for
from statehouse.kafka import clients
from statehouse.kafka.offsets import last_stable_offsets

_PARTS: Final = 10
_BATCH_KEYS: Final = 100_000
# The part of a batch that must be on its way when the driver is killed.
_ON_ITS_WAY: Final = 0.3
_ATTEMPTS: Final = 10
_READ_KEYS: Final = 500
_SPARK_S: Final = 900.0
_POLL_S: Final = 0.001
_BATCH_S: Final = 120.0
_STORE_VERSION: Final = 1
_DRIVER_VERSIONS: Final = 2


def store_kill(stage: Stage) -> Iterator[Result]:
    """Write each key anew; halfway kill what holds them by SIGKILL, and start it again.

    If Spark fails meanwhile it's started again. It won't write again what it has committed, so a key that is missing or
    old in the end is lost.
    """
    servers, keys = stage.servers, stage.shape.keys
    before = committed(servers.spark.checkpoints)
    for part in range(_PARTS):
        produced = range(part * keys // _PARTS, (part + 1) * keys // _PARTS)
        produce(servers.bootstrap, servers.source_topic, stage.shape.partitions, produced, _STORE_VERSION)
        if part == _PARTS // 2:
            wait_for(lambda: committed(servers.spark.checkpoints) != before, _SPARK_S, "Spark to commit a batch")
            for node in servers.nodes.values():
                node.kill()
            for node in servers.nodes.values():
                node.start()
            servers.wait_serving()
    _wait_processed(servers)
    lost = len(_not_shown(servers, range(keys), _STORE_VERSION))
    yield Result(
        f"The store killed while Spark writes {keys} keys to it", {"lost": lost, "lost_percent": 100 * lost / keys}
    )


def driver_kill(stage: Stage) -> Iterator[Result]:
    """Kill Spark's driver in the middle of a batch; count what shows of the batch while no driver runs.

    A partition that shows all of its keys is not torn: ours commit each on its own.
    """
    numbers = range(min(_BATCH_KEYS, stage.shape.keys))
    for version in range(_DRIVER_VERSIONS, _DRIVER_VERSIONS + _ATTEMPTS):
        shown = _shown(stage, numbers, version)
        _wait_processed(stage.servers)
        if shown is None:
            continue
        torn = [found for found, of in shown if 0 < found < of]
        figures: dict[str, float] = {
            "early_keys": sum(found for found, _ in shown),
            "torn_partitions": len(torn),
            "torn_keys": sum(torn),
            "lost": len(_not_shown(stage.servers, numbers, version)),
        }
        yield Result(f"Spark's driver killed in a batch of {len(numbers)} keys", figures)
        return
    raise BenchFailure(f"{_ATTEMPTS} batches were over before Spark's driver was killed")


def _shown(stage: Stage, numbers: Sequence[int], version: int) -> list[tuple[int, int]] | None:
    """Have Spark write these keys in one batch, and kill it; return how many show of each partition's, and of how many.

    None: Spark had committed the batch.
    """
    servers, spark, partitions = stage.servers, stage.servers.spark, stage.shape.partitions
    spark.process.stop()
    begin = _source_ends(servers)
    produce(servers.bootstrap, servers.source_topic, partitions, numbers, version)
    enough, before = spark.written() + _ON_ITS_WAY * len(numbers), planned(spark.checkpoints)
    spark.process.start()

    def is_planned() -> bool:
        spark.process.check()
        return planned(spark.checkpoints) != before

    wait_for(is_planned, _SPARK_S, "Spark to begin the batch")
    deadline = time.monotonic() + _BATCH_S
    while spark.written() < enough:
        if time.monotonic() > deadline:
            raise BenchFailure(f"Spark has written too little of a batch within {_BATCH_S:g} s")
        time.sleep(_POLL_S)
    spark.process.kill()
    ended, ends = committed(spark.checkpoints), planned(spark.checkpoints)
    if ended == ends:
        return None
    servers.wait_serving()
    return [
        (len(batch) - len(_not_shown(servers, batch, version)), len(batch))
        for batch in of_batch(numbers, partitions, begin, ended, ends).values()
    ]


def of_batch(
    numbers: Sequence[int], partitions: int, begin: Offsets, ended: Offsets, ends: Offsets
) -> Mapping[int, Sequence[int]]:
    """Return the numbers in a batch, by partition.

    The keys of `numbers` were written in their order, from the offsets `begin` on. The batch goes from `ended` to
    `ends`.
    """
    written: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
    for number in numbers:
        written[partition_for(key_of(number).encode(), partitions)].append(number)
    return {
        partition: written[partition][max(0, ended.get((topic, partition), 0) - first) : max(0, end - first)]
        for (topic, partition), end in ends.items()
        for first in (begin[topic, partition],)
    }


def _wait_processed(servers: Servers) -> None:
    """Wait until Spark has committed all of the source, and it shows; a Spark that has ended is started again."""
    spark = servers.spark
    ends = _source_ends(servers)

    def is_processed() -> bool:
        if not spark.process.is_running:
            spark.process.start()
        done = committed(spark.checkpoints)
        return all(done.get(place, 0) >= end for place, end in ends.items())

    wait_for(is_processed, _SPARK_S, f"Spark to have written everything to {servers.side}")
    servers.wait_serving()


def _source_ends(servers: Servers) -> Offsets:
    places = [(servers.source_topic, partition) for partition in range(servers.shape.partitions)]
    return last_stable_offsets(clients.admin(servers.bootstrap, "bench"), places)


def _not_shown(servers: Servers, numbers: Sequence[int], version: int) -> list[int]:
    """Return the numbers of the keys that don't have their value in a version, twice asked: a read may fail."""
    left: Sequence[int] = numbers
    for _ in range(2):
        found = []
        for begin in range(0, len(left), _READ_KEYS):
            asked = left[begin : begin + _READ_KEYS]
            values = servers.read(None, [key_of(number) for number in asked])
            found += [n for n, value in zip(asked, values, strict=True) if value != value_of(n, version).encode()]
        left = found
    return list(left)
