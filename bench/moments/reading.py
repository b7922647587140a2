"""Reading at the newest batch and without a moment, in turn, while Spark commits batch after batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.generator import load
from bench.moments.compared import Turn
from bench.records import create_topic, produce
from bench.shape import Shape, Side
from bench.sides.ours import SparkFleet
from bench.usage import cpu_seconds
from statehouse.local.kafka import EmbeddedKafka

_SHAPE: Final = Shape(keys=200_000)
_TOPIC: Final = "read"
_RENEWED: Final = 2_000
"""Keys that are written anew a second, with the value that they have: answers are checked."""
_PAUSE_S: Final = 1.0
_TURN_S: Final = 5.0
_UNDER_WAY: Final = 8
_AT_A_TIME: Final = 100
_TIMEOUT_MS: Final = 10_000
_METHODS: Final[Mapping[str, Mapping[str, object]]] = {
    "BatchGet": {"method": "batch_get", "batch": _AT_A_TIME},
    "Scan": {"method": "scan", "span": _AT_A_TIME},
}


def read(broker: EmbeddedKafka, directory: Path, turns: int) -> dict[str, Sequence[Turn]]:
    """Read in so many turns; return by call what one took of the processors of nodes and router, in microseconds.

    Raises:
        BenchFailure: an answer was wrong or missing, or a request failed.
        ProcessFailed: a process has ended.

    """
    create_topic(broker.bootstrap, _TOPIC, _SHAPE.partitions, {})
    produce(broker.bootstrap, _TOPIC, _SHAPE.partitions, range(_SHAPE.keys))
    fleet = SparkFleet(Side.OURS, broker.bootstrap, _SHAPE, directory / "fleet", _TOPIC)
    fleet.start()
    try:
        with _writing(broker.bootstrap):
            calls = {
                f"{call} of {_AT_A_TIME} {way}": {**options, **what, "timeout_ms": _TIMEOUT_MS}
                for way, options in (("straight", fleet.straight), ("through the router", fleet.anywhere()))
                for call, what in _METHODS.items()
                if (way, call) != ("straight", "Scan")  # a range lies in all partitions
            }
            return {
                name: [_turn(fleet, options, turn % 2 == 1) for turn in range(turns)] for name, options in calls.items()
            }
    finally:
        fleet.stop()


def _turn(fleet: SparkFleet, options: Mapping[str, object], has_moment: bool) -> Turn:
    more = {"keys": _SHAPE.keys, "concurrency": _UNDER_WAY, "duration_s": _TURN_S, "newest": has_moment}
    serving = [pid for name, pid in fleet.pids.items() if name != fleet.spark.process.name]
    before = cpu_seconds(serving)
    report = load({**options, **more})
    return Turn(has_moment, (cpu_seconds(serving) - before) * 1e6 / report["requests"]["by_outcome"]["ok"])


@contextmanager
def _writing(bootstrap: str) -> Iterator[None]:
    """Write keys anew, a second's worth at a time, during the context."""
    is_over = threading.Event()

    def write() -> None:
        begin = 0
        while not is_over.wait(_PAUSE_S):
            produce(bootstrap, _TOPIC, _SHAPE.partitions, range(begin, begin + _RENEWED))
            begin = (begin + _RENEWED) % _SHAPE.keys

    thread = threading.Thread(target=write, name="writes")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
