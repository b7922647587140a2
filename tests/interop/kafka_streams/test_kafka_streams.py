"""The changelogs of a real Kafka Streams application, served by our nodes, against its own interactive queries.

`app/` counts the words of lines into a key-value, a window and a session store and joins two streams, whose two join
stores keep duplicates. When all its input is committed it writes down what its interactive queries see, and ends.
Then a static topology serves its changelogs, which nobody has prepared for that, and must answer the same.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from statehouse.contract.partitioning import partition_for
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import query_service_pb2, types_pb2
from tests.interop.kafka_streams.program import KafkaStreamsPrograms
from tests.support.fleet import ServerProcess
from tests.support.kafka import DEADLINE_S, create_topic, read_all, read_all_with_timestamps
from tests.support.polling import poll_until

PARTITIONS: Final = 3
SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
JOIN_STORES: Final = ("join-this-join-store", "join-other-join-store")
STORES: Final = ("counts", "windows", "sessions", *JOIN_STORES)
WINDOW_STORES: Final = ("windows", *JOIN_STORES)
# Words that begin with one another, that hold the bytes which an order by key has to escape, and from beyond ASCII.
WORDS: Final = (
    *("a", "ab", "abc", "a\0", "a\0b", "a\x01", "\0", "zebra", "Zebra", "42", '"quoted"', "back\\slash"),
    *("straße", "naïve", "東京", "ﬀ", "\uffff", "😀", "😀😀", "привет", "مرحبا", "e\u0301", "é", "x" * 300),
)
ABSENT: Final = "never-written"
# A range of keys, both inclusive: some of the words are below it, some above.
LOWEST, HIGHEST = "a", "zebra"
# Retentions and sizes are those of the application's topology.
TOPOLOGY: Final = """
application_id = "{app}"
[[stores]]
name = "counts"
query = "words"
value_serde = "long"
[[stores]]
name = "windows"
query = "words"
kind = "window"
value_serde = "long"
retention_ms = 3600000
window_size_ms = 60000
[[stores]]
name = "sessions"
query = "words"
kind = "session"
value_serde = "long"
retention_ms = 3600000
[[stores]]
name = "join-this-join-store"
query = "words"
kind = "window"
value_serde = "string"
retention_ms = 1800000
window_size_ms = 120000
retain_duplicates = true
[[stores]]
name = "join-other-join-store"
query = "words"
kind = "window"
value_serde = "string"
retention_ms = 1800000
window_size_ms = 120000
retain_duplicates = true
"""

Line = tuple[int, str]
Timed = tuple[int, int, Any]
"""Start, end and value of a window or session."""


def dumped(
    programs: KafkaStreamsPrograms, bootstrap: str, app: str, guarantee: str, directory: Path, span_ms: tuple[int, int]
) -> Dump:
    """Run the application to the end of its input; return what its interactive queries saw."""
    file = directory / "dump.jsonl"
    arguments = (bootstrap, app, PARTITIONS, directory / "kafka-streams", guarantee, file, LOWEST, HIGHEST, *span_ms)
    programs.run("WordStores", *arguments, log=directory / "kafka-streams.log")
    return Dump.load(file)


@dataclass(frozen=True, slots=True)
class Dump:
    """What the application's interactive queries saw."""

    entries: dict[int, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    """The key-value store by partition, in its order."""
    timed: dict[str, dict[str, list[Timed]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    """The other stores by name and key; under the name with "-range" a range of their windows."""

    @classmethod
    def load(cls, file: Path) -> Dump:
        dump = cls()
        for line in file.read_text(encoding="ascii").splitlines():
            entry = json.loads(line)
            assert partition_for(entry["key"].encode(), PARTITIONS) == entry["partition"], line
            if entry["store"] == "counts":
                dump.entries[entry["partition"]].append((entry["key"], entry["value"]))
            else:
                found = dump.timed[entry["store"]][entry["key"]]
                found.append((entry["start"], entry["end"], entry["value"]))
        return dump

    def size(self, store: str) -> int:
        by_key = self.entries if store == "counts" else self.timed[store]
        return sum(map(len, by_key.values()))


def lines_of(seed: int, count: int, first_ms: int, step_ms: int) -> list[Line]:
    """Return lines in order of arrival: their times go forward, now and then by leaps back of up to three minutes.

    Every seventeenth is followed by a word at two times that are two sessions, and then by a record between that makes
    them one. Some lines hold a word twice, some times are the first or the last of a window.
    """
    source = random.Random(seed)
    lines: list[Line] = []
    for index in range(count):
        time_ms = first_ms + index * step_ms + source.randrange(-90 * SECOND, 90 * SECOND)
        if index % 5 == 0:
            time_ms -= time_ms % MINUTE + index % 2
        words = source.choices(WORDS, k=source.randint(1, 5))
        if index % 4 == 0:
            words += words[:1]
        lines.append((time_ms, " ".join([*words, f"line-{index}"] if index % 3 == 0 else words)))
        if index % 17 == 0:
            lines += [(time_ms + offset, f"merge-{index % 2}") for offset in (0, 50 * SECOND, 25 * SECOND)]
    return lines


def produce_lines(bootstrap: str, topic: str, lines: Sequence[Line]) -> None:
    create_topic(bootstrap, topic)
    failures: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for time_ms, line in lines:
        producer.produce(topic, value=line.encode(), timestamp=time_ms, on_delivery=delivered)
        producer.poll(0)
    assert (producer.flush(DEADLINE_S), failures) == (0, [])


@contextmanager
def serving(bootstrap: str, app: str, directory: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Serve the changelogs; yield a node and a router once all of them is restored."""
    file = directory / "topology.toml"
    file.write_text(TOPOLOGY.format(app=app))
    common = {"bootstrap": bootstrap, "heartbeat-interval-ms": 200, "session-timeout-ms": 5000}
    node_port, router_port = free_port(), free_port()
    static = ServerProcess("static", "processor.cli", {"static": file, **common}, 0, directory)
    node_options = {"instance-id": "n1", "application-id": app, "port": node_port, "state-dir": directory / "state"}
    node = ServerProcess("n1", "query_service", node_options | common, node_port, directory)
    router_options = {"application-id": app, "port": router_port, "bootstrap": bootstrap}
    router = ServerProcess("router", "router", router_options, router_port, directory)

    def restored() -> bool:
        tasks = node.node().tasks
        stores = [store for task in tasks for store in task.stores]
        return (
            len(tasks) == PARTITIONS
            and all(task.state == "running" for task in tasks)
            and len(stores) == PARTITIONS * len(STORES)
            and all(store.HasField("lag") and store.lag == 0 for store in stores)
        )

    def routed() -> bool:
        requests = [query_service_pb2.GetRequest(store="counts", key=types_pb2.Key(text=word)) for word in WORDS]
        answer = router.call(router.query.BatchGet, query_service_pb2.BatchGetRequest(requests=requests))
        return all(result.HasField("response") for result in answer.results)

    try:
        for process in (static, node, router):
            process.start()
        poll_until(restored, 120, "the node to restore every store")
        poll_until(routed, 60, "the router to know every partition")
        yield node, router
        assert static.stop(signal.SIGTERM) == 0
    finally:
        for process in (static, node, router):
            process.close()


def value_of(value: types_pb2.Value) -> Any:
    return getattr(value, str(value.WhichOneof("value")))


def scanned(server: ServerProcess, partition: int, page_size: int, *, reverse: bool = False) -> list[tuple[str, int]]:
    entries: list[tuple[str, int]] = []
    request = query_service_pb2.ScanRequest(store="counts", partition=partition, page_size=page_size, reverse=reverse)
    while True:
        page = server.call(server.query.Scan, request)
        entries += [(entry.key.text, value_of(entry.value)) for entry in page.entries]
        if not page.next_page_token:
            return entries
        request.page_token = page.next_page_token


def fetched(router: ServerProcess, store: str, key: str, page_size: int) -> list[Timed]:
    """Return the windows or sessions of a key, oldest first."""
    found: list[Timed] = []
    if store == "sessions":
        method, request_type, entries_field = router.query.FetchSessions, "FetchSessionsRequest", "sessions"
    else:
        method, request_type, entries_field = router.query.FetchWindows, "FetchWindowsRequest", "windows"
    request = getattr(query_service_pb2, request_type)(store=store, key=types_pb2.Key(text=key), page_size=page_size)
    while True:
        page = router.call(method, request)
        found += [(each.start_ms, each.end_ms, value_of(each.value)) for each in getattr(page, entries_field)]
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def scanned_windows(router: ServerProcess, store: str, page_size: int, **fields: Any) -> list[tuple[str, Timed]]:
    """Return the windows of all keys, or of a range, in the router's order."""
    found: list[tuple[str, Timed]] = []
    request = query_service_pb2.ScanWindowsRequest(store=store, page_size=page_size, **fields)
    while True:
        page = router.call(router.query.ScanWindows, request)
        found += [
            (each.key.text, (each.window.start_ms, each.window.end_ms, value_of(each.window.value)))
            for each in page.windows
        ]
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def counted(router: ServerProcess, store: str) -> int:
    return router.call(router.query.Count, query_service_pb2.CountRequest(store=store, exact=True), 30.0).count


def assert_key_value_store_is_same(node: ServerProcess, router: ServerProcess, dump: Dump, page_size: int) -> None:
    assert len(dump.entries) == PARTITIONS, "a partition without a key would prove nothing"
    for partition, entries in dump.entries.items():
        assert scanned(router, partition, page_size) == entries
        assert scanned(node, partition, page_size) == entries
        assert scanned(router, partition, page_size, reverse=True) == entries[::-1]
    all_entries = [entry for entries in dump.entries.values() for entry in entries]
    for first in range(0, len(all_entries), 500):
        some = all_entries[first : first + 500]
        requests = [query_service_pb2.GetRequest(store="counts", key=types_pb2.Key(text=key)) for key, _ in some]
        answer = router.call(router.query.BatchGet, query_service_pb2.BatchGetRequest(requests=requests), 30.0)
        assert [value_of(result.response.value) for result in answer.results] == [value for _, value in some]
    assert not router.get(ABSENT).found


def assert_timed_stores_are_same(router: ServerProcess, dump: Dump, keys: set[str], page_size: int) -> None:
    for store in STORES[1:]:
        theirs = dump.timed[store]
        assert theirs.keys() <= keys
        for key in sorted(keys):
            # Those of a key in its order too: windows and duplicates by start and arrival, sessions by time.
            assert fetched(router, store, key, page_size) == theirs.get(key, []), (store, key)


def assert_ranges_are_same(router: ServerProcess, dump: Dump, span_ms: tuple[int, int], page_size: int) -> None:
    """Compare scans of windows with Kafka Streams' `all()` and `fetch(keyFrom, keyTo, timeFrom, timeTo)`.

    Theirs come segment by segment; the windows of one key are in the same order in both.
    """
    first_ms, last_ms = span_ms
    bounds = {"from_key": types_pb2.Key(text=LOWEST), "to_key": types_pb2.Key(text=HIGHEST)}
    span = {"from_ms": first_ms, "to_ms": last_ms}
    for store in WINDOW_STORES:
        for theirs, fields in ((dump.timed[store], {}), (dump.timed[f"{store}-range"], bounds | span)):
            ours = scanned_windows(router, store, page_size, **fields)
            assert [key for key, _ in ours] == sorted((key for key, _ in ours), key=str.encode)
            by_key: dict[str, list[Timed]] = defaultdict(list)
            for key, window in ours:
                by_key[key].append(window)
            assert by_key == theirs, (store, fields)
            backwards = scanned_windows(router, store, page_size, reverse=True, **fields)
            assert backwards == ours[::-1]
        assert 0 < dump.size(f"{store}-range") < dump.size(store), "the range has some of them, and not all"


def timestamps(bootstrap: str, app: str, store: str) -> dict[bytes, int]:
    """Return the timestamp of the last record of each key in a changelog, of those that are not deleted."""
    last: dict[bytes, int] = {}
    for key, value, timestamp_ms in read_all_with_timestamps(bootstrap, f"{app}-{store}-changelog", range(PARTITIONS)):
        assert key is not None
        last.pop(key, None)
        if value is not None:
            last[key] = timestamp_ms
    return last


def assert_timestamps_are_those_of_the_changelogs(bootstrap: str, app: str, router: ServerProcess, dump: Dump) -> None:
    """Compare the timestamps of all that is served with those that Kafka Streams gave to the changelogs' records."""
    counts = timestamps(bootstrap, app, "counts")
    for key, _ in [entry for entries in dump.entries.values() for entry in entries]:
        assert router.get(key, store="counts").timestamp_ms == counts[key.encode()]
    scan = query_service_pb2.ScanRequest(store="counts", page_size=1_000)
    page = router.call(router.query.Scan, scan, 30.0)
    assert all(entry.timestamp_ms == counts[entry.key.text.encode()] for entry in page.entries)
    for store in WINDOW_STORES:
        written = timestamps(bootstrap, app, store)
        windows = router.call(
            router.query.ScanWindows, query_service_pb2.ScanWindowsRequest(store=store, page_size=1_000), 30.0
        ).windows
        assert windows
        for each in windows:
            key = WindowKey(each.key.text.encode(), each.window.start_ms, each.sequence).to_bytes()
            assert each.window.timestamp_ms == written[key], store
    written = timestamps(bootstrap, app, "sessions")
    sessions = router.call(
        router.query.ScanSessions, query_service_pb2.ScanSessionsRequest(store="sessions", page_size=1_000), 30.0
    ).sessions
    assert sessions
    for each in sessions:
        key = SessionKey(each.key.text.encode(), each.session.start_ms, each.session.end_ms).to_bytes()
        assert each.session.timestamp_ms == written[key]
    assert len({*counts.values(), *written.values()}) > 10, "the records have times of their own"


def assert_sessions_of_all_keys_are_same(router: ServerProcess, dump: Dump, page_size: int) -> None:
    """Compare a scan of all sessions with those of each key in Kafka Streams."""
    found: dict[str, list[Timed]] = defaultdict(list)
    request = query_service_pb2.ScanSessionsRequest(store="sessions", page_size=page_size)
    keys: list[str] = []
    while True:
        page = router.call(router.query.ScanSessions, request)
        for each in page.sessions:
            keys.append(each.key.text)
            found[each.key.text].append((each.session.start_ms, each.session.end_ms, value_of(each.session.value)))
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert keys == sorted(keys, key=str.encode)
    assert found == dump.timed["sessions"]


def changelog_keys(bootstrap: str, app: str, store: str) -> tuple[set[bytes], set[bytes]]:
    """Return the keys whose last record in a changelog is a value, and those whose last is a tombstone."""
    last: dict[bytes, bytes | None] = {}
    for key, value in read_all(bootstrap, f"{app}-{store}-changelog", range(PARTITIONS)):
        assert key is not None
        last[key] = value
    deleted = {key for key, value in last.items() if value is None}
    return last.keys() - deleted, deleted


def assert_changelogs_are_telling(bootstrap: str, app: str, dump: Dump) -> None:
    """Fail where the comparison would be about too little: no expiry, no merged sessions, no duplicates."""
    windows, _ = changelog_keys(bootstrap, app, "windows")
    live = {
        WindowKey(key.encode(), start).to_bytes() for key, each in dump.timed["windows"].items() for start, _, _ in each
    }
    assert live < windows, "no window has expired"
    sessions, merged = changelog_keys(bootstrap, app, "sessions")
    live_sessions = {
        SessionKey(key.encode(), start, end).to_bytes()
        for key, each in dump.timed["sessions"].items()
        for start, end, _ in each
    }
    assert merged, "no session has been merged"
    assert live_sessions < sessions, "no session has expired"
    assert any(key.startswith("merge-") and end - start == 50 * SECOND for key, start, end in _bounds(dump))
    for store in JOIN_STORES:
        starts = Counter((key, start) for key, each in dump.timed[store].items() for start, _, _ in each)
        assert max(starts.values()) > 1, f"no duplicates in {store}"
        values, _ = changelog_keys(bootstrap, app, store)
        assert len(values) > dump.size(store), f"nothing has expired in {store}"


def _bounds(dump: Dump) -> Iterator[tuple[str, int, int]]:
    for key, sessions in dump.timed["sessions"].items():
        for start, end, _ in sessions:
            yield key, start, end


def compare(
    kafka: EmbeddedKafka,
    programs: KafkaStreamsPrograms,
    app: str,
    directory: Path,
    *,
    guarantee: str,
    lines: Sequence[Line],
    replies: Sequence[Line],
    page_size: int,
) -> Dump:
    produce_lines(kafka.bootstrap, f"{app}-lines", lines)
    produce_lines(kafka.bootstrap, f"{app}-replies", replies)
    last_ms = max(time_ms for time_ms, _ in [*lines, *replies])
    span_ms = (last_ms - 45 * MINUTE, last_ms - 10 * MINUTE)
    dump = dumped(programs, kafka.bootstrap, app, guarantee, directory, span_ms)
    expected = Counter(word for _, line in lines for word in line.split(" "))
    assert dict(entry for entries in dump.entries.values() for entry in entries) == expected, "all input is processed"
    keys = {word for _, line in [*lines, *replies] for word in line.split(" ")} | {ABSENT}
    with serving(kafka.bootstrap, app, directory) as (node, router):
        assert_key_value_store_is_same(node, router, dump, page_size)
        assert_timed_stores_are_same(router, dump, keys, page_size)
        assert_ranges_are_same(router, dump, span_ms, page_size)
        assert_sessions_of_all_keys_are_same(router, dump, page_size)
        assert_timestamps_are_those_of_the_changelogs(kafka.bootstrap, app, router, dump)
        for store in STORES:
            assert counted(router, store) == dump.size(store), f"{store}: as many as they have, over all keys"
    return dump


def hours_ago(hours: int) -> int:
    """Return a full hour: brokers delete what is much older than their clocks, and segments of time begin at it."""
    return (int(time.time() * 1000) // HOUR - hours) * HOUR


@pytest.mark.feature("key-layouts-those")
@pytest.mark.feature("windows-several-values")
@pytest.mark.timeout(900)  # the first build fetches the application's dependencies
@pytest.mark.parametrize("guarantee", ["at_least_once", pytest.param("exactly_once_v2", marks=pytest.mark.long)])
def test_a_kafka_streams_application_is_served_unchanged(
    kafka: EmbeddedKafka,
    programs: KafkaStreamsPrograms,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    guarantee: str,
) -> None:
    first_ms = hours_ago(6)
    app = unique_name("words")
    dump = compare(
        kafka,
        programs,
        app,
        tmp_path,
        guarantee=guarantee,
        lines=lines_of(1, 200, first_ms, MINUTE),
        replies=lines_of(2, 200, first_ms, MINUTE),
        page_size=3,
    )
    assert_changelogs_are_telling(kafka.bootstrap, app, dump)


@pytest.mark.long
def test_a_large_kafka_streams_application_is_served_unchanged(
    kafka: EmbeddedKafka, programs: KafkaStreamsPrograms, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    first_ms = hours_ago(24)
    dump = compare(
        kafka,
        programs,
        unique_name("words"),
        tmp_path,
        guarantee="exactly_once_v2",
        lines=lines_of(3, 30_000, first_ms, 2 * SECOND),
        replies=lines_of(4, 30_000, first_ms, 2 * SECOND),
        page_size=500,
    )
    assert dump.size("counts") > 10_000
    assert min(dump.size(store) for store in STORES[1:]) > 1_000
