"""Reads with a position to reach, at a real node on a real broker: they wait for it, and no longer than they may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import VERSIONED, WINDOW
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import Fleet
from tests.support.metrics import scrape
from tests.support.polling import poll_until
from tests.support.shared import ServedStore, new_store, shared_fleet

KEY = types_pb2.Key(text="k")
LONG_S = 30.0


class OneNode:
    """A store on a node that has read all of its log; `end` is the position after the log's last."""

    def __init__(self, store: ServedStore, metrics_port: int) -> None:
        self.store, self.process, self._metrics_port = store, store.node, metrics_port

    @property
    def end(self) -> int:
        request = query_service_pb2.CountRequest(store=self.store.name, partition=0)
        response = self.process.call(self.process.query.Count, request)
        position: int = response.replicas[0].position
        return position

    def get(self, at_least: int, seconds: float = LONG_S) -> query_service_pb2.GetResponse:
        return self.process.call(self.process.query.Get, self.get_request(at_least), seconds)

    def get_request(self, at_least: int) -> query_service_pb2.GetRequest:
        return query_service_pb2.GetRequest(store=self.store.name, key=KEY, freshness=self.bound(at_least))

    def bound(self, at_least: int) -> types_pb2.Freshness:
        positions = [types_pb2.StorePosition(store=self.store.name, partition=0, position=at_least)]
        return types_pb2.Freshness(at_least=types_pb2.Positions(positions=positions))

    def wait_for_waits(self, count: int) -> None:
        poll_until(
            lambda: scrape(self._metrics_port).value("statehouse_node_position_waits") == count, 20, f"{count} to wait"
        )


@pytest.fixture(scope="module")
def shared(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, int]]:
    """A fleet of one node, and the port of its metrics."""
    port = free_port()
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "positions", partitions=1) as fleet:
        fleet.node("n1", metrics_port=port, max_position_waits=4)
        yield fleet, port


@pytest.fixture
def new_node(shared: tuple[Fleet, int], unique_name: Callable[[str], str]) -> Callable[..., OneNode]:
    """Give a test a store of its own."""
    fleet, port = shared
    return lambda **spec: OneNode(new_store(fleet, fleet.processes[0], unique_name("store"), **spec), port)


@pytest.fixture
def node(new_node: Callable[..., OneNode]) -> OneNode:
    return new_node()


@pytest.fixture
def caller() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.mark.feature("least-position-read")
def test_a_get_waits_for_the_record_and_then_shows_it(node: OneNode, caller: ThreadPoolExecutor) -> None:
    end = node.end
    read = caller.submit(node.get, end + 1)
    node.wait_for_waits(1)
    node.store.put({"k": "1"})
    answer = read.result(LONG_S)
    assert answer.value.text == "1"
    assert answer.replica.position >= end + 1
    node.wait_for_waits(0)


def test_a_node_that_fell_behind_answers_once_it_has_caught_up(node: OneNode) -> None:
    end = node.end
    node.process.freeze()
    node.store.put({"k": "1"})
    node.store.put({"k": "2"})
    node.process.thaw()
    assert node.get(end + 2).value.text == "2"


def test_without_the_position_the_failure_comes_in_time_and_says_how_far_it_is(node: OneNode) -> None:
    end = node.end
    with pytest.raises(LookupFailure) as caught:
        node.get(end + 1, seconds=1.5)
    assert caught.value.reason is Reason.POSITION_NOT_REACHED
    assert (caught.value.metadata["position"], caught.value.metadata["wanted"]) == (str(end), str(end + 1))
    node.wait_for_waits(0)


def test_an_entry_of_a_batch_would_wait_and_the_others_are_answered(node: OneNode) -> None:
    node.store.put({"k": "1"})
    end = poll_until(lambda: node.get(0).found and node.end, 20, "the record")
    batch = query_service_pb2.BatchGetRequest()
    for at_least in (end, end + 1):
        batch.requests.append(node.get_request(at_least))
    answered, waits = node.process.call(node.process.query.BatchGet, batch).results
    assert answered.response.value.text == "1"
    assert LookupFailure.from_proto(waits.error).reason is Reason.WOULD_WAIT


