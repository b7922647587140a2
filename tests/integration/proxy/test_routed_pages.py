"""Pages by a router's proxy from real nodes: those that Python puts together, and walks that are whole in a kill."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.metrics import scrape
from tests.support.polling import poll_until

PARTITIONS, KEYS, WALKS = 6, 1_500, 120
ENTRIES: Final = {f"key-{number:05}": f"value {number}" * (1 + number % 7) for number in range(KEYS)}


@dataclass(frozen=True)
class Routed:
    """Two nodes with each other's standbys, a router whose proxy puts pages together, and one in which Python does."""

    fleet: Fleet
    nodes: dict[str, ServerProcess]
    express: ServerProcess
    python: ServerProcess
    metrics_ports: dict[str, int]

    def counted(self, of: str, sample: str, **labels: str) -> float:
        return scrape(self.metrics_ports[of]).value(sample, **labels)

    def express_pages(self) -> float:
        return self.counted("express", "statehouse_router_express_lookups_total", store=STORE, role="")


@contextmanager
def routed(bootstrap: str, application_id: str, directory: Path) -> Iterator[Routed]:
    with Fleet(bootstrap, application_id, directory, partitions=PARTITIONS) as fleet:
        ports = {name: free_port() for name in ("a", "b", "express", "python")}
        fleet.put(dict(ENTRIES))
        nodes = {name: fleet.node(name, metrics_port=ports[name]) for name in ("a", "b")}
        holders = [TaskAssignment("ab"[at % 2], ("ba"[at % 2],)) for at in range(PARTITIONS)]
        fleet.assign(*holders)
        express = fleet.router("express", metrics_port=ports["express"])
        python = fleet.router("python", no_express=True, metrics_port=ports["python"])
        fleet.wait_running(nodes.values(), 120)
        found = Routed(fleet, nodes, express, python, ports)
        for router in (express, python):
            poll_until(lambda router=router: len(walk(router)) == KEYS, 60, "all entries")
        poll_until(lambda: bool(walk(express)) and found.express_pages() > 0, 30, "a page by the proxy")
        yield found


@pytest.fixture(scope="module")
def both(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    with routed(kafka.bootstrap, "routed-pages", tmp_path_factory.mktemp("routed")) as found:
        yield found


def page_of(router: ServerProcess, request: query_service_pb2.ScanRequest) -> query_service_pb2.ScanResponse:
    answer: query_service_pb2.ScanResponse = router.call(router.query.Scan, request, 20.0)
    return answer


def walk(router: ServerProcess, **fields: Any) -> list[str]:
    """Return the keys of a whole scan, as they come."""
    request = query_service_pb2.ScanRequest(store=STORE, **fields)
    keys: list[str] = []
    while True:
        page = page_of(router, request)
        keys += [entry.key.text for entry in page.entries]
        request.page_token = page.next_page_token
        if not request.page_token:
            return keys


def made_request(rng: random.Random) -> query_service_pb2.ScanRequest:
    def key() -> types_pb2.Key:
        text = f"key-{rng.randrange(KEYS):05}"[: rng.choice((5, 7, 8, 9))]
        return types_pb2.Key(text=text) if rng.random() < 0.7 else types_pb2.Key(raw=text.encode())

    request = query_service_pb2.ScanRequest(
        store=STORE, reverse=rng.random() < 0.5, raw=rng.random() < 0.3, json_text=rng.random() < 0.5
    )
    kind = rng.random()
    if kind < 0.3:
        request.prefix.CopyFrom(key())
    elif kind < 0.6:
        first, last = sorted((key(), key()), key=lambda each: each.raw or each.text.encode())
        request.from_key.CopyFrom(first)
        request.to_key.CopyFrom(last)
    if rng.random() < 0.2:
        request.partition = rng.randrange(PARTITIONS)
    return request


def test_pages_by_the_proxy_are_those_of_python_and_either_goes_on_with_the_others_token(both: Routed) -> None:
    rng = random.Random(4)
    before, pages = both.express_pages(), 0
    for _ in range(WALKS):
        request = made_request(rng)
        for _ in range(12):
            request.page_size = rng.choice((0, 1, 7, 50, 300, 1_000, 5_000))
            express, python = page_of(both.express, request), page_of(both.python, request)
            pages += 1
            assert express.entries == python.entries, request
            assert express.next_page_token == python.next_page_token, request
            assert not express.entry_keys
            # The nodes that answer may differ: on a busy machine a router may have met a late answer.
            asked = [request.partition] if request.HasField("partition") else list(range(PARTITIONS))
            for page in (express, python):
                assert sorted(each.partition for each in page.replicas) == asked
            request.page_token = rng.choice((express, python)).next_page_token
            if not request.page_token:
                break
    assert pages > WALKS * 2
    poll_until(lambda: both.express_pages() - before >= pages * 0.5, 30, "pages by the proxy to be counted")


@pytest.mark.parametrize("name", ["express", "python"])
def test_what_either_router_asks_is_answered_by_the_nodes_programs(both: Routed, name: str) -> None:
    router: ServerProcess = getattr(both, name)
    before = stores_calls(both)
    poll_until(lambda: bool(walk(router)) and stores_calls(both) > before, 60, "pages by the nodes' programs")


def stores_calls(both: Routed) -> float:
    return sum(both.counted(name, "statehouse_node_proxy_calls_total", way="stores", code="OK") for name in both.nodes)


def test_walks_are_whole_while_a_node_is_killed(both: Routed) -> None:
    everything, rng = sorted(ENTRIES), random.Random(8)
    is_over = False

    def walks(seed: int) -> int:
        its = random.Random(seed)
        for count in itertools.count(1):
            reverse = its.random() < 0.5
            found = walk(both.express, reverse=reverse, page_size=its.choice((20, 100, 400)))
            assert found == sorted(everything, reverse=reverse), "each entry once, in order"
            if is_over:
                return count
        raise AssertionError

    def goes_on(of: list[Future[int]]) -> bool:
        return not any(each.done() for each in of)

    before = both.express_pages()
    with ThreadPoolExecutor(3) as threads:
        under_way = [threads.submit(walks, seed) for seed in range(3)]
        try:
            for _ in range(3):
                killed = both.nodes[rng.choice("ab")]
                both.fleet.wait_running(both.nodes.values(), 60)
                at = both.express_pages()
                poll_until(lambda at=at: not goes_on(under_way) or both.express_pages() > at + 20, 60, "some pages")
                killed.kill()
                began = scrape_of(both)
                poll_until(
                    lambda began=began: not goes_on(under_way) or scrape_of(both) > began + 50, 60, "pages without it"
                )
                killed.start()
        finally:
            is_over = True
        counts = [each.result(timeout=60) for each in under_way]
    assert min(counts) > 1
    assert both.express_pages() > before
    assert both.counted("express", "statehouse_router_express_handed_total") > 0, "a page met a kill"


def scrape_of(both: Routed) -> float:
    return both.counted("express", "statehouse_router_lookups_total", store=STORE, outcome="OK")
