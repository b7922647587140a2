"""Every built-in kind in the data plane: as a node holds and answers it that has none, through restarts and kills."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from query_service.inspect import stores_in
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import node_service_pb2, query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.metrics import scrape
from tests.support.polling import poll_until

MINUTE: Final = 60_000
RETENTION_MS: Final = 10 * MINUTE
KEYS: Final = ("a", "ab", "a\0", "b", "z")
KINDS: Final = ("window", "session", "versioned")
Record = tuple[str, bytes, bytes | None, int]


class Writer:
    """Makes records of a kind whose times go on, with late ones, deletions, and ones that nobody can read."""

    def __init__(self, kind: str, seed: int) -> None:
        self._kind, self._random, self.now_ms = kind, random.Random(seed), 100 * MINUTE

    def records(self, count: int) -> Iterator[Record]:
        for _ in range(count):
            self.now_ms += self._random.randrange(MINUTE // 4)
            key = self._random.choice(KEYS)
            at_ms = self.now_ms - self._random.choice((0, 0, 0, MINUTE, 12 * MINUTE))
            value = None if self._random.random() < 0.2 else b"%d" % at_ms
            if self._kind in {"window", "session"} and self._random.random() < 0.02:
                yield key, b"short", value, at_ms
            yield key, self._key(key.encode(), at_ms), value, at_ms

    def _key(self, key: bytes, at_ms: int) -> bytes:
        at_ms -= at_ms % (MINUTE // 2)  # so that some are written again
        if self._kind == "window":
            return WindowKey(key, at_ms).to_bytes()
        if self._kind == "session":
            return SessionKey(key, at_ms - MINUTE, at_ms).to_bytes()
        return key


class KindFleet(Fleet):
    """One node whose program holds the store, and one without a program."""

    def __init__(self, kafka: EmbeddedKafka, name: str, directory: Path, kind: str, **spec: Any) -> None:
        super().__init__(
            kafka.bootstrap,
            name,
            directory,
            partitions=1,
            kind=kind,
            retention_ms=0 if kind == "key-value" else RETENTION_MS,
            window_size_ms=MINUTE if kind == "window" else 0,
            changelog_config={"cleanup.policy": "delete", "retention.ms": "-1"},
            **spec,
        )
        self.kind, self.written = kind, 0
        self.ports = {name: free_port() for name in ("held", "reference")}
        options = {"held": "go", "reference": "python"}
        self.held, self.reference = (
            self.node(each, engine=engine, metrics_port=self.ports[each]) for each, engine in options.items()
        )
        self.assign(TaskAssignment("held", ("reference",)))
        self.wait_running([self.held, self.reference])

    def write(self, records: Iterable[Record]) -> None:
        """Write records, and return when both nodes have them."""
        listed = list(records)
        self.put_records(listed)
        self.written += len(listed)
        for node in (self.held, self.reference):
            poll_until(lambda node=node: replica(node).position == self.written, 30, f"{node.name} to have it all")

    def dropped(self, node: ServerProcess) -> dict[str, float]:
        """Return what a node has counted of the store since it began."""
        served = scrape(self.ports[node.name])
        names = ("late_records_total", "expired_segments_total", "skipped_records_total")
        return {name: served.value(f"statehouse_node_{name}", store=STORE) for name in names}


def replica(node: ServerProcess) -> node_service_pb2.StoreReplica:
    stores = [store for task in node.node().tasks for store in task.stores]
    return stores[0] if stores else node_service_pb2.StoreReplica()


def answer(node: ServerProcess, method: str, request: Any) -> str:
    """Return an answer without what it says of the replica, or the refusal."""
    try:
        found = node.call(getattr(node.query, method), request)
    except LookupFailure as failure:
        return f"{failure.reason}: {failure.message}"
    for stamp in ("replica", "replicas"):
        if stamp in type(found).DESCRIPTOR.fields_by_name:
            found.ClearField(stamp)
    return str(found)


def requests(kind: str, rng: random.Random, now_ms: int) -> Iterator[tuple[str, Any]]:
    """Make requests of all methods that a kind has."""
    for key in (*KEYS, "absent"):
        at = {"store": STORE, "key": types_pb2.Key(text=key)}
        first_ms = now_ms - rng.randrange(14 * MINUTE)
        span = {"from_ms": first_ms, "to_ms": first_ms + rng.randrange(8 * MINUTE), "reverse": rng.random() < 0.5}
        match kind:
            case "window":
                yield "FetchWindows", query_service_pb2.FetchWindowsRequest(**at, **span, page_size=rng.randrange(1, 9))
                yield "FetchWindows", query_service_pb2.FetchWindowsRequest(**at)
            case "session":
                page_size = rng.randrange(1, 9)
                yield "FetchSessions", query_service_pb2.FetchSessionsRequest(**at, **span, page_size=page_size)
                yield "FetchSessions", query_service_pb2.FetchSessionsRequest(**at)
            case "key-value":
                yield "Get", query_service_pb2.GetRequest(**at)
            case _:
                yield "Get", query_service_pb2.GetRequest(**at)
                yield "GetAsOf", query_service_pb2.GetAsOfRequest(**at, as_of_ms=first_ms)
                yield "GetHistory", query_service_pb2.GetHistoryRequest(**at, **span, page_size=rng.randrange(1, 9))
                yield "GetHistory", query_service_pb2.GetHistoryRequest(**at)
    scans = {"window": "ScanWindows", "session": "ScanSessions"}
    scan = scans.get(kind, "Scan")
    yield scan, getattr(query_service_pb2, f"{scan}Request")(store=STORE, partition=0, page_size=1_000)
    yield "Count", query_service_pb2.CountRequest(store=STORE, partition=0, exact=True)


def assert_alike(fleet: KindFleet, rng: random.Random, now_ms: int) -> None:
    for method, request in requests(fleet.kind, rng, now_ms):
        assert answer(fleet.held, method, request) == answer(fleet.reference, method, request), f"{method} {request}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_held_and_answered_as_without_the_program(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, kind: str
) -> None:
    rng = random.Random(kind)
    writer = Writer(kind, rng.randrange(1 << 30))
    with KindFleet(kafka, unique_name("app"), tmp_path, kind) as fleet:
        fleet.write(writer.records(300))
        assert_alike(fleet, rng, writer.now_ms)
        counted = fleet.dropped(fleet.held)
        assert counted == fleet.dropped(fleet.reference)
        assert counted["late_records_total"] > 0
        assert (counted["expired_segments_total"] > 0) == (kind != "versioned")
        estimate = query_service_pb2.CountRequest(store=STORE, partition=0)
        entries = fleet.held.call(fleet.held.query.Count, estimate).count

        assert fleet.held.stop(signal.SIGINT) == 0
        (on_disk,) = stores_in(tmp_path / "held")
        assert (on_disk.position, on_disk.keys, on_disk.note) == (fleet.written, entries, "")
        assert list((tmp_path / "held").rglob("pebble")), "it is in the program's files"
        fleet.held.start()
        fleet.wait_running([fleet.held])
        assert replica(fleet.held).restored_from == fleet.written, "it went on where it was"
        assert_alike(fleet, rng, writer.now_ms)

        fleet.write(writer.records(200))
        assert_alike(fleet, rng, writer.now_ms)
        fleet.held.kill()
        fleet.held.start()
        fleet.wait_running([fleet.held])
        assert_alike(fleet, rng, writer.now_ms)
        assert fleet.held.call(fleet.held.query.Count, estimate).count > 0


def test_files_of_one_engine_are_not_the_others(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    writer = Writer("window", 7)
    with KindFleet(kafka, unique_name("app"), tmp_path, "window") as fleet:
        fleet.write(writer.records(50))
        assert fleet.held.stop(signal.SIGINT) == 0
        fleet.held = fleet.node("held", engine="python", metrics_port=fleet.ports["held"])
        fleet.wait_running([fleet.held])
        assert replica(fleet.held).restored_from == 0, "it was restored anew"
        assert_alike(fleet, random.Random(1), writer.now_ms)
        assert fleet.held.stop(signal.SIGINT) == 0
        fleet.held = fleet.node("held", engine="go", metrics_port=fleet.ports["held"])
        fleet.wait_running([fleet.held])
        assert replica(fleet.held).restored_from == 0, "it was restored anew"
        restores = scrape(fleet.ports["held"]).value("statehouse_node_full_restores_total", store=STORE)
        assert restores == 1, "it was counted"
        assert_alike(fleet, random.Random(2), writer.now_ms)


@pytest.mark.parametrize("kind", ["key-value", *KINDS])
def test_a_kind_in_memory_is_held_and_counted_as_without_the_program(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, kind: str
) -> None:
    rng = random.Random(kind)
    writer = Writer(kind, rng.randrange(1 << 30))
    with KindFleet(kafka, unique_name("app"), tmp_path, kind, in_memory=True) as fleet:

        def taken(node: ServerProcess) -> list[float]:
            served = scrape(fleet.ports[node.name])
            names = ("statehouse_node_memory_bytes", "statehouse_node_memory_budget_bytes")
            return [served.value(name, store=STORE) for name in names]

        def assert_held() -> None:
            assert_alike(fleet, rng, writer.now_ms)
            assert taken(fleet.held) == taken(fleet.reference)
            assert all(taken(fleet.held))

        fleet.write(writer.records(300))
        assert_held()
        fleet.write(writer.records(100))
        assert_held()
        held = scrape(fleet.ports["held"]).value("statehouse_node_memtable_bytes", store=STORE)
        assert held > 0, "it is in the program"
        assert not [path for path in (tmp_path / "held").rglob("0_0/**/*") if path.is_file()], "nothing is on disk"
        assert fleet.held.stop(signal.SIGINT) == 0
        fleet.held.start()
        fleet.wait_running([fleet.held])
        assert replica(fleet.held).restored_from == 0
        assert_held()
