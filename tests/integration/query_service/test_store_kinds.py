"""Window, session, versioned and in-memory stores on a real node, asked directly and through a router."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from statehouse.cli.main import app
from statehouse.client import (
    Answer,
    Client,
    Entry,
    Freshness,
    KeyedSession,
    Lookup,
    Session,
    VersionedRecord,
    Window,
)
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import Fleet, ServerProcess
from tests.support.metrics import scrape
from tests.support.polling import poll_until
from tests.support.shared import ServedStore, new_store, shared_fleet

MINUTE = 60_000
Serve = Callable[..., ServedStore]


@pytest.fixture(scope="module")
def fleet(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A node, and a router."""
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "kinds") as fleet:
        fleet.node("n1")
        fleet.router()
        yield fleet


@pytest.fixture
def node(fleet: Fleet) -> ServerProcess:
    return fleet.processes[0]


@pytest.fixture
def router(fleet: Fleet) -> ServerProcess:
    return fleet.processes[1]


@pytest.fixture
def serve(fleet: Fleet, node: ServerProcess, unique_name: Callable[[str], str]) -> Serve:
    """Publish a store; a test that stops the node starts it again."""
    return lambda **spec: new_store(fleet, node, unique_name("store"), **spec)


@pytest.fixture
def client(router: ServerProcess) -> Iterator[Client]:
    with Client(router.target, timeout=30) as client:
        yield client


def windows_of(process: ServerProcess, store: ServedStore, key: str, **fields: Any) -> list[tuple[int, str]]:
    """Fetch all pages of a key's windows."""
    request = query_service_pb2.FetchWindowsRequest(store=store.name, key=types_pb2.Key(text=key), **fields)
    found = []
    while True:
        page = process.call(process.query.FetchWindows, request)
        found += [(window.start_ms, window.value.text) for window in page.windows]
        assert all(window.end_ms == window.start_ms + MINUTE for window in page.windows)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


@pytest.mark.feature("key-value-window")
def test_window_store(serve: Serve, fleet: Fleet, node: ServerProcess, router: ServerProcess) -> None:
    store = serve(kind="window", retention_ms=10 * MINUTE, window_size_ms=MINUTE)
    # One key is the other's prefix, and both have windows at the same times.
    keys = [fleet.keys_in(0)[0], fleet.keys_in(0)[0] + "\0"]
    store.put_records(
        (key, WindowKey(key.encode(), n * MINUTE).to_bytes(), f"{key}-{n}".encode(), n * MINUTE)
        for n in range(9)
        for key in keys
    )
    key = keys[0]
    expected = [(n * MINUTE, f"{key}-{n}") for n in range(9)]
    poll_until(lambda: windows_of(node, store, key) == expected, 20, "all windows")
    assert windows_of(node, store, key, page_size=2) == expected
    assert windows_of(node, store, key, page_size=4, reverse=True) == expected[::-1]
    assert windows_of(node, store, key, from_ms=2 * MINUTE, to_ms=4 * MINUTE) == expected[2:5]

    poll_until(lambda: succeeds(lambda: windows_of(router, store, key, page_size=3)), 20, "the router")
    assert windows_of(router, store, key, page_size=3) == expected

    # Stream time moves on: what is older than the retention is gone, whole segments of it from the disk, too.
    late = WindowKey(key.encode(), 3 * MINUTE).to_bytes()
    store.put_records(
        [
            (key, WindowKey(key.encode(), 15 * MINUTE).to_bytes(), b"new", 15 * MINUTE),
            (key, late, b"late", 16 * MINUTE),
            (key, b"short", b"unreadable", 16 * MINUTE),
        ]
    )
    poll_until(lambda: windows_of(node, store, key)[-1] == (15 * MINUTE, "new"), 20, "the new window")
    assert windows_of(node, store, key)[0] == (6 * MINUTE, f"{key}-6")
    poll_until(lambda: store.replica().skipped_records == 1, 20, "the unreadable record")
    poll_until(lambda: store.replica().late_records == 1, 20, "the late record")

    # A restart finds the same, and still knows the stream time.
    node.kill()
    node.start()
    fleet.wait_running([node])
    assert windows_of(node, store, key)[0] == (6 * MINUTE, f"{key}-6")

    with pytest.raises(LookupFailure) as failure:
        store.get(key)
    assert failure.value.reason is Reason.WRONG_STORE_KIND


