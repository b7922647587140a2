"""A fault on a disk or in a log stops one task, which is restored where it can be; never a wrong answer.

Every test has two stores on one node, so that it can show that the task of the other store went on serving.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from query_service.dataplane.holding import FOLDER
from query_service.disk.directory import TaskDirectory
from query_service.states.checkpoint import FORMAT_VERSION
from query_service.states.faults import Fault, FaultOutcome
from query_service.stores.rocksdb_engine import RocksDBEngine
from statehouse.contract.assignment import Assignment, TaskAssignment, encode
from statehouse.contract.topology import StoreSpec, SubTopology, TaskId, assignment_topic, changelog_topic
from statehouse.errors import LookupFailure, Reason
from statehouse.kafka.topics import topic_settings
from statehouse.keys.composite import WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import node_service_pb2, query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess, content
from tests.support.kafka import alter_topic, create_topic, produce, read_all
from tests.support.metrics import scrape
from tests.support.polling import poll_until
from tests.support.small_disk import fill, small_disk

TASK_STOPPED, STORE_WIPED, PASSED_OVER = FaultOutcome.TASK_STOPPED, FaultOutcome.STORE_WIPED, FaultOutcome.PASSED_OVER

OTHER = "other"
ROW = "row"


class Faulty(Fleet):
    """A fleet whose first store has one partition, task 0_0, next to a store that nothing happens to, task 1_0."""

    def __init__(self, bootstrap: str, application_id: str, directory: Path, **options: Any) -> None:
        super().__init__(bootstrap, application_id, directory, partitions=1, **options)
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._metrics_ports: dict[str, int] = {}
        self.other = StoreSpec(OTHER, changelog_topic(application_id, OTHER), 1, 1, value_serde="string")
        create_topic(bootstrap, self.other.changelog_topic, 1, {"cleanup.policy": "compact"})
        produce(bootstrap, self.other.changelog_topic, [(ROW.encode(), b"kept")])

    def __enter__(self) -> Self:
        return self

    def assign(self, *holders: TaskAssignment, reason: str = "test") -> int:
        """Publish who holds 0_0 and, secondly, 1_0."""
        following = Assignment(
            self.assignment.epoch + 1,
            reason,
            "test",
            MappingProxyType({STORE: self.spec, OTHER: self.other}),
            MappingProxyType({0: SubTopology(0, "query", 1), 1: SubTopology(1, "beside", 1)}),
            MappingProxyType({TaskId(nth, 0): holder for nth, holder in enumerate(holders)}),
        )
        self.assignment, records = encode(self.assignment, following)
        self._producer.begin_transaction()
        for key, value in records:
            self._producer.produce(assignment_topic(self.application_id), key=key, value=value, partition=0)
        self._producer.commit_transaction(30.0)
        return self.assignment.epoch

    def serving(self, entries: Mapping[str, str | None], **options: object) -> ServerProcess:
        """Write entries; return a node that holds both tasks and serves them."""
        self.put(entries)
        node = self.node("n1", **options)
        self.assign(TaskAssignment("n1"), TaskAssignment("n1"))
        self.wait_running([node])
        return node

    def node(self, name: str, **options: object) -> ServerProcess:
        """Start a node that serves metrics."""
        self._metrics_ports[name] = free_port()
        return super().node(name, metrics_port=self._metrics_ports[name], **options)

    def has_restored_in_full(self, node: ServerProcess) -> bool:
        """Whether the node has restored the store from the start of its log since it was started."""
        return scrape(self._metrics_ports[node.name]).value("statehouse_node_full_restores_total", store=STORE) > 0

    def assert_faults(self, node: ServerProcess, expected: Mapping[tuple[Fault, FaultOutcome], int | None]) -> None:
        """Compare what the node has counted since it started, None being any number; all of it is of the one task."""
        served = scrape(self._metrics_ports[node.name])
        found = {
            (Fault(labels["fault"]), FaultOutcome(labels["outcome"])): served.value(
                "statehouse_node_faults_total", **labels
            )
            for labels in served.labels("statehouse_node_faults_total")
        }
        assert found == {what: found.get(what) if times is None else times for what, times in expected.items()}
        assert all(found.values())
        restored = "statehouse_node_full_restores_total"
        wiped = {
            (Fault(labels["fault"]), STORE_WIPED): served.value(restored, **labels)
            for labels in served.labels(restored)
            if labels["fault"] != Fault.NO_STATE
        }
        assert wiped == {what: times for what, times in found.items() if what[1] is STORE_WIPED}
        assert {labels["store"] for labels in served.labels(restored) if labels["fault"] != Fault.NO_STATE} <= {STORE}

    def folder(self, name: str = "n1") -> Path:
        """Return the state directory of the application on a node."""
        return self.directory / name / self.application_id

    def files(self, engine: str) -> Path:
        """Return where an engine keeps the faulty store on n1."""
        store = self.folder() / "0_0" / STORE
        return store / FOLDER if engine == "go" else store

    def truncate(self, offset: int = -1) -> None:
        """Delete the changelog's records before an offset, -1 all of them, whatever its policy says."""
        kept = topic_settings(self.admin, self.changelog)["cleanup.policy"]
        # The broker deletes records of no other topic on demand.
        alter_topic(self.bootstrap, self.changelog, {"cleanup.policy": "delete"})
        (done,) = self.admin.delete_records([TopicPartition(self.changelog, 0, offset)]).values()
        done.result(30)
        alter_topic(self.bootstrap, self.changelog, {"cleanup.policy": kept})

    def recreate(self) -> None:
        """Delete the changelog and create it anew under its name."""
        self.admin.delete_topics([self.changelog])[self.changelog].result(30)
        poll_until(lambda: self.changelog not in self.admin.list_topics(timeout=10).topics, 30, "the deletion")
        create_topic(self.bootstrap, self.changelog, 1, {"cleanup.policy": "compact"})


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Faulty]:
    with Faulty(kafka.bootstrap, unique_name("app"), tmp_path) as fleet:
        yield fleet


