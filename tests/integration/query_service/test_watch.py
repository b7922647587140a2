"""Watches on a real node: current values, every change once, resumption, gaps that are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from statehouse.assignment import TaskAssignment
from statehouse.composite import SessionKey, WindowKey
from statehouse.local.kafka import EmbeddedKafka
from tests.support.fleet import Fleet, ServerProcess
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