def scanned_windows(process: ServerProcess, store: ServedStore, **fields: Any) -> list[tuple[str, int, int, str]]:
    """Scan all pages of windows, as (key, start, sequence, value)."""
    request = query_service_pb2.ScanWindowsRequest(store=store.name, **fields)
    found = []
    while True:
        page = process.call(process.query.ScanWindows, request)
        found += [(each.key.text, each.window.start_ms, each.sequence, each.window.value.text) for each in page.windows]
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


@pytest.mark.feature("fetchwindows-scanwindows")
def test_scan_of_windows(serve: Serve, fleet: Fleet, node: ServerProcess, router: ServerProcess) -> None:
    spec = {"kind": "window", "retention_ms": 60 * MINUTE, "window_size_ms": MINUTE, "retain_duplicates": True}
    store = serve(**spec)
    keys = [*fleet.keys_in(0, 3), *fleet.keys_in(1, 3), fleet.keys_in(0)[0] + "\0"]
    expected = [
        (key, n * MINUTE, sequence, f"{key}-{n}-{sequence}")
        for key in sorted(keys, key=str.encode)
        for n in range(5)
        for sequence in (0, 1, 2**31 - 1)
    ]
    store.put_records(
        (key, WindowKey(key.encode(), start_ms, sequence).to_bytes(), value.encode(), start_ms)
        for key, start_ms, sequence, value in reversed(expected)
    )
    poll_until(lambda: succeeds(lambda: scanned_windows(router, store)), 20, "the router")
    poll_until(lambda: scanned_windows(router, store) == expected, 20, "all windows")
    assert scanned_windows(router, store, page_size=4) == expected
    assert scanned_windows(router, store, page_size=7, reverse=True) == expected[::-1]
    first, last = sorted((keys[1], keys[4]), key=str.encode)
    some = [each for each in expected if first <= each[0] <= last and MINUTE <= each[1] <= 3 * MINUTE]
    bounds = {"from_key": types_pb2.Key(text=first), "to_key": types_pb2.Key(text=last)}
    assert scanned_windows(router, store, **bounds, from_ms=MINUTE, to_ms=3 * MINUTE, page_size=5) == some
    for partition in range(2):
        mine = [each for each in expected if fleet.partition_of(each[0]) == partition]
        assert scanned_windows(node, store, partition=partition, page_size=6) == mine
    prefix = types_pb2.Key(text=keys[0])
    assert {each[0] for each in scanned_windows(router, store, prefix=prefix)} >= {keys[0], keys[0] + "\0"}

    with pytest.raises(LookupFailure) as failure:
        node.call(node.query.Scan, query_service_pb2.ScanRequest(store=store.name, partition=0))
    assert failure.value.reason is Reason.WRONG_STORE_KIND
    assert "ScanWindows" in failure.value.message


@pytest.mark.feature("key-value-window")
@pytest.mark.feature("fetchsessions")
def test_session_store(serve: Serve, fleet: Fleet, node: ServerProcess) -> None:
    store = serve(kind="session", retention_ms=10 * MINUTE, in_memory=True)
    key = fleet.keys_in(1)[0]
    merged = SessionKey(key.encode(), 2_000, 3_000)
    sessions = [SessionKey(key.encode(), 0, 1_000), merged, SessionKey(key.encode(), 5_000, 9_000)]
    store.put_records((key, each.to_bytes(), b"%d" % each.start_ms, each.end_ms) for each in sessions)
    store.put_records([(key, merged.to_bytes(), None, 9_000)])

    def fetch(**fields: Any) -> list[tuple[int, int, str]]:
        request = query_service_pb2.FetchSessionsRequest(store=store.name, key=types_pb2.Key(text=key), **fields)
        page = node.call(node.query.FetchSessions, request)
        return [(each.start_ms, each.end_ms, each.value.text) for each in page.sessions]

    expected = [(0, 1_000, "0"), (5_000, 9_000, "5000")]
    poll_until(lambda: fetch() == expected, 20, "the sessions, less the merged one")
    assert fetch(from_ms=1_000, to_ms=4_999) == expected[:1]
    assert fetch(from_ms=1_001, to_ms=5_000) == expected[1:]
    assert fetch(reverse=True) == expected[::-1]
    assert not [path for path in (fleet.directory / "n1").rglob(f"{store.name}/**/*") if path.is_file()], (
        "nothing of it is on disk"
    )
    node.kill()
    node.start()
    fleet.wait_running([node])
    assert fetch() == expected