def task_of(node: ServerProcess, name: str = "0_0") -> node_service_pb2.TaskReplica:
    """Return a task as the node tells of it, which it doesn't between closing and opening it again."""
    return poll_until(lambda: next((task for task in node.node().tasks if task.task == name), None), 20, f"task {name}")


def answers(node: ServerProcess, key: str) -> str | None:
    """Return a key's value in the faulty store, None while there is no answer or no such key."""
    try:
        answer = node.get(key)
    except LookupFailure:
        return None
    return answer.value.text if answer.found else None


def failed(node: ServerProcess, reason: str) -> None:
    """Wait for the faulty store's task to stop for a reason; its neighbour goes on."""
    poll_until(lambda: reason in task_of(node).error, 30, f"the task to stop for {reason}")
    poll_until(lambda: task_of(node, "1_0").state == "running", 30, "the neighbour to run")
    poll_until(lambda: refuses(node, Reason.TASK_FAILED), 30, "a read to be refused")
    assert_neighbour_serves(node)


def refuses(node: ServerProcess, reason: Reason) -> bool:
    try:
        node.get("a")
    except LookupFailure as failure:
        return failure.reason is reason
    return False


def assert_neighbour_serves(node: ServerProcess) -> None:
    assert node.get(ROW, store=OTHER).value.text == "kept"
    beside = task_of(node, "1_0")
    assert (beside.state, beside.error) == ("running", "")


def assert_neighbour_kept_its_state(node: ServerProcess) -> None:
    """After a restart: the other store was neither wiped nor read again."""
    assert_neighbour_serves(node)
    assert task_of(node, "1_0").stores[0].restored_records == 0


def test_damaged_checkpoint_file_costs_nothing(fleet: Faulty) -> None:
    node = fleet.serving({"a": "1", "b": "2"})
    node.kill()
    (fleet.folder() / "0_0" / ".checkpoint").write_bytes(b"\xff\x00{")
    fleet.put({"a": "3"})
    node.start()
    fleet.wait_running([node])
    assert content(node) == {"a": "3", "b": "2"}
    assert task_of(node).stores[0].restored_records == 1, "the place in the store itself is the truth"
    assert "checkpoint file can't be read" in node.log
    assert_neighbour_kept_its_state(node)
    fleet.assert_faults(node, {(Fault.CHECKPOINT_UNREADABLE, PASSED_OVER): 1})


