"""Watches on a real node: current values, every change once, resumption, gaps that a watch reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import Thread
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import Producer

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import Reason
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2
from tests.support.kafka import produce, read_all
from tests.support.polling import poll_until
from tests.support.shared import NO_OPTIONS, NodesByOptions, ServedStore, new_store
from tests.support.watches import Watcher

MINUTE = 60_000
WITHOUT_TAIL = MappingProxyType({"watch_tail_bytes": 0})
NARROW = MappingProxyType({"watch_tail_bytes": 100_000, "max_watches": 3})
Serve = Callable[..., ServedStore]


@pytest.fixture(scope="module")
def nodes(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodesByOptions]:
    with NodesByOptions(kafka.bootstrap, tmp_path_factory, "watch") as nodes:
        yield nodes


@pytest.fixture
def serve(nodes: NodesByOptions, unique_name: Callable[[str], str]) -> Serve:
    """Publish a store at a node that it shares with those of other tests that want the same options."""

    def serve(node_options: Mapping[str, object] = NO_OPTIONS, **spec: Any) -> ServedStore:
        fleet, node = nodes.of(node_options)
        return new_store(fleet, node, unique_name("store"), **spec)

    return serve


@pytest.mark.feature("watch-key-prefix")
def test_value_now_then_every_change(serve: Serve) -> None:
    store = serve()
    store.put({"a": "1", "b": "1"})
    poll_until(lambda: store.get("a").found and store.get("b").found, 20, "the values")
    with store.watch("a") as one, store.watch("absent") as absent, store.watch(partition=0) as everything:
        one.wait_for(lambda each: each.is_current, "the current value")
        absent.wait_for(lambda each: each.is_current, "the absence")
        everything.wait_for(lambda each: each.is_current, "the current values")
        assert one.current_values == {"a": "1"}
        assert absent.current_values == {"absent": None}
        assert everything.current_values == {"a": "1", "b": "1"}
        store.put({"a": "2"})
        store.put({"b": "2"})
        store.put({"a": None})
        store.put({"a": "3"})
        one.wait_for(lambda each: len(each.changes) == 3, "its changes")
        everything.wait_for(lambda each: len(each.changes) == 4, "all changes")
        assert one.changes == [(0, 2, "a", "2"), (0, 4, "a", None), (0, 5, "a", "3")]
        assert [key for _, _, key, _ in everything.changes] == ["a", "b", "a", "a"]
        assert one.positions[0].position == 6
        assert one.gaps == 0


@pytest.mark.feature("watch-key-prefix")
def test_windows(serve: Serve) -> None:
    store = serve(kind="window", retention_ms=10 * MINUTE, window_size_ms=MINUTE)
    start = WindowKey(b"k", MINUTE).to_bytes()
    # Keys, one of them the beginning of another, and one too short for the layout, which concerns nobody.
    store.put_records(
        [
            ("k", start, b"1", 0),
            ("k", WindowKey(b"kk", MINUTE).to_bytes(), b"other", 0),
            ("k", WindowKey(b"j", MINUTE).to_bytes(), b"beyond the prefix", 0),
            ("k", b"short", b"", 0),
        ]
    )
    poll_until(lambda: store.replica().skipped_records == 1, 20, "the records")
    with store.watch("k") as watcher, store.watch(prefix="k", partition=0) as both:
        watcher.wait_for(lambda each: each.is_current, "the current value")
        both.wait_for(lambda each: each.is_current, "the current values")
        store.put_records([("k", start, b"2", 0), ("k", WindowKey(b"k", 2 * MINUTE).to_bytes(), b"3", 0)])
        watcher.wait_for(lambda each: len(each.changes) == 2, "its changes")
        events = [event for response in watcher.responses for event in response.events]
        assert [(event.start_ms, event.end_ms, event.value.text) for event in events] == [
            (MINUTE, 2 * MINUTE, "1"),
            (MINUTE, 2 * MINUTE, "2"),
            (2 * MINUTE, 3 * MINUTE, "3"),
        ]
        assert both.current_values == {"k": "1", "kk": "other"}


def test_sessions(serve: Serve) -> None:
    store = serve(kind="session", retention_ms=10 * MINUTE)
    store.put_records([("k", SessionKey(b"k", 5, 9).to_bytes(), b"1", 0)])
    with store.watch("k") as watcher:
        watcher.wait_for(lambda each: each.current_values or each.changes, "the session")
        store.put_records(
            [("k", SessionKey(b"k", 5, 9).to_bytes(), None, 0), ("k", SessionKey(b"k", 5, 12).to_bytes(), b"2", 0)]
        )
        watcher.wait_for(lambda each: each.values[-2:] == [None, "2"], "the merged session")
        event = watcher.responses[-1].events[-1]
        assert (event.start_ms, event.end_ms) == (5, 12)


def test_versions(serve: Serve) -> None:
    store = serve(kind="versioned", retention_ms=10 * MINUTE)
    store.put_records([("k", b"k", b"2", 2), ("k", b"k\0", b"other", 2), ("k", b"gone", None, 2)])
    poll_until(lambda: store.get("k").found, 20, "the version")
    with store.watch("k") as one, store.watch(partition=0) as everything:
        everything.wait_for(lambda each: each.is_current, "the current values")
        one.wait_for(lambda each: each.is_current, "the current value")
        assert everything.current_values == {"k": "2", "k\0": "other"}
        # An older version is a change of the history, though not of the latest value.
        store.put_records([("k", b"k", b"1", 1), ("k", b"k", b"3", 3)])
        one.wait_for(lambda each: each.values == ["1", "3"], "the versions")
        assert one.current_values == {"k": "2"}


def left_at(store: ServedStore) -> query_service_pb2.WatchPosition:
    """Watch a key until its current value is there, and leave."""
    store.put({"a": "0"})
    poll_until(lambda: store.get("a").found, 20, "the value")
    with store.watch("a") as watcher:
        watcher.wait_for(lambda each: each.is_current, "the current value")
        assert watcher.current_values == {"a": "0"}
        return watcher.positions[0]


@pytest.mark.parametrize(
    ("config", "is_provable"), [({"min.compaction.lag.ms": "600000"}, True), ({"min.compaction.lag.ms": "0"}, False)]
)
def test_without_a_tail_it_resumes_through_the_log(serve: Serve, config: dict[str, str], is_provable: bool) -> None:
    store = serve(WITHOUT_TAIL, changelog_config=config)
    position = left_at(store)
    store.put({"a": "1"})
    store.put({"b": "1"})
    store.put({"a": "2"})
    with store.watch("a", resume=[position]) as watcher:
        watcher.wait_for(lambda each: each.values == ["1", "2"], "the changes since: no offset is missing")
        assert watcher.gaps == 0
        assert not watcher.current
        position = watcher.positions[0]
    # Markers of transactions leave holes in the offsets, as compaction does.
    for value in ("3", "4", "5"):
        put_transactionally(store, {"a": value})
    with store.watch("a", resume=[position]) as watcher:
        if is_provable:
            watcher.wait_for(lambda each: each.values == ["3", "4", "5"], "the changes since")
            assert watcher.gaps == 0
        else:
            watcher.wait_for(lambda each: each.gaps == 1 and each.is_current, "to be told of a gap")
            assert watcher.current_values == {"a": "5"}


def put_transactionally(store: ServedStore, entries: dict[str, str]) -> None:
    producer = Producer(
        {"bootstrap.servers": store.bootstrap, "transactional.id": f"{store.fleet.application_id}-writer"}
    )
    producer.init_transactions(30.0)
    producer.begin_transaction()
    for key, value in entries.items():
        producer.produce(store.changelog, key=key.encode(), value=value.encode(), partition=0)
    producer.commit_transaction(30.0)


def test_transactions_of_old_times_are_followed_without_a_gap(serve: Serve) -> None:
    store = serve()
    left_at(store)
    with store.watch("a") as watcher:
        watcher.wait_for(lambda each: each.is_current, "the current value")
        for value in map(str, range(5)):
            put_transactionally(store, {"a": value, "b": value})
        watcher.wait_for(lambda each: len(each.values) == 5, "the changes")
        assert watcher.values == ["0", "1", "2", "3", "4"]
        assert watcher.gaps == 0


@pytest.mark.feature("watch-key-prefix")
def test_a_compacted_past_is_told_as_a_gap(serve: Serve) -> None:
    store = serve(WITHOUT_TAIL, changelog_config={"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"})
    position = left_at(store)
    for value in ("1", "2", "3"):
        store.put({"a": value})

    def is_compacted() -> bool:
        store.put({"filler": "x"})  # rolls the segment, which alone can be cleaned
        return (b"a", b"2") not in read_all(store.bootstrap, store.changelog)

    poll_until(is_compacted, 60, "compaction")
    with store.watch("a", resume=[position]) as watcher:
        watcher.wait_for(lambda each: each.gaps and each.is_current, "to be told of a gap")
        assert watcher.current_values == {"a": "3"}
        assert watcher.values == [], "no change that others are missing before"
        store.put({"a": "4"})
        watcher.wait_for(lambda each: each.current_values == {"a": "4"} or each.values == ["4"], "what follows")


def test_a_position_of_another_log_is_told_as_a_gap(serve: Serve) -> None:
    store = serve()
    position = left_at(store)
    elsewhere = query_service_pb2.WatchPosition(partition=0, position=position.position, topic_id="another")
    beyond = query_service_pb2.WatchPosition(partition=0, position=10_000)
    for wrong in (elsewhere, beyond):
        with store.watch("a", resume=[wrong]) as watcher:
            watcher.wait_for(lambda each: each.is_current, "current values")
            assert watcher.gaps == 1
            assert [response.begins for response in watcher.responses if response.gap] == [True]
            assert watcher.current_values == {"a": "0"}


def test_a_slow_client_gets_everything(serve: Serve) -> None:
    store = serve(NARROW)
    left_at(store)
    padding = "x" * 2_000
    call = store.node.query.Watch(query_service_pb2.WatchRequest(store=store.name, partition=0))
    next(response for response in call if response.HasField("position"))
    produce(store.bootstrap, store.changelog, [(b"a", f"{number} {padding}".encode()) for number in range(5_000)])
    poll_until(lambda: store.get("a").value.text.startswith("4999 "), 30, "the node to have it all")
    seen: list[int] = []
    for response in call:
        assert not response.gap
        seen += [int(event.value.text.split()[0]) for event in response.events]
        if len(seen) >= 5_000:
            break
    call.cancel()
    assert seen == list(range(5_000))


def test_watches_are_bounded_and_leave_nothing(serve: Serve) -> None:
    store = serve(NARROW)
    left_at(store)
    for _ in range(5):
        watchers = [opened(store) for _ in range(3)]
        with store.watch("a") as refused:
            poll_until(lambda watcher=refused: watcher.failure, 20, "the refusal")
            assert refused.failure is not None
            assert refused.failure.reason is Reason.OVERLOADED
        for watcher in watchers:
            watcher.leave()


def opened(store: ServedStore) -> Watcher:
    """Open a watch as soon as there is room for one."""

    def attempt() -> Watcher | None:
        watcher = store.watch("a").__enter__()
        poll_until(lambda: watcher.failure or watcher.is_current, 20, "an answer")
        return None if watcher.failure else watcher

    return poll_until(attempt, 20, "room for a watch")


def test_whoever_watches_learns_why_it_ends(serve: Serve) -> None:
    store = serve()
    left_at(store)
    with store.watch("a") as moved:
        moved.wait_for(lambda each: each.is_current, "the current value")
        store.fleet.assign(TaskAssignment("n2"))
        poll_until(lambda: moved.failure, 20, "the end")
        assert moved.failure is not None
        assert moved.failure.reason in {Reason.PARTITION_RESTORING, Reason.PARTITION_NOT_OWNED}
    store.fleet.assign(TaskAssignment("n1"))
    store.fleet.wait_running([store.node])
    with store.watch("a") as watcher:
        watcher.wait_for(lambda each: each.is_current, "the current value")
        assert store.node.stop() == 0
        poll_until(lambda: watcher.failure, 20, "the end")
        assert watcher.failure is not None
        assert watcher.failure.reason is Reason.NODE_SHUTTING_DOWN
    store.node.start()


def test_pages_of_current_values_and_the_changes_meanwhile(serve: Serve) -> None:
    """However many pages there are, and whatever is written between them, no key ever goes back."""
    store = serve()
    keys = [f"k{number:04d}".encode() for number in range(3_500)]
    produce(store.bootstrap, store.changelog, [(key, b"0") for key in keys])
    poll_until(lambda: store.get("k3499").found, 20, "the values")
    # The last keys stay as they are: what has changed before its page is no current value any more.
    updates = [(keys[number * 37 % 2_500], str(number).encode()) for number in range(1, 4_001)]
    writer = Thread(target=lambda: produce(store.bootstrap, store.changelog, updates), daemon=True)
    writer.start()
    with store.watch(partition=0) as watcher:
        last = str(len(updates))
        watcher.wait_for(lambda each: last in each.values[-1:] or last in each.current_values.values(), "the last")
        writer.join()
        # If all was written before the first page, that has the last update, and others follow.
        watcher.wait_for(lambda each: "k3499" in each.current_values, "the last page")
        assert len(watcher.current) >= 2
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


def test_an_ephemeral_store_s_watch_outlives_its_node(serve: Serve) -> None:
    store = serve(ephemeral=True, changelog_config={"cleanup.policy": "delete"})
    position = left_at(store)
    store.node.kill()
    put_transactionally(store, {"a": "1"})
    put_transactionally(store, {"a": "2"})
    store.node.start()
    store.fleet.wait_running([store.node])
    assert not store.get("a").found, "it began anew"
    with store.watch("a", resume=[position]) as watcher:
        watcher.wait_for(lambda each: each.values == ["1", "2"], "what it missed, from the log")
        assert watcher.gaps == 0
