"""`statehouse verify` of a real fleet: what is planted in a replica is found, named and restored; nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from query_service.stores.segments import Segments
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import SESSION, WINDOW
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.local.kafka import EmbeddedKafka
from tests.support.compared_store import ENTRIES, ComparedStore, named
from tests.support.fleet import Fleet
from tests.support.planted import Planted

PARTITIONS: Final = 2
COUNT: Final = 3_000


@pytest.fixture(params=["go", "python"])
def written(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[ComparedStore]:
    with Fleet(kafka.bootstrap, unique_name("verify"), tmp_path, partitions=PARTITIONS) as fleet:
        store = ComparedStore(fleet, request.param, COUNT)
        store.load()
        yield store
        store.close()


PLANTED: Final = (
    Planted(b"entry-0000007", b"another", 1_000),
    Planted(b"entry-0000008", None),
    Planted(b"never-written", b"extra", 1_000),
)


@pytest.mark.feature("replicas-compared")
def test_what_differs_is_named_and_restored(written: ComparedStore) -> None:
    code, document, told = written.verify()
    assert (code, document["differences"]) == (0, []), told
    assert {each["result"] for each in document["copies"]} == {"equal"}
    assert [each["copy"] for each in document["copies"]] == ["log", "node-a", "node-b", "log", "node-b", "node-a"]
    assert sum(each["entries"] for each in document["copies"] if each["copy"] == "log") == COUNT

    written.plant("node-b", *PLANTED)
    wrong = {
        ("node-b", "entry-0000007", "wrong value"),
        ("node-b", "entry-0000008", "missing"),
        ("node-b", "never-written", "extra"),
    }
    code, document, told = written.verify()
    assert (code, named(document)) == (1, wrong), told
    partitions = {each["key"]: each["partition"] for each in document["differences"]}
    assert partitions == {key: partition_for(key.encode(), PARTITIONS) for _, key, _ in wrong}
    code, document, told = written.verify("--no-log")
    assert (code, {each["wrong"] for each in document["differences"]}) == (1, {"differs"}), told
    assert {each["key"] for each in document["differences"]} == {key for _, key, _ in wrong}

    code, document, told = written.verify("--restore")
    assert (code, named(document)) == (0, wrong), told
    assert "node-b restores its replica" in told
    assert "node-a restores" not in told
    assert written.verify()[0] == 0
    assert "fault=differed" in written.nodes["node-b"].log.replace('"fault": "', "fault=").replace("'", "")


@pytest.mark.feature("replicas-compared")
def test_writes_and_a_kill_are_no_difference(written: ComparedStore) -> None:
    with written.work.going_on():
        for _ in range(2):
            code, document, told = written.verify()
            assert (code, document["differences"]) == (0, []), (document, told)
        written.nodes["node-b"].kill()
        code, document, told = written.verify("--patience", "1")
        assert code in {0, 4}, (document, told)
        written.nodes["node-b"].start()
        code, document, told = written.verify()
        assert (code, document["differences"]) == (0, []), (document, told)


RETENTION_MS: Final = 300_000
EVERY_MS: Final = 1_000
TIMED: Final = 900
SEGMENTS: Final = Segments(RETENTION_MS)


def timed_key(kind: str, number: int) -> WindowKey | SessionKey:
    """Return one of an hour's windows or sessions: the last five minutes of them are not expired."""
    key, start_ms = b"user-%d" % (number % 7), 3_600_000 + number * EVERY_MS
    return WindowKey(key, start_ms) if kind == WINDOW else SessionKey(key, start_ms, start_ms)


def planted_timed(kind: str, number: int, value: bytes | None) -> Planted:
    key = timed_key(kind, number)
    return Planted(key.to_entry_key(), value, 1_000, key.start_ms // SEGMENTS.interval_ms)


@pytest.mark.feature("replicas-compared")
@pytest.mark.parametrize(("kind", "engine"), [(WINDOW, "go"), (SESSION, "go"), (WINDOW, "python"), (SESSION, "python")])
def test_windows_and_sessions_that_are_not_expired_are_compared(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, kind: str, engine: str
) -> None:
    read = WindowKey.from_bytes if kind == WINDOW else SessionKey.from_bytes
    with Fleet(kafka.bootstrap, unique_name("timed"), tmp_path, partitions=1) as fleet:
        store = ComparedStore(
            fleet,
            engine,
            TIMED,
            key=lambda number: timed_key(kind, number).to_bytes(),
            plain=lambda key: read(key).key,
            changelog_config={"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"},
            kind=kind,
            retention_ms=RETENTION_MS,
            window_size_ms=EVERY_MS if kind == WINDOW else 0,
        )
        store.load()
        # The last one is deleted, but it has moved the stream time on.
        live = range(TIMED + 1 - RETENTION_MS // EVERY_MS, TIMED)
        wrong, missing, extra, expired = live[5], live[6], live[7], live[0] - 1
        store.write({store.key(extra): None})
        code, document, told = store.verify()
        assert (code, document["differences"]) == (0, []), told
        assert [each["entries"] for each in document["copies"]] == [len(live) - 1] * 3

        planted = [
            planted_timed(kind, wrong, b"another"),
            planted_timed(kind, missing, None),
            planted_timed(kind, extra, b"extra"),
            planted_timed(kind, expired, b"nobody sees it"),
        ]
        assert len({each.segment for each in planted}) == 1, "the expired one is where others are live"
        store.plant("node-b", *planted)
        code, document, told = store.verify()
        assert code == 1, told
        found = {each["start_ms"]: (each["replica"], each["key"], each["wrong"]) for each in document["differences"]}
        assert found == {
            timed_key(kind, number).start_ms: ("node-b", f"user-{number % 7}", what)
            for number, what in ((wrong, "wrong time"), (missing, "missing"), (extra, "extra"))
        }
        code, document, told = store.verify("--restore")
        assert (code, len(document["differences"])) == (0, 3), told

        # What the broker has deleted is in no fresh replica, as is the one that node-b makes of the log.
        at = TopicPartition(fleet.stores[ENTRIES].changelog_topic, 0, OFFSET_END)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        (deleted,) = admin.delete_records([at]).values()
        deleted.result()
        store.write({store.key(live[-1]): b"again"})
        store.plant("node-b")
        code, document, told = store.verify()
        assert (code, document["differences"]) == (0, []), told
        assert {each["entries"] for each in document["copies"]} == {0}, (
            "the log has nothing for sure that is a minute old"
        )
        store.close()