@pytest.mark.feature("checkpoint-damaged-missing")
@pytest.mark.feature("full-disk-stops")
@pytest.mark.parametrize(
    ("engine", "pattern"),
    [
        ("python", "CURRENT"),
        pytest.param("python", "MANIFEST-*", marks=pytest.mark.long),
        pytest.param("python", "*.sst", marks=pytest.mark.long),
        ("go", "MANIFEST-*"),
        ("go", "*.sst"),
    ],
)
def test_corrupt_database_is_wiped_and_restored(fleet: Faulty, engine: str, pattern: str) -> None:
    node = fleet.serving({"a": "1", "b": "2", "gone": "3"}, engine=engine)
    assert node.stop() == 0
    files = list(fleet.files(engine).glob(pattern))
    assert files
    for file in files:
        file.write_bytes(b"garbage" * 10)
    fleet.put({"gone": None})
    node.start()
    fleet.wait_running([node])
    assert content(node) == {"a": "1", "b": "2"}
    assert task_of(node).stores[0].restored_records == 4
    assert "store restored from the start" in node.log
    assert_neighbour_kept_its_state(node)
    fleet.assert_faults(node, {(Fault.CORRUPT_STORE, STORE_WIPED): 1})


@pytest.mark.feature("older-state-directories")
def test_store_of_another_format_is_wiped_and_restored(fleet: Faulty) -> None:
    node = fleet.serving({"a": "1", "b": "2"}, engine="python")
    assert node.stop() == 0
    engine = RocksDBEngine(fleet.folder() / "0_0" / STORE)
    checkpoint = engine.checkpoint()
    assert checkpoint is not None
    engine.write({}, replace(checkpoint, format_version=FORMAT_VERSION + 1))
    engine.close()
    node.start()
    fleet.wait_running([node])
    assert content(node) == {"a": "1", "b": "2"}
    assert f"checkpoint of format {FORMAT_VERSION + 1}, this version has {FORMAT_VERSION}" in node.log
    assert_neighbour_kept_its_state(node)
    fleet.assert_faults(node, {(Fault.UNKNOWN_FORMAT, STORE_WIPED): 1})


@pytest.mark.feature("older-state-directories")
@pytest.mark.long
def test_a_directory_from_before_timestamps_is_restored_with_them(fleet: Faulty) -> None:
    """Format 1 has values only. Read as format 2, their first bytes would be taken for a time."""
    fleet.put_records([("a", b"a", b"first value", 1_000), ("b", b"b", b"second value", 2_000)])
    node = fleet.serving({}, engine="python")
    at = poll_until(lambda: node.get("b").found and node.get("b").timestamp_ms, 20, "the values")
    assert (at, node.stop()) == (2_000, 0)
    path = fleet.folder() / "0_0" / STORE
    engine = RocksDBEngine(path)
    checkpoint = engine.checkpoint()
    assert checkpoint is not None
    engine.close()
    shutil.rmtree(path)
    engine = RocksDBEngine(path)
    old = replace(checkpoint, format_version=1)
    engine.write({"default": [(b"a", b"first value"), (b"b", b"second value")]}, old)
    engine.close()
    # Another node may not learn from the readable copy that this one is nearly ready.
    copy = fleet.folder() / "0_0" / ".checkpoint"
    copy.write_text(json.dumps({STORE: json.loads(old.to_json())}))
    node.start()
    fleet.wait_running([node])
    found = {key: node.get(key) for key in "ab"}
    assert {key: (each.value.text, each.timestamp_ms) for key, each in found.items()} == {
        "a": ("first value", 1_000),
        "b": ("second value", 2_000),
    }
    assert f"checkpoint of format 1, this version has {FORMAT_VERSION}" in node.log
    assert "store restored from the start" in node.log
    assert_neighbour_kept_its_state(node)
    fleet.assert_faults(
        node, {(Fault.UNKNOWN_FORMAT, STORE_WIPED): 1, (Fault.CHECKPOINT_UNREADABLE, PASSED_OVER): None}
    )
    assert node.stop() == 0
    node.start()
    fleet.wait_running([node])
    assert task_of(node).stores[0].restored_records == 0
    assert {key: node.get(key).timestamp_ms for key in "ab"} == {"a": 1_000, "b": 2_000}, "they are on disk now"


