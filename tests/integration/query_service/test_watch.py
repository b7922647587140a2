"""Watches on a real node: current values, every change once, resumption, gaps that are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import Producer

from statehouse.assignment import TaskAssignment
from statehouse.composite import SessionKey, WindowKey
from statehouse.errors import Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.kafka import produce, read_all
from tests.support.polling import poll_until
from tests.support.watches import Watcher

MINUTE = 60_000
NewFleet = Callable[..., Any]


@pytest.fixture
def new_fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> NewFleet:
    @contextmanager
    def made(node_options: dict[str, str] | None = None, **spec: Any) -> Iterator[tuple[Fleet, ServerProcess]]:
        with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1, **spec) as fleet:
            node = fleet.node("n1", **(node_options or {}))
            fleet.assign(TaskAssignment("n1"))
            fleet.wait_running([node])
            yield fleet, node

    return made


def test_value_now_then_every_change(new_fleet: NewFleet) -> None:
    with new_fleet() as (fleet, node):
        fleet.put({"a": "1", "b": "1"})
        poll_until(lambda: node.node().tasks[0].stores[0].lag == 0 and node.get("a").found, 10, "the values")
        with Watcher(node, "a") as one, Watcher(node, "absent") as absent, Watcher(node, partition=0) as everything:
            one.wait_for(lambda each: each.is_current, "the current value")
            absent.wait_for(lambda each: each.is_current, "the absence")
            everything.wait_for(lambda each: each.is_current, "the current values")
            assert one.current_values == {"a": "1"}
            assert absent.current_values == {"absent": None}
            assert everything.current_values == {"a": "1", "b": "1"}
            fleet.put({"a": "2"})
            fleet.put({"b": "2"})
            fleet.put({"a": None})
            fleet.put({"a": "3"})
            one.wait_for(lambda each: len(each.changes) == 3, "its changes")
            everything.wait_for(lambda each: len(each.changes) == 4, "all changes")
            assert one.changes == [(0, 2, "a", "2"), (0, 4, "a", None), (0, 5, "a", "3")]
            assert [key for _, _, key, _ in everything.changes] == ["a", "b", "a", "a"]
            assert one.positions[0].position == 6
            assert one.gaps == 0


def test_windows(new_fleet: NewFleet) -> None:
    with new_fleet(kind="window", retention_ms=10 * MINUTE, window_size_ms=MINUTE) as (fleet, node):
        start = WindowKey(b"k", MINUTE).to_bytes()
        # Keys of which one is the other's beginning, and one too short for the layout, which concerns nobody.
        fleet.put_records(
            [("k", start, b"1", 0), ("k", WindowKey(b"kk", MINUTE).to_bytes(), b"other", 0), ("k", b"short", b"", 0)]
        )
        poll_until(lambda: node.node().tasks[0].stores[0].skipped_records == 1, 10, "the records")
        with Watcher(node, "k") as watcher, Watcher(node, prefix="k", partition=0) as both:
            watcher.wait_for(lambda each: each.is_current, "the current value")
            both.wait_for(lambda each: each.is_current, "the current values")
            fleet.put_records([("k", start, b"2", 0), ("k", WindowKey(b"k", 2 * MINUTE).to_bytes(), b"3", 0)])
            watcher.wait_for(lambda each: len(each.changes) == 2, "its changes")
            events = [event for response in watcher.responses for event in response.events]
            assert [(event.start_ms, event.end_ms, event.value.text) for event in events] == [
                (MINUTE, 2 * MINUTE, "1"),
                (MINUTE, 2 * MINUTE, "2"),
                (2 * MINUTE, 3 * MINUTE, "3"),
            ]
            assert both.current_values == {"k": "1", "kk": "other"}


def test_sessions(new_fleet: NewFleet) -> None:
    with new_fleet(kind="session", retention_ms=10 * MINUTE) as (fleet, node):
        fleet.put_records([("k", SessionKey(b"k", 5, 9).to_bytes(), b"1", 0)])
        with Watcher(node, "k") as watcher:
            watcher.wait_for(lambda each: each.current_values or each.changes, "the session")
            fleet.put_records(
                [("k", SessionKey(b"k", 5, 9).to_bytes(), None, 0), ("k", SessionKey(b"k", 5, 12).to_bytes(), b"2", 0)]
            )
            watcher.wait_for(lambda each: each.values[-2:] == [None, "2"], "the merged session")
            event = watcher.responses[-1].events[-1]
            assert (event.start_ms, event.end_ms) == (5, 12)


def test_versions(new_fleet: NewFleet) -> None:
    with new_fleet(kind="versioned", retention_ms=10 * MINUTE) as (fleet, node):
        fleet.put_records([("k", b"k", b"2", 2), ("k", b"k\0", b"other", 2), ("k", b"gone", None, 2)])
        poll_until(lambda: node.get("k").found, 10, "the version")
        with Watcher(node, "k") as one, Watcher(node, partition=0) as everything:
            everything.wait_for(lambda each: each.is_current, "the current values")
            one.wait_for(lambda each: each.is_current, "the current value")
            assert everything.current_values == {"k": "2", "k\0": "other"}
            # An older version is a change of the history, though not of the latest value.
            fleet.put_records([("k", b"k", b"1", 1), ("k", b"k", b"3", 3)])
            one.wait_for(lambda each: each.values == ["1", "3"], "the versions")
            assert one.current_values == {"k": "2"}


def left_at(fleet: Fleet, node: ServerProcess) -> query_service_pb2.WatchPosition:
    """Watch a key until its current value is there, and leave."""
    fleet.put({"a": "0"})
    poll_until(lambda: node.get("a").found, 10, "the value")
    with Watcher(node, "a") as watcher:
        watcher.wait_for(lambda each: each.is_current, "the current value")
        assert watcher.current_values == {"a": "0"}
        return watcher.positions[0]


@pytest.mark.parametrize(
    ("config", "is_provable"), [({"min.compaction.lag.ms": "600000"}, True), ({"min.compaction.lag.ms": "0"}, False)]
)
def test_without_a_tail_it_resumes_through_the_log(
    new_fleet: NewFleet, config: dict[str, str], is_provable: bool
) -> None:
    with new_fleet({"watch_tail_bytes": 0}, changelog_config=config) as (fleet, node):
        position = left_at(fleet, node)
        fleet.put({"a": "1"})
        fleet.put({"b": "1"})
        fleet.put({"a": "2"})
        with Watcher(node, "a", resume=[position]) as watcher:
            watcher.wait_for(lambda each: each.values == ["1", "2"], "the changes since: no offset is missing")
            assert watcher.gaps == 0
            assert not watcher.current
            position = watcher.positions[0]
        # Markers of transactions leave holes in the offsets, as compaction does.
        for value in ("3", "4", "5"):
            put_transactionally(fleet, {"a": value})
        with Watcher(node, "a", resume=[position]) as watcher:
            if is_provable:
                watcher.wait_for(lambda each: each.values == ["3", "4", "5"], "the changes since")
                assert watcher.gaps == 0
            else:
                watcher.wait_for(lambda each: each.gaps == 1 and each.is_current, "to be told of a gap")
                assert watcher.current_values == {"a": "5"}


def put_transactionally(fleet: Fleet, entries: dict[str, str]) -> None:
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": f"{fleet.application_id}-writer"})
    producer.init_transactions(30.0)
    producer.begin_transaction()
    for key, value in entries.items():
        producer.produce(fleet.changelog, key=key.encode(), value=value.encode(), partition=0)
    producer.commit_transaction(30.0)


def test_transactions_of_old_times_are_followed_without_a_gap(new_fleet: NewFleet) -> None:
    with new_fleet() as (fleet, node):
        left_at(fleet, node)
        with Watcher(node, "a") as watcher:
            watcher.wait_for(lambda each: each.is_current, "the current value")
            for value in map(str, range(5)):
                put_transactionally(fleet, {"a": value, "b": value})
            watcher.wait_for(lambda each: len(each.values) == 5, "the changes")
            assert watcher.values == ["0", "1", "2", "3", "4"]
            assert watcher.gaps == 0


def test_a_compacted_past_is_told_as_a_gap(unique_name: Callable[[str], str], tmp_path: Path) -> None:
    eager = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    with (
        EmbeddedKafka(data_dir=tmp_path / "kafka", config={"log.cleaner.backoff.ms": "100"}) as kafka,
        Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1, changelog_config=eager) as fleet,
    ):
        node = fleet.node("n1", watch_tail_bytes=0)
        fleet.assign(TaskAssignment("n1"))
        fleet.wait_running([node])
        position = left_at(fleet, node)
        for value in ("1", "2", "3"):
            fleet.put({"a": value})

        def is_compacted() -> bool:
            fleet.put({"filler": "x"})  # rolls the segment, which alone can be cleaned
            return (b"a", b"2") not in read_all(fleet.bootstrap, fleet.changelog)

        poll_until(is_compacted, 60, "compaction")
        with Watcher(node, "a", resume=[position]) as watcher:
            watcher.wait_for(lambda each: each.gaps and each.is_current, "to be told of a gap")
            assert watcher.current_values == {"a": "3"}
            assert watcher.values == [], "no change that others are missing before"
            fleet.put({"a": "4"})
            watcher.wait_for(lambda each: each.current_values == {"a": "4"} or each.values == ["4"], "what follows")


def test_a_position_of_another_log_is_told_as_a_gap(new_fleet: NewFleet) -> None:
    with new_fleet() as (fleet, node):
        position = left_at(fleet, node)
        elsewhere = query_service_pb2.WatchPosition(partition=0, position=position.position, topic_id="another")
        beyond = query_service_pb2.WatchPosition(partition=0, position=10_000)
        for wrong in (elsewhere, beyond):
            with Watcher(node, "a", resume=[wrong]) as watcher:
                watcher.wait_for(lambda each: each.is_current, "current values")
                assert watcher.gaps == 1
                assert [response.begins for response in watcher.responses if response.gap] == [True]
                assert watcher.current_values == {"a": "0"}


def test_a_slow_client_gets_everything(new_fleet: NewFleet) -> None:
    with new_fleet({"watch_tail_bytes": 100_000}) as (fleet, node):
        left_at(fleet, node)
        padding = "x" * 2_000
        call = node.query.Watch(query_service_pb2.WatchRequest(store=STORE, partition=0))
        next(response for response in call if response.HasField("position"))
        produce(fleet.bootstrap, fleet.changelog, [(b"a", f"{number} {padding}".encode()) for number in range(5_000)])
        poll_until(lambda: node.get("a").value.text.startswith("4999 "), 30, "the node to have it all")
        seen: list[int] = []
        for response in call:
            assert not response.gap
            seen += [int(event.value.text.split()[0]) for event in response.events]
            if len(seen) >= 5_000:
                break
        call.cancel()
        assert seen == list(range(5_000))


def test_watches_are_bounded_and_leave_nothing(new_fleet: NewFleet) -> None:
    with new_fleet({"max_watches": 3}) as (fleet, node):
        left_at(fleet, node)
        for _ in range(5):
            watchers = [opened(node) for _ in range(3)]
            with Watcher(node, "a") as refused:
                poll_until(lambda watcher=refused: watcher.failure, 10, "the refusal")
                assert refused.failure is not None
                assert refused.failure.reason is Reason.OVERLOADED
            for watcher in watchers:
                watcher.leave()


def opened(node: ServerProcess) -> Watcher:
    """Open a watch as soon as there is room for one."""

    def attempt() -> Watcher | None:
        watcher = Watcher(node, "a").__enter__()
        poll_until(lambda: watcher.failure or watcher.is_current, 10, "an answer")
        return None if watcher.failure else watcher

    return poll_until(attempt, 10, "room for a watch")


def test_whoever_watches_learns_why_it_ends(new_fleet: NewFleet) -> None:
    with new_fleet() as (fleet, node):
        left_at(fleet, node)
        with Watcher(node, "a") as moved:
            moved.wait_for(lambda each: each.is_current, "the current value")
            fleet.assign(TaskAssignment("n2"))
            poll_until(lambda: moved.failure, 10, "the end")
            assert moved.failure is not None
            assert moved.failure.reason in {Reason.PARTITION_RESTORING, Reason.PARTITION_NOT_OWNED}
        fleet.assign(TaskAssignment("n1"))
        fleet.wait_running([node])
        with Watcher(node, "a") as watcher:
            watcher.wait_for(lambda each: each.is_current, "the current value")
            assert node.stop() == 0
            poll_until(lambda: watcher.failure, 10, "the end")
            assert watcher.failure is not None
            assert watcher.failure.reason is Reason.NODE_SHUTTING_DOWN


def test_pages_of_current_values_and_the_changes_meanwhile(new_fleet: NewFleet) -> None:
    """However many pages there are, and whatever is written between them, no key ever goes back."""
    with new_fleet() as (fleet, node):
        keys = [f"k{number:04d}".encode() for number in range(3_500)]
        produce(fleet.bootstrap, fleet.changelog, [(key, b"0") for key in keys])
        poll_until(lambda: node.get("k3499").found, 20, "the values")
        updates = [(keys[number * 37 % len(keys)], str(number).encode()) for number in range(1, 4_001)]
        writer = Thread(target=lambda: produce(fleet.bootstrap, fleet.changelog, updates), daemon=True)
        writer.start()
        with Watcher(node, partition=0) as watcher:
            last = str(len(updates))
            watcher.wait_for(lambda each: last in each.values[-1:] or last in each.current_values.values(), "the last")
            writer.join()
            assert len(watcher.current) >= 4
            assert [response.begins for response in watcher.current] == [True] + [False] * (len(watcher.current) - 1)
            assert watcher.gaps == 0
            seen: dict[str, list[int]] = {}
            for response in watcher.responses:
                for event in response.events:
                    seen.setdefault(event.key.text, []).append(int(event.value.text))
        assert all(values == sorted(set(values)) for values in seen.values())
        expected = dict.fromkeys(keys, b"0") | dict(updates)
        assert {key: values[-1] for key, values in seen.items()} == {
            key.decode(): int(value) for key, value in expected.items()
        }
        offsets = [offset for _, offset, _, _ in watcher.changes]
        assert offsets == sorted(set(offsets))


def test_an_ephemeral_store_s_watch_outlives_its_node(new_fleet: NewFleet) -> None:
    with new_fleet(ephemeral=True, changelog_config={"cleanup.policy": "delete"}) as (fleet, node):
        position = left_at(fleet, node)
        node.kill()
        put_transactionally(fleet, {"a": "1"})
        put_transactionally(fleet, {"a": "2"})
        node.start()
        fleet.wait_running([node])
        assert not node.get("a").found, "it began anew"
        with Watcher(node, "a", resume=[position]) as watcher:
            watcher.wait_for(lambda each: each.values == ["1", "2"], "what it missed, from the log")
            assert watcher.gaps == 0
