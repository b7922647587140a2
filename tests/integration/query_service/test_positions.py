"""Reads with a position to reach, at a real node on a real broker: they wait for it, and no longer than they may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from statehouse.assignment import TaskAssignment
from statehouse.composite import WindowKey
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.topology import VERSIONED, WINDOW
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.metrics import scrape
from tests.support.polling import poll_until
from tests.support.watches import Watcher

KEY = types_pb2.Key(text="k")
LONG_S = 30.0


class OneNode:
    """A node with one partition, of which it has read all there is; `end` is the position after the log's last."""

    def __init__(self, fleet: Fleet, metrics_port: int) -> None:
        self.fleet, self._metrics_port = fleet, metrics_port
        self.process = fleet.node("n1", metrics_port=metrics_port, max_position_waits=4)
        fleet.assign(TaskAssignment("n1"))
        fleet.wait_running([self.process])

    @property
    def end(self) -> int:
        request = query_service_pb2.CountRequest(store=STORE, partition=0)
        response = self.process.call(self.process.query.Count, request)
        position: int = response.replicas[0].position
        return position

    def get(self, at_least: int, seconds: float = LONG_S) -> query_service_pb2.GetResponse:
        request = query_service_pb2.GetRequest(store=STORE, key=KEY, freshness=bound(at_least))
        return self.process.call(self.process.query.Get, request, seconds)

    def wait_for_waits(self, count: int) -> None:
        poll_until(
            lambda: scrape(self._metrics_port).value("statehouse_node_position_waits") == count, 20, f"{count} to wait"
        )


@pytest.fixture
def new_node(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def made(**spec: Any) -> Iterator[OneNode]:
        with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1, **spec) as fleet:
            yield OneNode(fleet, free_port())

    return made


@pytest.fixture
def caller() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def bound(at_least: int) -> types_pb2.Freshness:
    positions = [types_pb2.StorePosition(store=STORE, partition=0, position=at_least)]
    return types_pb2.Freshness(at_least=types_pb2.Positions(positions=positions))


def test_a_get_waits_for_the_record_and_then_shows_it(new_node: Any, caller: ThreadPoolExecutor) -> None:
    with new_node() as node:
        end = node.end
        read = caller.submit(node.get, end + 1)
        node.wait_for_waits(1)
        node.fleet.put({"k": "1"})
        answer = read.result(LONG_S)
        assert answer.value.text == "1"
        assert answer.replica.position >= end + 1
        node.wait_for_waits(0)


def test_a_node_that_fell_behind_answers_once_it_has_caught_up(new_node: Any) -> None:
    with new_node() as node:
        end = node.end
        node.process.freeze()
        node.fleet.put({"k": "1"})
        node.fleet.put({"k": "2"})
        node.process.thaw()
        assert node.get(end + 2).value.text == "2"


def test_without_the_position_the_failure_comes_in_time_and_says_how_far_it_is(new_node: Any) -> None:
    with new_node() as node:
        end = node.end
        with pytest.raises(LookupFailure) as caught:
            node.get(end + 1, seconds=0.5)
        assert caught.value.reason is Reason.POSITION_NOT_REACHED
        assert (caught.value.metadata["position"], caught.value.metadata["wanted"]) == (str(end), str(end + 1))
        node.wait_for_waits(0)


def test_an_entry_of_a_batch_would_wait_and_the_others_are_answered(new_node: Any) -> None:
    with new_node() as node:
        node.fleet.put({"k": "1"})
        end = poll_until(lambda: node.get(0).found and node.end, 20, "the record")
        batch = query_service_pb2.BatchGetRequest()
        for at_least in (end, end + 1):
            batch.requests.add(store=STORE, key=KEY, freshness=bound(at_least))
        answered, waits = node.process.call(node.process.query.BatchGet, batch).results
        assert answered.response.value.text == "1"
        assert LookupFailure.from_proto(waits.error).reason is Reason.WOULD_WAIT


def test_those_who_wait_are_bounded_and_those_who_leave_are_gone(new_node: Any) -> None:
    with new_node() as node:
        request = query_service_pb2.GetRequest(store=STORE, key=KEY, freshness=bound(node.end + 1))
        calls = [node.process.query.Get.future(request, timeout=LONG_S) for _ in range(4)]
        node.wait_for_waits(4)
        with pytest.raises(LookupFailure) as caught:
            node.process.call(node.process.query.Get, request)
        assert caught.value.reason is Reason.OVERLOADED
        for call in calls[1:]:
            call.cancel()
        node.wait_for_waits(1)
        node.fleet.put({"k": "1"})
        assert calls[0].result(LONG_S).value.text == "1"


def test_a_task_that_moves_ends_the_wait_with_that_reason(new_node: Any, caller: ThreadPoolExecutor) -> None:
    with new_node() as node:
        read = caller.submit(node.get, node.end + 1)
        node.wait_for_waits(1)
        node.fleet.assign(TaskAssignment("n2"))
        with pytest.raises(LookupFailure) as caught:
            read.result(LONG_S)
        assert caught.value.reason in {Reason.PARTITION_RESTORING, Reason.PARTITION_NOT_OWNED}


def read_window(node: ServerProcess, freshness: types_pb2.Freshness, seconds: float) -> Any:
    request = query_service_pb2.FetchWindowsRequest(store=STORE, key=KEY, freshness=freshness)
    return node.call(node.query.FetchWindows, request, seconds).replica


def scan_windows(node: ServerProcess, freshness: types_pb2.Freshness, seconds: float) -> Any:
    request = query_service_pb2.ScanWindowsRequest(store=STORE, partition=0, freshness=freshness)
    return node.call(node.query.ScanWindows, request, seconds).replicas[0]


def count(node: ServerProcess, freshness: types_pb2.Freshness, seconds: float) -> Any:
    request = query_service_pb2.CountRequest(store=STORE, partition=0, exact=True, freshness=freshness)
    return node.call(node.query.Count, request, seconds).replicas[0]


def get_as_of(node: ServerProcess, freshness: types_pb2.Freshness, seconds: float) -> Any:
    request = query_service_pb2.GetAsOfRequest(store=STORE, key=KEY, freshness=freshness)
    return node.call(node.query.GetAsOf, request, seconds).replica


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
    with new_node(**spec) as node:
        end = node.end
        reading = caller.submit(read, node.process, bound(end + 1), LONG_S)
        node.wait_for_waits(1)
        key = WindowKey(b"k", 1_000).to_bytes() if spec.get("kind") == WINDOW else b"k"
        node.fleet.put_records([("k", key, b"v", 1_000)])
        assert reading.result(LONG_S).position >= end + 1


def test_a_watch_begins_with_what_its_caller_has_seen_or_says_soon_that_it_can_not(new_node: Any) -> None:
    with new_node() as node:
        freshness = bound(node.end + 1)
        with Watcher(node.process, "k", freshness=freshness) as early:
            early.wait_for(lambda each: each.failure is not None, "the end")
            assert early.failure.reason is Reason.POSITION_NOT_REACHED
        node.fleet.put({"k": "1"})
        with Watcher(node.process, "k", freshness=freshness) as watcher:
            watcher.wait_for(lambda each: each.is_current, "the current value")
            assert watcher.current_values == {"k": "1"}