def test_store_that_is_defined_anew_is_restored(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    minute = 60_000
    window = {"kind": "window", "window_size_ms": minute}
    with Faulty(kafka.bootstrap, unique_name("app"), tmp_path, retention_ms=20 * minute, **window) as fleet:
        starts = range(100 * minute, 110 * minute, minute)
        fleet.put_records(("k", WindowKey(b"k", start).to_bytes(), b"v", start) for start in starts)
        node = fleet.serving({})
        assert node.stop() == 0
        node.start()
        fleet.wait_running([node])
        fleet.assert_faults(node, {})
        fleet.spec = replace(fleet.spec, retention_ms=60 * minute)  # cuts time into other segments
        fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
        poll_until(lambda: fleet.has_restored_in_full(node), 30, "the store to be restored")
        fleet.wait_running([node])
        request = query_service_pb2.FetchWindowsRequest(
            store=STORE, key=types_pb2.Key(text="k"), from_ms=105 * minute, to_ms=109 * minute
        )
        assert len(node.call(node.query.FetchWindows, request).windows) == 5
        assert_neighbour_kept_its_state(node)
        fleet.assert_faults(node, {(Fault.UNKNOWN_FORMAT, STORE_WIPED): 1})


@pytest.mark.feature("full-disk-stops")
@pytest.mark.parametrize("engine", ["go", "python"])
def test_damage_found_by_a_read_stops_the_task_and_is_wiped(fleet: Faulty, engine: str) -> None:
    rows = {f"k{nth:04d}": os.urandom(500).hex() for nth in range(2_000)}
    node = fleet.serving(rows, engine=engine)
    assert node.stop() == 0
    if engine == "python":
        RocksDBEngine(fleet.files(engine)).close()  # makes the write-ahead log a file of entries
    file = max(fleet.files(engine).glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 100] = b"x" * 100
    file.write_bytes(data)
    node.start()
    fleet.wait_running([node])
    assert task_of(node).stores[0].restored_records == 0, "it is opened without being read whole"

    with pytest.raises(LookupFailure) as failure:
        content(node)
    assert failure.value.reason is Reason.TASK_FAILED, "a scan that ends at the damage would be a wrong answer"
    fleet.put({"next": "1"})  # a write is refused: the store is known to be damaged
    poll_until(lambda: answers(node, "next"), 30, "the task to be restored")
    assert content(node) == rows | {"next": "1"}
    assert "checksum" in node.log
    assert "lock hold by current process" not in node.log, "the failed scan let go of the database"
    assert_neighbour_serves(node)
    fleet.assert_faults(node, {(Fault.CORRUPT_STORE, TASK_STOPPED): 1, (Fault.CORRUPT_STORE, STORE_WIPED): 1})


@pytest.mark.feature("checkpoint-damaged-missing")
def test_truncated_log_is_restored_after_a_stop_and_while_running(fleet: Faulty) -> None:
    node = fleet.serving({"a": "1", "b": "2"})
    assert node.stop() == 0
    fleet.put({"c": "3"})
    fleet.truncate()
    fleet.put({"d": "4"})
    node.start()
    fleet.wait_running([node])
    assert content(node) == {"d": "4"}, "what the log no longer tells of may have been deleted in it"
    assert "is before the start of the log" in node.log
    assert_neighbour_kept_its_state(node)
    fleet.assert_faults(node, {(Fault.LOG_TRUNCATED, STORE_WIPED): 1})

    node.freeze()
    fleet.put({"e": "5"})  # answers the request that was under way
    fleet.put({"f": "6"})
    fleet.truncate()
    fleet.put({"g": "7"})
    node.thaw()
    poll_until(lambda: answers(node, "g"), 30, "the task to be restored")
    assert content(node) == {"g": "7"}
    assert_neighbour_serves(node)
    fleet.assert_faults(node, {(Fault.LOG_TRUNCATED, TASK_STOPPED): 1, (Fault.LOG_TRUNCATED, STORE_WIPED): 2})


@pytest.mark.feature("expired-part-log")
def test_expired_part_of_a_log_is_passed_over(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    with Faulty(
        kafka.bootstrap, unique_name("app"), tmp_path, changelog_config={"cleanup.policy": "compact,delete"}
    ) as fleet:
        node = fleet.serving({"a": "1", "b": "2"})
        assert node.stop() == 0
        fleet.put({"c": "3"})
        fleet.truncate()
        fleet.put({"d": "4"})
        node.start()
        fleet.wait_running([node])
        assert content(node) == {"a": "1", "b": "2", "d": "4"}
        assert task_of(node).stores[0].restored_records == 1
        assert_neighbour_kept_its_state(node)
        fleet.assert_faults(node, {(Fault.LOG_EXPIRED, PASSED_OVER): 1})


@pytest.mark.feature("checkpoint-damaged-missing")
def test_recreated_topic_is_noticed_after_a_stop(fleet: Faulty) -> None:
    node = fleet.serving({"a": "1", "b": "2"})
    assert node.stop() == 0
    fleet.recreate()
    fleet.put({"a": "9", "c": "3", "d": "4", "e": "5"})  # its end is beyond the old position
    node.start()
    fleet.wait_running([node])
    assert content(node) == {"a": "9", "c": "3", "d": "4", "e": "5"}
    assert "checkpoint is of another topic" in node.log
    assert_neighbour_kept_its_state(node)
    fleet.assert_faults(node, {(Fault.TOPIC_RECREATED, STORE_WIPED): 1})


def test_recreated_topic_is_noticed_while_running(fleet: Faulty) -> None:
    node = fleet.serving({"a": "1", "b": "2", "c": "3"})
    for times, fresh in enumerate(({"a": "9"}, {"a": "8"} | {f"n{nth}": "1" for nth in range(10)}), start=1):
        fleet.recreate()
        fleet.put(fresh)  # the end is before the old position, then beyond it
        poll_until(lambda fresh=fresh: has_only(node, fresh), 20, "the new topic's content")
        assert node.log.count("was recreated") == times
    fleet.put({"later": "1"})
    poll_until(lambda: answers(node, "later"), 20, "the new topic to be followed")
    assert_neighbour_serves(node)
    fleet.assert_faults(node, {(Fault.TOPIC_RECREATED, TASK_STOPPED): 2, (Fault.TOPIC_RECREATED, STORE_WIPED): 2})


def has_only(node: ServerProcess, entries: dict[str, str]) -> bool:
    """Whether the faulty store holds these entries and no others; False while it does not answer."""
    try:
        return content(node) == entries
    except LookupFailure:
        return False


@pytest.mark.feature("unreadable-record-skipped")
def test_unreadable_record_is_skipped_and_counted(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    # The broker itself refuses such a record in a topic that is compacted.
    config = {"cleanup.policy": "delete"}
    with Faulty(kafka.bootstrap, unique_name("app"), tmp_path, changelog_config=config) as fleet:
        fleet.put({"a": "1"})
        node, standby = fleet.node("n1"), fleet.node("n2")
        fleet.assign(TaskAssignment("n1", ("n2",)), TaskAssignment("n1"))
        fleet.wait_running([node, standby])
        produce(fleet.bootstrap, fleet.changelog, [(b"b", b"2"), (None, b"no key"), (b"c", b"3")])
        for copy in (node, standby):
            poll_until(partial(answers, copy, "c"), 20, f"the record after it at {copy.name}")
            assert content(copy) == {"a": "1", "b": "2", "c": "3"}
            task = task_of(copy)
            assert (task.state, task.stores[0].skipped_records, task.stores[0].position) == ("running", 1, 4)
            assert "unreadable record skipped" in copy.log
            fleet.assert_faults(copy, {(Fault.UNREADABLE_RECORD, PASSED_OVER): 1})
        assert [task_of(copy).role for copy in (node, standby)] == [
            types_pb2.REPLICA_ROLE_ACTIVE,
            types_pb2.REPLICA_ROLE_STANDBY,
        ]
        assert_neighbour_serves(node)


@pytest.mark.feature("deleted-keys-don")
@pytest.mark.long
def test_deleted_keys_do_not_come_back_from_an_old_checkpoint(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    eager = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "3000",
    }
    with Faulty(kafka.bootstrap, unique_name("app"), tmp_path, changelog_config=eager) as fleet:
        node = fleet.serving({"kept": "1", "gone": "1", "frozen": "1"})
        assert node.stop() == 0
        forget(fleet, "gone")
        node.start()
        fleet.wait_running([node])
        assert not node.get("gone").found
        assert node.get("kept").value.text == "1"
        assert "deleted keys could come back (raise delete.retention.ms)" in node.log
        assert_neighbour_kept_its_state(node)
        fleet.assert_faults(node, {(Fault.CHECKPOINT_TOO_OLD, STORE_WIPED): 1})

        node.freeze()  # a replica that falls behind for as long has missed as much
        forget(fleet, "frozen")
        node.thaw()
        # The tombstone may be in a fetch that was under way: then the key is gone before the node knows what it missed.
        poll_until(lambda: "it took" in node.log, 30, "the node to know that it missed tombstones")
        poll_until(lambda: refuses_or_lacks(node, "frozen") and answers(node, "kept"), 30, "the task to be restored")
        assert content(node).keys() & {"kept", "gone", "frozen"} == {"kept"}
        assert_neighbour_serves(node)
        fleet.assert_faults(
            node, {(Fault.CHECKPOINT_TOO_OLD, TASK_STOPPED): None, (Fault.CHECKPOINT_TOO_OLD, STORE_WIPED): None}
        )


def forget(fleet: Faulty, key: str) -> None:
    """Delete a key and write on until compaction has removed its tombstone from the log."""
    fleet.put({key: None})

    def is_forgotten() -> bool:
        fleet.put({"filler": "x"})  # rolls the segment, which alone can be cleaned
        return all(found != key.encode() for found, _ in read_all(fleet.bootstrap, fleet.changelog))

    poll_until(is_forgotten, 60, f"the tombstone of {key} to be compacted away")


def refuses_or_lacks(node: ServerProcess, key: str) -> bool:
    try:
        return not node.get(key).found
    except LookupFailure:
        return True


@pytest.mark.feature("full-disk-stops")
def test_full_disk_stops_its_node_s_tasks_alone_and_is_left_behind(fleet: Faulty) -> None:
    with small_disk(fleet.directory / "small", 8) as disk:
        node = fleet.serving({"a": "1"})
        standby = fleet.node("n2", state_dir=disk)
        fleet.assign(TaskAssignment("n1", ("n2",)), TaskAssignment("n1"))
        fleet.wait_running([node, standby])
        filler = fill(disk)
        rows = {f"k{nth:03d}": os.urandom(1_000).hex() for nth in range(100)}
        fleet.put(rows)
        task = poll_until(lambda: (t := task_of(standby)).state == "error" and t, 30, "the task to stop")
        assert "no space left on device" in task.error.lower()
        assert str(disk) in task.error
        with pytest.raises(LookupFailure) as failure:
            standby.get("a")
        assert failure.value.reason is Reason.TASK_FAILED
        poll_until(lambda: answers(node, "k099"), 20, "the other node to go on")
        assert content(node) == rows | {"a": "1"}
        assert_neighbour_serves(node)

        filler.unlink()
        poll_until(lambda: answers(standby, "k099"), 60, "the task to recover")
        assert content(standby) == rows | {"a": "1"}
        fleet.assert_faults(standby, {(Fault.DISK_FULL, TASK_STOPPED): None})  # not wiped: its state was intact
        fleet.assert_faults(node, {})
        standby.stop()


def test_directory_that_can_not_be_written_is_named(fleet: Faulty) -> None:
    folder = fleet.folder() / "0_0"
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    fleet.put({"a": "1"})
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    poll_until(lambda: [t for t in node.node().tasks if t.task == "1_0" and t.state == "running"], 30, "the other task")
    failed(node, str(folder))
    folder.unlink()
    (folder / ".checkpoint").mkdir(parents=True)
    failed(node, str(folder / ".checkpoint"))
    shutil.rmtree(folder)
    poll_until(lambda: answers(node, "a"), 60, "the task to recover")
    assert_neighbour_serves(node)
    fleet.assert_faults(node, {(Fault.DISK_REFUSED, TASK_STOPPED): None})


@pytest.mark.long
def test_folder_that_another_process_has_is_taken_over_when_it_ends(fleet: Faulty) -> None:
    folder = TaskDirectory(fleet.folder() / "0_0")
    folder.acquire()
    fleet.put({"a": "1"})
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    poll_until(lambda: [t for t in node.node().tasks if t.task == "1_0" and t.state == "running"], 30, "the other task")
    failed(node, f"in use by process {os.getpid()}")
    folder.release()
    poll_until(lambda: answers(node, "a"), 60, "the task to recover")
    assert_neighbour_serves(node)
    fleet.assert_faults(node, {(Fault.LOCK_HELD, TASK_STOPPED): None})


@pytest.mark.feature("memory-bound-store")
def test_store_beyond_its_memory_stops_its_task_alone(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    with Faulty(kafka.bootstrap, unique_name("app"), tmp_path, in_memory=True) as fleet:
        fleet.put({f"k{nth}": "x" * 1_000 for nth in range(100)})
        node = fleet.node("n1", memory_store_max_bytes=50_000)
        fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
        poll_until(lambda: node.node().tasks, 30, "the tasks")
        failed(node, "memory_store_max_bytes")
        fleet.assert_faults(node, {(Fault.MEMORY_BUDGET, TASK_STOPPED): None})
