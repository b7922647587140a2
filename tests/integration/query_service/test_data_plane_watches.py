"""Watches of stores that the data plane holds: fed from what it keeps, also if nobody watched before.

The changelogs may be compacted at any time. So the log itself proves nothing of what stands before a transaction's
marker, and a watch that had to read it would get a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import Producer

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import Reason
from statehouse.local.kafka import EmbeddedKafka
from tests.support.fleet import Fleet, confirmed
from tests.support.kafka import produce
from tests.support.polling import poll_until
from tests.support.shared import NodesByOptions, ServedStore, new_store
from tests.support.watches import Watcher

IN_GO = MappingProxyType({"engine": "go"})
LONG_AGO_MS = 1
Serve = Callable[..., ServedStore]


@pytest.fixture(scope="module")
def nodes(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodesByOptions]:
    with NodesByOptions(kafka.bootstrap, tmp_path_factory, "fed") as nodes:
        yield nodes


@pytest.fixture
def serve(nodes: NodesByOptions, unique_name: Callable[[str], str]) -> Serve:
    """Publish a store at a node that it shares with those of other tests."""

    def serve(node_options: Mapping[str, object] = IN_GO, **spec: Any) -> ServedStore:
        fleet, node = nodes.of(node_options)
        return new_store(fleet, node, unique_name("store"), **spec)

    return serve


class Writer:
    """Commits each value of a key in a transaction of its own, with a time of long ago."""

    def __init__(self, fleet: Fleet, changelog: str) -> None:
        name = f"{changelog}-writer"
        self._producer = Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": name})
        self._producer.init_transactions(30.0)
        self._changelog = changelog
        self.written: list[str] = []

    def write(self, count: int) -> None:
        """Write as many further values."""
        for _ in range(count):
            value = str(len(self.written))
            self._producer.begin_transaction()
            self._producer.produce(self._changelog, value, "a", 0, timestamp=LONG_AGO_MS)
            self._producer.commit_transaction(30.0)
            self.written.append(value)


def test_old_times_are_followed_and_made_up_for_without_a_gap(serve: Serve) -> None:
    store = serve()
    writer = Writer(store.fleet, store.changelog)
    writer.write(2)
    with store.watch("a") as first, store.watch(partition=0) as second:
        for watcher in (first, second):
            watcher.wait_for(lambda each: each.is_current, "the current value")
        writer.write(20)
        for watcher in (first, second):
            watcher.wait_for(lambda each: each.values[-1:] == writer.written[-1:], "the changes")
    seen = len(first.values)
    # Nobody watches now.
    writer.write(5)
    poll_until(lambda: store.get("a").value.text == writer.written[-1], 20, "the node to have it all")
    with store.watch("a", resume=[first.positions[0]]) as again:
        again.wait_for(lambda each: len(each.values) == 5, "what was missed")
        writer.write(1)
        again.wait_for(lambda each: len(each.values) == 6, "what follows")
    assert first.values + again.values == writer.written[-(seen + 6) :]
    assert second.values == first.values
    assert [each.gaps for each in (first, second, again)] == [0, 0, 0]


def test_a_burst_that_is_more_than_is_kept_comes_whole(serve: Serve) -> None:
    store = serve(changelog_config={"min.compaction.lag.ms": "600000"})
    store.put({"a": "first"})
    poll_until(lambda: store.get("a").found, 20, "the value")
    updates = 40_000
    with store.watch(partition=0) as watcher:
        watcher.wait_for(lambda each: each.is_current, "the current value")
        produce(store.bootstrap, store.changelog, [(b"%d" % (n % 100), b"%d" % n) for n in range(updates)])
        watcher.wait_for(lambda each: len(each.values) >= updates, "all changes", 60)
    assert watcher.gaps == 0
    assert watcher.values == [str(number) for number in range(updates)]


def test_a_watch_of_a_task_that_moves_away_ends_and_one_begins_when_it_is_back(serve: Serve) -> None:
    store = serve()
    writer = Writer(store.fleet, store.changelog)
    writer.write(1)
    poll_until(lambda: store.get("a").found, 20, "the value")
    with store.watch("a") as moved:
        moved.wait_for(lambda each: each.is_current, "the current value")
        writer.write(1)
        moved.wait_for(lambda each: each.values == ["1"], "the change")
        store.fleet.assign(TaskAssignment("n2"))
        poll_until(lambda: moved.failure, 20, "the end")
    assert moved.failure is not None
    assert moved.failure.reason in {Reason.PARTITION_RESTORING, Reason.PARTITION_NOT_OWNED}
    store.fleet.assign(TaskAssignment("n1"))
    store.fleet.wait_running([store.node])
    with store.watch("a", resume=[moved.positions[0]]) as back:
        back.wait_for(lambda each: each.is_current, "that it begins")
        writer.write(1)
        back.wait_for(lambda each: each.values == ["2"], "the change")
    assert back.gaps == 0


def test_a_standby_that_nobody_watched_goes_on_where_the_active_was_killed(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path_factory.mktemp("fed"), partitions=1) as fleet:
        active, standby = (fleet.node(name, **IN_GO) for name in ("n1", "n2"))
        fleet.assign(TaskAssignment("n1", ("n2",)))
        fleet.wait_running([active, standby])
        writer = Writer(fleet, fleet.changelog)
        writer.write(1)
        poll_until(lambda: confirmed(active, "a").found, 20, "the value")
        with Watcher(active, "a") as before:
            before.wait_for(lambda each: each.is_current, "the current value")
            writer.write(1)
            before.wait_for(lambda each: each.values == ["1"], "the change before")
        active.kill()
        writer.write(10)
        fleet.assign(TaskAssignment("n2"))
        fleet.wait_running([standby])
        with Watcher(standby, "a", resume=[before.positions[0]]) as after:
            after.wait_for(lambda each: len(each.values) == 10, "what was missed")
        assert after.values == writer.written[2:]
        assert after.gaps == 0
