"""Compaction of a versioned store's changelog takes nothing from the history that as-of reads may ask for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.kafka import read_all
from tests.support.polling import poll_until
from tests.support.refusals import why_refused

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
HISTORY_MS = 60 * MINUTE
KEYS = ("a", "b", "c", "gone")

# As the processor creates the topic, but with segments as small as can be, for the cleaner to have work.
CONFIG = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": str(HISTORY_MS + DAY),
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
}


@pytest.mark.long
def test_as_of_answers_survive_compaction_and_a_restore(unique_name: Callable[[str], str], tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    with (
        EmbeddedKafka(data_dir=tmp_path / "kafka", config={"log.cleaner.backoff.ms": "100"}) as kafka,
        Fleet(
            kafka.bootstrap,
            unique_name("app"),
            tmp_path,
            partitions=1,
            kind="versioned",
            retention_ms=HISTORY_MS,
            changelog_config=CONFIG,
        ) as fleet,
    ):
        followed = fleet.node("followed")
        fleet.assign(TaskAssignment("followed"))
        fleet.wait_running([followed])
        # Long before the history: only the last of these may be asked for.
        for nth in range(10):
            fleet.put_records(version(key, nth, now_ms - 3 * DAY + nth * MINUTE) for key in KEYS)
        for nth in range(10, 70):
            fleet.put_records(version(key, nth, now_ms - (90 - nth) * MINUTE) for key in KEYS[:2])
        fleet.put_records([("gone", b"gone", None, now_ms - 21 * MINUTE), version("a", 70, now_ms)])
        poll_until(lambda: as_of(followed, "a", now_ms) == (True, "a-70", now_ms), 20, "the last version")

        def is_compacted() -> bool:
            left = Counter(key for key, _ in read_all(fleet.bootstrap, fleet.changelog))
            return left[b"c"] == 1

        poll_until(is_compacted, 60, "the versions before the history to be compacted away")

        restored = fleet.node("restored")
        fleet.reassign(0, standbys=("restored",))
        fleet.wait_running([restored])
        start_ms = now_ms - HISTORY_MS
        times = [start_ms, start_ms + 1, *range(start_ms + MINUTE // 2, now_ms + 1, MINUTE // 2), now_ms]
        for key in KEYS:
            answers = [as_of(followed, key, at_ms) for at_ms in times]
            assert [as_of(restored, key, at_ms) for at_ms in times] == answers
            assert len(set(answers)) == {"a": 41, "b": 40, "c": 1, "gone": 2}[key]
            for node in (followed, restored):
                assert refusal(node, key, start_ms - 1) is Reason.BEFORE_HISTORY
        read_again = restored.node().tasks[0].stores[0].restored_records
        assert read_again < 4 * 10 + 2 * 60 + 2, "the restore read a compacted log"


def version(key: str, nth: int, at_ms: int) -> tuple[str, bytes, bytes, int]:
    return key, key.encode(), f"{key}-{nth}".encode(), at_ms


def as_of(node: ServerProcess, key: str, at_ms: int) -> tuple[bool, str, int]:
    request = query_service_pb2.GetAsOfRequest(store=STORE, key=types_pb2.Key(text=key), as_of_ms=at_ms)
    answer: Any = node.call(node.query.GetAsOf, request)
    return answer.found, answer.value.text, answer.timestamp_ms


def refusal(node: ServerProcess, key: str, at_ms: int) -> Reason | None:
    return why_refused(lambda: as_of(node, key, at_ms))