@pytest.mark.feature("key-value-window")
@pytest.mark.feature("getasof-value-time")
def test_versioned_store(serve: Serve, fleet: Fleet, node: ServerProcess) -> None:
    store = serve(kind="versioned", retention_ms=10 * MINUTE)
    key = fleet.keys_in(0)[0]
    versions = [(MINUTE, b"one"), (3 * MINUTE, b"three"), (2 * MINUTE, b"two"), (4 * MINUTE, None)]
    store.put_records((key, key.encode(), value, at) for at, value in versions)

    def as_of(at_ms: int | None) -> tuple[bool, str, int]:
        request = query_service_pb2.GetAsOfRequest(store=store.name, key=types_pb2.Key(text=key), as_of_ms=at_ms)
        answer = node.call(node.query.GetAsOf, request)
        return answer.found, answer.value.text, answer.timestamp_ms

    poll_until(lambda: not as_of(None)[0] and as_of(3 * MINUTE)[0], 20, "all versions")
    assert as_of(0) == (False, "", 0)
    assert as_of(MINUTE) == (True, "one", MINUTE)
    assert as_of(2 * MINUTE + 1) == (True, "two", 2 * MINUTE)
    assert as_of(4 * MINUTE - 1) == (True, "three", 3 * MINUTE)
    assert not store.get(key).found

    store.put_records([(key, key.encode(), b"late", 20 * MINUTE)])
    poll_until(lambda: store.get(key).value.text == "late", 20, "the newest version")
    with pytest.raises(LookupFailure) as failure:
        as_of(MINUTE)
    assert failure.value.reason is Reason.BEFORE_HISTORY
    assert as_of(11 * MINUTE) == (False, "", 0)


@pytest.mark.feature("memory-bound-store")
@pytest.mark.parametrize("engine", ["go", "python"])
def test_memory_store_stops_its_task_before_the_budget_is_gone(
    serve: Serve, fleet: Fleet, node: ServerProcess, engine: str
) -> None:
    store = serve(in_memory=True)
    first, second = fleet.keys_in(0)[0], fleet.keys_in(1)[0]
    store.put({first: "1", second: "2"})
    poll_until(lambda: store.get(first).found and store.get(second).found, 20, "the values")
    port = free_port()
    small = fleet.node(f"small-{engine}", engine=engine, memory_store_max_bytes=50_000, metrics_port=port)
    fleet.reassign(0, standbys=(small.name,))
    fleet.wait_running([small])
    assert small.get(first, store=store.name).found
    store.put(dict.fromkeys(fleet.keys_in(0, 100), "x" * 1000))
    task = poll_until(lambda: [t for t in small.node().tasks if t.state == "error"], 20, "the task to stop")[0]
    assert re.search(r"\d+ bytes where the budget is 50000: raise memory_store_max_bytes", task.error)
    assert scrape(port).value("statehouse_node_faults_total", fault="memory_budget", outcome="task_stopped") == 1
    with pytest.raises(LookupFailure) as failure:
        small.get(first, store=store.name)
    assert failure.value.reason is Reason.TASK_FAILED
    assert store.get(second).found, "other tasks go on"
    small.kill()


def succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except LookupFailure:
        return False
    return True


@pytest.mark.feature("fetchwindows-scanwindows")
@pytest.mark.feature("changelog-record-timestamp")
def test_client_fetches_windows(serve: Serve, fleet: Fleet, client: Client) -> None:
    store = serve(kind="window", retention_ms=10 * MINUTE, window_size_ms=MINUTE)
    key = fleet.keys_in(1)[0]
    store.put_records(
        (key, WindowKey(key.encode(), n * MINUTE).to_bytes(), b"%d" % n, n * MINUTE + 1) for n in range(5)
    )
    expected = [Window(n * MINUTE, (n + 1) * MINUTE, str(n), n * MINUTE + 1) for n in range(5)]
    poll_until(lambda: succeeds(lambda: client.count(store.name)), 20, "the router")
    poll_until(lambda: list(client.fetch_windows(store.name, key, page_size=2)) == expected, 20, "the windows")
    span = {"from_ms": MINUTE, "to_ms": 3 * MINUTE}
    assert list(client.fetch_windows(store.name, key, **span, reverse=True)) == expected[3:0:-1]
    with pytest.raises(LookupFailure, match="WRONG_STORE_KIND"):
        list(client.fetch_sessions(store.name, key))


