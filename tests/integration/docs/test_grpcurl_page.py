"""Every command of docs/grpcurl-reference.md, run against a real fleet; what comes back is what stands on the page.

Those of docs/windows.md are run against the same fleet.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from word_sketch.sketches import new_sketch

from processor.reports.commits import CommitsPublisher, StoreChangelog
from statehouse.contract.assignment import TaskAssignment
from statehouse.control.v1 import commits_pb2
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import fleet_service_pb2, node_service_pb2, query_service_pb2
from tests.integration.routing.routed import UNHEDGED
from tests.support.console import Shell, commands, play
from tests.support.fleet import STORE, Fleet, is_answered_by_active
from tests.support.kafka import create_topic, produce
from tests.support.pages import Terminal
from tests.support.polling import poll_until
from tests.support.stores_fleet import BEGIN_MS, StoresFleet

_ROOT: Final = Path(__file__).parents[3]
PAGE: Final = _ROOT / "docs" / "grpcurl-reference.md"
WINDOWS: Final = _ROOT / "docs" / "windows.md"
VOLATILE: Final = frozenset(
    {
        *("port", "incarnation", "version", "changelog_topic", "application_id"),
        *("position", "end_offset", "lag", "offset", "topic_id", "restored_from", "restored_records", "lookups"),
        *(
            "staleness_ms",
            "processor_age_ms",
            "heartbeat_age_ms",
            "timestamp_ms",
            "took_ms",
            "sent_after_ms",
            "hedge_after_ms",
        ),
        *("next_page_token", "message", "detail", "topic", "compared_age_ms", "profile"),
    }
)


@pytest.fixture(scope="module")
def fleet(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("grpcurl")
    with StoresFleet(kafka.bootstrap, f"grpcurl-{uuid.uuid4().hex[:8]}", directory) as fleet:
        fleet.add_store("words", kind="count-min-sketch", value_serde="bytes")
        say(fleet, "ann", ["spark"] * 3 + ["state"])
        create_topic(kafka.bootstrap, "sales")
        produce(kafka.bootstrap, "sales", [(b"ann", b"7")] * 20)
        commit(fleet, {("sales", 0): 18})
        holders = {
            fleet.partition_of("ann"): TaskAssignment("node-a", ("node-b",)),
            fleet.partition_of("cat"): TaskAssignment("node-b"),
        }
        fleet.assign(*(holders[partition] for partition in sorted(holders)), reason="a page of documentation")
        nodes = [fleet.node("node-a"), fleet.node("node-b")]
        router = fleet.router("router", **UNHEDGED)
        fleet.wait_running(nodes)
        poll_until(lambda: all(is_answered_by_active(router, name) for name in ("ann", "cat")), 30, "the router")
        yield fleet


def say(fleet: Fleet, key: str, words: Iterable[str]) -> None:
    """Write a sketch of words to the changelog, as the example's processor does."""
    sketch = new_sketch()
    for word in words:
        sketch.update(word)
    fleet.put_records([(key, key.encode(), sketch.serialize(), BEGIN_MS)], "words")


def commit(fleet: Fleet, source_ends: Mapping[tuple[str, int], int]) -> None:
    """Say, as the processor does after a micro-batch, that the store's inputs are in up to these offsets."""
    changelog = StoreChangelog(STORE, fleet.changelog, fleet.partitions)
    compared = commits_pb2.TopicComparison(compared_at_ms=round(time.time() * 1_000))
    compared.settings.add(name="partitions", wanted="2", found="2")
    compared.settings.add(name="cleanup.policy", wanted="compact", found="delete")
    commits = CommitsPublisher(
        fleet.bootstrap, fleet.application_id, STORE, [changelog], compared=lambda _topic: compared
    )
    commits.start()
    commits.publish("query", 0, source_ends)


@pytest.mark.long
def test_windows_are_read_as_their_page_says(fleet: Fleet) -> None:
    (router,) = (process for process in fleet.processes if process.name == "router")
    assert len(Terminal({"STATEHOUSE_ROUTER": router.target}).play(WINDOWS.read_text())) > 5


@pytest.mark.feature("call-works-grpcurl")
def test_every_call_is_on_the_page() -> None:
    run = {word for command in commands(PAGE.read_text()) for word in command.line.split()}
    for contract in (query_service_pb2, fleet_service_pb2, node_service_pb2):
        for service in contract.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert f"{service.full_name}/{method.name}" in run


@pytest.mark.feature("call-works-grpcurl")
def test_what_the_page_shows_comes_back(fleet: Fleet) -> None:
    """The last test: the page tells a node to leave."""
    ports = {process.name: process.port for process in fleet.processes}
    shell = Shell({"7100": ports["router"], "7101": ports["node-a"], "7102": ports["node-b"]})
    assert play(PAGE.read_text(), shell, VOLATILE) > 30, "the page's commands are found"