def test_those_who_wait_are_bounded_and_those_who_leave_are_gone(node: OneNode) -> None:
    request = node.get_request(node.end + 1)
    calls = [node.process.query.Get.future(request, timeout=LONG_S) for _ in range(4)]
    node.wait_for_waits(4)
    with pytest.raises(LookupFailure) as caught:
        node.process.call(node.process.query.Get, request)
    assert caught.value.reason is Reason.OVERLOADED
    for call in calls[1:]:
        call.cancel()
    node.wait_for_waits(1)
    node.store.put({"k": "1"})
    assert calls[0].result(LONG_S).value.text == "1"


def test_a_task_that_moves_ends_the_wait_with_that_reason(node: OneNode, caller: ThreadPoolExecutor) -> None:
    read = caller.submit(node.get, node.end + 1)
    node.wait_for_waits(1)
    node.store.fleet.assign(TaskAssignment("n2"))
    with pytest.raises(LookupFailure) as caught:
        read.result(LONG_S)
    assert caught.value.reason in {Reason.PARTITION_RESTORING, Reason.PARTITION_NOT_OWNED}


def read_window(node: OneNode, at_least: int) -> Any:
    request = query_service_pb2.FetchWindowsRequest(store=node.store.name, key=KEY, freshness=node.bound(at_least))
    return node.process.call(node.process.query.FetchWindows, request, LONG_S).replica


def scan_windows(node: OneNode, at_least: int) -> Any:
    request = query_service_pb2.ScanWindowsRequest(store=node.store.name, partition=0, freshness=node.bound(at_least))
    return node.process.call(node.process.query.ScanWindows, request, LONG_S).replicas[0]


def count(node: OneNode, at_least: int) -> Any:
    request = query_service_pb2.CountRequest(
        store=node.store.name, partition=0, exact=True, freshness=node.bound(at_least)
    )
    return node.process.call(node.process.query.Count, request, LONG_S).replicas[0]


def get_as_of(node: OneNode, at_least: int) -> Any:
    request = query_service_pb2.GetAsOfRequest(store=node.store.name, key=KEY, freshness=node.bound(at_least))
    return node.process.call(node.process.query.GetAsOf, request, LONG_S).replica


@pytest.mark.parametrize(
    ("read", "spec"),
    [
        (read_window, {"kind": WINDOW, "retention_ms": 3_600_000, "window_size_ms": 1_000}),
        (scan_windows, {"kind": WINDOW, "retention_ms": 3_600_000, "window_size_ms": 1_000}),
        (count, {}),
        (get_as_of, {"kind": VERSIONED, "retention_ms": 3_600_000}),
    ],
)
def test_every_read_waits(new_node: Any, caller: ThreadPoolExecutor, read: Any, spec: dict[str, Any]) -> None:
    node = new_node(**spec)
    end = node.end
    reading = caller.submit(read, node, end + 1)
    node.wait_for_waits(1)
    key = WindowKey(b"k", 1_000).to_bytes() if spec.get("kind") == WINDOW else b"k"
    node.store.put_records([("k", key, b"v", 1_000)])
    assert reading.result(LONG_S).position >= end + 1


def test_a_watch_begins_with_what_its_caller_has_seen_or_says_soon_that_it_can_not(node: OneNode) -> None:
    freshness = node.bound(node.end + 1)
    with node.store.watch("k", freshness=freshness) as early:
        early.wait_for(lambda each: each.failure is not None, "the end")
        assert early.failure is not None
        assert early.failure.reason is Reason.POSITION_NOT_REACHED
    node.store.put({"k": "1"})
    with node.store.watch("k", freshness=freshness) as watcher:
        watcher.wait_for(lambda each: each.is_current, "the current value")
        assert watcher.current_values == {"k": "1"}