@pytest.mark.feature("fetchsessions")
def test_client_fetches_sessions(serve: Serve, fleet: Fleet, client: Client) -> None:
    store = serve(kind="session", retention_ms=10 * MINUTE)
    key = fleet.keys_in(1)[0]
    expected = [Session(n * 1_000, n * 1_000 + 500, str(n), n * 1_000 + 500) for n in range(5)]
    store.put_records(
        (key, SessionKey(key.encode(), each.start_ms, each.end_ms).to_bytes(), each.value.encode(), each.end_ms)
        for each in expected
    )
    poll_until(lambda: succeeds(lambda: client.count(store.name)), 20, "the router")
    poll_until(lambda: list(client.fetch_sessions(store.name, key, page_size=2)) == expected, 20, "the sessions")
    found = client.fetch_sessions(store.name, key, from_ms=1_500, to_ms=3_000, reverse=True, page_size=1)
    assert list(found) == expected[3:0:-1]


@pytest.mark.feature("getasof-value-time")
def test_client_gets_as_of_and_in_batches(serve: Serve, fleet: Fleet, client: Client) -> None:
    store = serve(kind="versioned", retention_ms=10 * MINUTE)
    keys = [*fleet.keys_in(0, 600), *fleet.keys_in(1, 600)]
    store.put_records((key, key.encode(), f"{key}-{n}".encode(), n * MINUTE) for n in (1, 3) for key in keys)
    poll_until(lambda: succeeds(lambda: client.count(store.name)), 20, "the router")
    poll_until(lambda: client.count(store.name, exact=True).count == len(keys), 20, "the keys")
    poll_until(lambda: all_latest(client, store.name, keys), 20, "more than one batch holds")
    answer = client.get_as_of(store.name, keys[0], 2 * MINUTE)
    assert (answer.found, answer.value, answer.timestamp_ms) == (True, f"{keys[0]}-1", MINUTE)
    assert not client.get_as_of(store.name, keys[0], 0).found
    wrong, absent = client.batch_get([Lookup("nowhere", keys[0]), Lookup(store.name, "absent")])
    assert isinstance(wrong, LookupFailure)
    assert wrong.reason is Reason.UNKNOWN_STORE
    assert isinstance(absent, Answer)
    assert not absent.found


def all_latest(client: Client, store: str, keys: list[str]) -> bool:
    """Tell whether one batch finds each key's second version."""
    outcomes = client.batch_get(Lookup(store, key, Freshness(max_staleness_ms=60_000)) for key in keys)
    return [isinstance(each, Answer) and each.value for each in outcomes] == [f"{key}-3" for key in keys]


@pytest.mark.feature("changelog-record-timestamp")
def test_entries_come_with_their_records_timestamps(
    serve: Serve, fleet: Fleet, node: ServerProcess, client: Client
) -> None:
    store = serve()
    keys = {fleet.keys_in(0)[0]: 1_700_000_000_001, fleet.keys_in(1)[0]: 1_700_000_000_002}
    store.put_records((key, key.encode(), b"12345678", written_ms) for key, written_ms in keys.items())
    poll_until(lambda: succeeds(lambda: client.count(store.name)), 20, "the router")
    poll_until(lambda: {each.key: each.timestamp_ms for each in client.scan(store.name)} == keys, 20, "the entries")

    def all_of_it() -> None:
        for key, written_ms in keys.items():
            answer = client.get(store.name, key)
            assert (answer.value, answer.timestamp_ms) == ("12345678", written_ms)
            with client.watch(store.name, key) as watch:
                current = next(update for update in watch if update.current)
                assert [(each.value, each.timestamp_ms) for each in current.changes] == [("12345678", written_ms)]
        found = client.batch_get([Lookup(store.name, key) for key in (*keys, "absent")])
        assert [isinstance(each, Answer) and each.timestamp_ms for each in found] == [*keys.values(), None]

    all_of_it()
    node.kill()
    node.start()
    fleet.wait_running([node])
    poll_until(lambda: succeeds(lambda: client.count(store.name)), 20, "the router")
    all_of_it()
    with pytest.raises(LookupFailure, match="has no Scan as of a time") as failure:
        list(client.scan(store.name, as_of_ms=1))
    assert failure.value.reason is Reason.WRONG_STORE_KIND


@pytest.mark.feature("answer-says-partition")
def test_every_answer_says_who_gave_it_and_how_fresh_it_is(serve: Serve, fleet: Fleet, node: ServerProcess) -> None:
    key, pb = fleet.keys_in(1)[0], query_service_pb2
    asked, one, here = types_pb2.Key(text=key), {"key": types_pb2.Key(text=key)}, {"partition": 1}
    query, retention = node.query, {"retention_ms": 10 * MINUTE}
    kinds: list[tuple[dict[str, Any], bytes, list[tuple[Any, Any, dict[str, Any]]]]] = [
        (
            {},
            key.encode(),
            [
                (query.Get, pb.GetRequest, one),
                (query.Scan, pb.ScanRequest, here),
                (query.Scan, pb.ScanRequest, {"prefix": asked, **here}),
                (query.Count, pb.CountRequest, {"exact": True, **here}),
                (query.Count, pb.CountRequest, here),
            ],
        ),
        (
            {"kind": "window", "window_size_ms": MINUTE, **retention},
            WindowKey(key.encode(), 0).to_bytes(),
            [(query.FetchWindows, pb.FetchWindowsRequest, one), (query.ScanWindows, pb.ScanWindowsRequest, here)],
        ),
        (
            {"kind": "session", **retention},
            SessionKey(key.encode(), 0, 0).to_bytes(),
            [(query.FetchSessions, pb.FetchSessionsRequest, one), (query.ScanSessions, pb.ScanSessionsRequest, here)],
        ),
        (
            {"kind": "versioned", **retention},
            key.encode(),
            [
                (query.GetAsOf, pb.GetAsOfRequest, {"as_of_ms": MINUTE, **one}),
                (query.GetHistory, pb.GetHistoryRequest, one),
                (query.Scan, pb.ScanRequest, {"as_of_ms": MINUTE, **here}),
            ],
        ),
    ]
    for spec, record_key, calls in kinds:
        store = serve(**spec)
        store.put_records([(key, record_key, b"1", MINUTE)])
        poll_until(lambda store=store: store.replica(1).position, 20, "the record")
        for method, request, fields in calls:
            answer = node.call(method, request(store=store.name, **fields))
            assert_stamp(getattr(answer, "replica", None) or answer.replicas[0], node, fleet, answer)
        if not spec:
            batch = node.call(query.BatchGet, pb.BatchGetRequest(requests=[pb.GetRequest(store=store.name, **one)]))
            assert_stamp(batch.results[0].response.replica, node, fleet, batch)


def assert_stamp(stamp: types_pb2.ReplicaStamp, node: ServerProcess, fleet: Fleet, answer: object) -> None:
    known = {"partition", "epoch", "host", "role", "position", "lag", "staleness_ms"}
    assert {field.name for field, _ in stamp.ListFields()} == known, answer
    assert (stamp.partition, stamp.epoch, stamp.role) == (1, fleet.assignment.epoch, types_pb2.REPLICA_ROLE_ACTIVE)
    assert (stamp.host.instance_id, stamp.host.port) == (node.name, node.port)
    assert (stamp.position, stamp.lag) == (1, 0), answer
    assert 0 <= stamp.staleness_ms < 30_000


@pytest.mark.feature("changelog-record-timestamp")
@pytest.mark.feature("sessions-range-keys")
def test_sessions_of_a_range_of_keys(serve: Serve, fleet: Fleet, node: ServerProcess, client: Client) -> None:
    store = serve(kind="session", retention_ms=60 * MINUTE)
    keys = sorted([*fleet.keys_in(0, 3), *fleet.keys_in(1, 3)])
    expected = [
        KeyedSession(key, n * MINUTE, n * MINUTE + 500, f"{key}-{n}", n * MINUTE + 700)
        for key in keys
        for n in range(4)
    ]
    merged = SessionKey(keys[0].encode(), 9 * MINUTE, 9 * MINUTE)
    store.put_records([(keys[0], merged.to_bytes(), b"merged", 9 * MINUTE)])
    store.put_records(
        (each.key, SessionKey(each.key.encode(), each.start_ms, each.end_ms).to_bytes(), each.value.encode(), at_ms)
        for each in reversed(expected)
        if (at_ms := each.timestamp_ms) is not None
    )
    store.put_records([(keys[0], merged.to_bytes(), None, 9 * MINUTE)])
    poll_until(lambda: succeeds(lambda: client.count(store.name)), 20, "the router")
    poll_until(lambda: list(client.scan_sessions(store.name)) == expected, 20, "the sessions, less the merged one")
    assert list(client.scan_sessions(store.name, page_size=5)) == expected
    assert list(client.scan_sessions(store.name, page_size=7, reverse=True)) == expected[::-1]
    some = [each for each in expected if keys[1] <= each.key <= keys[4] and each.start_ms in {MINUTE, 2 * MINUTE}]
    span = {"from_ms": 501, "to_ms": 2 * MINUTE}
    assert list(client.scan_sessions(store.name, from_key=keys[1], to_key=keys[4], page_size=3, **span)) == some
    request = query_service_pb2.ScanSessionsRequest(store=store.name, partition=1, prefix=types_pb2.Key(text=""))
    found = node.call(node.query.ScanSessions, request).sessions
    assert [each.key.text for each in found] == [each.key for each in expected if fleet.partition_of(each.key) == 1]
    shown = command("scan-sessions", store.name, "--from", keys[5], "--to-ms", "0", client=client)
    start, end, updated = shown_time(0), shown_time(500), shown_time(700)
    assert shown.splitlines()[1].split() == [keys[5], start, end, f"{keys[5]}-0", updated]
    with pytest.raises(LookupFailure, match="it has FetchSessions, ScanSessions, Count"):
        list(client.scan_windows(store.name))


@pytest.mark.feature("changelog-record-timestamp")
@pytest.mark.feature("scans-versioned-stores")
@pytest.mark.feature("key-history-bounded")
def test_a_versioned_store_as_of_a_time_and_the_history_of_a_key(serve: Serve, fleet: Fleet, client: Client) -> None:
    store = serve(kind="versioned", retention_ms=10 * MINUTE)
    keys = sorted([*fleet.keys_in(0, 4), *fleet.keys_in(1, 4)])
    deleted = keys[2]
    store.put_records(
        (key, key.encode(), None if key == deleted and n == 2 else b"%d" % n, n * MINUTE)
        for n in (1, 2, 3)
        for key in keys
    )

    def as_of(at_ms: int | None, **fields: Any) -> list[Entry]:
        return list(client.scan(store.name, as_of_ms=at_ms, **fields))

    poll_until(lambda: succeeds(lambda: client.count(store.name)), 20, "the router")
    poll_until(lambda: as_of(None) == [Entry(key, "3", 3 * MINUTE) for key in keys], 20, "the latest")
    then = [Entry(key, "2", 2 * MINUTE) for key in keys if key != deleted]
    assert as_of(2 * MINUTE + 1, page_size=3) == then
    assert as_of(3 * MINUTE - 1, page_size=2, reverse=True) == then[::-1]
    assert as_of(MINUTE, from_key=deleted, to_key=deleted) == [Entry(deleted, "1", MINUTE)]
    assert as_of(MINUTE - 1) == []

    history = [VersionedRecord("1", MINUTE, 2 * MINUTE), VersionedRecord("3", 3 * MINUTE, None)]
    assert list(client.get_history(store.name, deleted, page_size=1)) == history
    assert list(client.get_history(store.name, deleted, page_size=1, reverse=True)) == history[::-1]
    assert list(client.get_history(store.name, deleted, from_ms=2 * MINUTE, to_ms=3 * MINUTE - 1)) == []
    shown = command("history", store.name, deleted, "--reverse", client=client)
    newest, oldest = [shown_time(3 * MINUTE), "-", "3"], [shown_time(MINUTE), shown_time(2 * MINUTE), "1"]
    assert [line.split() for line in shown.splitlines()[1:]] == [newest, oldest]
    shown = command("scan", store.name, "--as-of", str(MINUTE), "--limit", "1", client=client)
    assert shown.splitlines()[1].split() == [keys[0], "1", shown_time(MINUTE)]

    # What the history no longer has is not known, for the partition whose time has moved on.
    store.put_records([(keys[0], keys[0].encode(), b"20", 20 * MINUTE)])
    poll_until(lambda: client.get(store.name, keys[0]).value == "20", 20, "the newest version")
    for read in (lambda: as_of(MINUTE), lambda: list(client.get_history(store.name, keys[0], from_ms=MINUTE))):
        with pytest.raises(LookupFailure, match="the history starts at 600000") as failure:
            read()
        assert failure.value.reason is Reason.BEFORE_HISTORY
    assert list(client.get_history(store.name, keys[0])) == [
        VersionedRecord("3", 3 * MINUTE, 20 * MINUTE),
        VersionedRecord("20", 20 * MINUTE, None),
    ]


def shown_time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1_000, UTC).isoformat(timespec="milliseconds")


def command(*arguments: str, client: Client) -> str:
    """Return what a command of `statehouse` prints; it asks the client's router."""
    result = CliRunner().invoke(app, [*arguments, "--router", client.target])
    assert result.exit_code == 0, result.output
    return result.stdout
