"""The assignment topic: one epoch is read whole or not at all, whatever compaction left of the log."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.assignment import Assignment, AssignmentReader, TaskAssignment, encode
from statehouse.contract.topology import StoreSpec, SubTopology, TaskId
from statehouse.control.v1 import assignment_pb2

NODES = st.sampled_from(["a", "b", "c"])
HOLDERS = st.builds(
    TaskAssignment,
    active=st.none() | NODES,
    standbys=st.lists(NODES, max_size=2, unique=True).map(tuple),
    warm_ups=st.lists(NODES, max_size=1).map(tuple),
    reason=st.sampled_from(["x", "y"]),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Assignment]:
    """Epochs of an application whose stores come and go."""
    epochs = []
    for epoch in range(1, draw(st.integers(1, 6)) + 1):
        numbers = draw(st.sets(st.integers(0, 2), max_size=3))
        stores = {f"s{n}": StoreSpec(f"s{n}", f"app-s{n}-changelog", 2, n) for n in numbers}
        subs = {n: SubTopology(n, f"q{n}", 2) for n in numbers}
        tasks = {task: draw(HOLDERS) for n in sorted(numbers) for task in subs[n].tasks}
        epochs.append(
            Assignment(
                epoch, f"r{epoch}", "c", MappingProxyType(stores), MappingProxyType(subs), MappingProxyType(tasks)
            )
        )
    return epochs


@pytest.mark.feature("assignment-topic-epoch")
@given(histories(), st.data())
def test_reader_gets_every_epoch_and_compaction_never_mixes_them(epochs: list[Assignment], data: st.DataObject) -> None:
    log: list[tuple[bytes, bytes | None]] = []
    written, previous = [], Assignment()
    for epoch in epochs:
        previous, records = encode(previous, epoch)
        written.append(previous)
        log += records

    reader = AssignmentReader()
    seen = [snapshot for key, value in log if (snapshot := reader.feed(key, value)) is not None]
    assert seen == written

    # Compaction may remove any record that a later one of its key covers.
    last = {key: index for index, (key, _) in enumerate(log)}
    kept = [record for index, record in enumerate(log) if last[record[0]] == index or data.draw(st.booleans(), "kept")]
    late = AssignmentReader()
    snapshots = [snapshot for key, value in kept if (snapshot := late.feed(key, value)) is not None]
    assert snapshots[-1] == written[-1]
    assert late.not_understood() == "", "what this version has written it can write on"
    assert all(snapshot in written for snapshot in snapshots)


@pytest.mark.feature("assignment-topic-epoch")
def test_unchanged_records_are_not_written_again() -> None:
    spec = StoreSpec("s", "app-s-changelog", 2, 0)
    tasks = {TaskId(0, 0): TaskAssignment("a"), TaskId(0, 1): TaskAssignment("b")}
    first = Assignment(
        1,
        "r",
        "c",
        MappingProxyType({"s": spec}),
        MappingProxyType({0: SubTopology(0, "q", 2)}),
        MappingProxyType(tasks),
    )
    first, records = encode(Assignment(), first)
    assert [key for key, _ in records] == [b"store/s", b"task/0", b"epoch"]
    moved = MappingProxyType(tasks | {TaskId(0, 1): TaskAssignment("a")})
    second, records = encode(first, Assignment(2, "r", "c", first.stores, first.sub_topologies, moved))
    assert [key for key, _ in records] == [b"task/0", b"epoch"]
    assert second.written_at == {"store/s": 1, "task/0": 2}


@pytest.mark.feature("keys-placed-java")
@pytest.mark.feature("unknown-fields-newer")
def test_unreadable_record_and_foreign_partitioner_are_reported_and_skipped() -> None:
    problems: list[str] = []
    reader = AssignmentReader(lambda key, error: problems.append(f"{key}: {error}"))
    assert reader.feed(b"store/x", b"\xff\xff") is None
    spec = StoreSpec("s", "app-s-changelog", 1, 0, partitioner="crc32")
    good = StoreSpec("t", "app-t-changelog", 1, 0)
    stores = MappingProxyType({"s": spec, "t": good})
    _, records = encode(Assignment(), Assignment(1, "r", "c", stores))
    (snapshot,) = [found for key, value in records if (found := reader.feed(key, value))]
    assert set(snapshot.stores) == {"t"}
    assert len(problems) == 2
    assert "crc32" in problems[1]
    assert reader.not_understood() == "store/s"


@pytest.mark.feature("keys-placed-java")
def test_a_store_whose_keys_are_hashed_otherwise_is_reported_and_left_out() -> None:
    """The published vectors are what counts, whatever name the partitioner has."""
    stores = {name: StoreSpec(name, f"app-{name}-changelog", 1, 0) for name in ("s", "t")}
    _, records = encode(Assignment(), Assignment(1, "r", "c", MappingProxyType(stores)))
    problems: list[tuple[str, str]] = []
    reader = AssignmentReader(lambda key, error: problems.append((key, str(error))))
    snapshots = []
    for name, value in records:
        record = assignment_pb2.AssignmentRecord.FromString(value or b"")
        if name == b"store/s":
            record.store.conformance_vectors[0].hash += 1
        snapshots.append(reader.feed(name, record.SerializeToString()))
    assert snapshots[-1] is not None
    assert set(snapshots[-1].stores) == {"t"}
    ((key, problem),) = problems
    assert key == "store/s"
    assert "store s: " in problem


@pytest.mark.feature("unknown-fields-newer")
@pytest.mark.parametrize("key", [b"store/s", b"task/0"])
def test_what_a_newer_version_has_added_is_noticed(key: bytes) -> None:
    subs = {0: SubTopology(0, "q", 1)}
    tasks = {TaskId(0, 0): TaskAssignment("a")}
    stores = {"s": StoreSpec("s", "app-s-changelog", 1, 0)}
    _, records = encode(Assignment(), Assignment(1, "r", "c", stores, subs, tasks))
    reader = AssignmentReader()
    for name, value in records:
        record = assignment_pb2.AssignmentRecord.FromString(value or b"")
        if name == key:
            part = record.store if record.HasField("store") else record.sub_topology
            part.MergeFromString(b"\xfa\x3f\x01!")  # field 1023
        reader.feed(name, record.SerializeToString())
    assert reader.current is not None
    assert reader.not_understood() == key.decode()


def test_what_is_in_a_snapshot_is_in_order() -> None:
    """A protobuf map has another order in each process; what follows from an assignment must not."""
    subs = {number: SubTopology(number, f"q{number}", 2) for number in range(12)}
    tasks = {task: TaskAssignment("a") for sub in subs.values() for task in sub.tasks}
    _, records = encode(Assignment(), Assignment(1, sub_topologies=subs, tasks=tasks))
    reader = AssignmentReader()
    for key, value in records:
        reader.feed(key, value)
    assert reader.current is not None
    keys = [f"task/{number}" for number in reader.current.sub_topologies]
    assert keys == sorted(keys)


@pytest.mark.feature("control-topic-deleted")
def test_another_log_counts_its_own_epochs() -> None:
    """The topic was recreated: the last snapshot stays until the new log, read to its end, has a whole one."""
    stores = {"s": StoreSpec("s", "app-s-changelog", 1, 0)}
    seventh, before = encode(Assignment(), Assignment(7, "old", "c", stores))
    second, first_records = encode(Assignment(), Assignment(1, "new", "c", stores))
    second, after = encode(second, Assignment(2, "newer", "c", stores))
    reader = AssignmentReader()
    for record in before:
        reader.feed(*record)
    assert (reader.current, reader.is_current_of_log) == (seventh, True)
    reader.begin()
    assert reader.end_reached() is None
    assert (reader.current, reader.is_current_of_log, reader.epoch) == (seventh, False, 0)
    reader.begin()
    for record in (*first_records, *after):
        assert reader.feed(*record) is None
    assert reader.end_reached() == second
    assert (reader.current, reader.is_current_of_log, reader.epoch) == (second, True, 2)
    assert reader.end_reached() is None


@pytest.mark.feature("control-topic-deleted")
@given(histories(), st.data())
def test_what_a_log_lacks_or_has_otherwise_is_noticed(epochs: list[Assignment], data: st.DataObject) -> None:
    reader, written = AssignmentReader(), Assignment()
    for epoch in epochs:
        written, records = encode(written, epoch)
        for record in records:
            reader.feed(*record)
        assert reader.unlike(written) == ""
    if not written.written_at:
        return
    key = data.draw(st.sampled_from([*sorted(written.written_at), "epoch"]))
    what = data.draw(st.sampled_from(["deleted", "unreadable", "another"]))
    changed = dict(encode(Assignment(), Assignment(written.epoch, "", "x", *_changed(written)))[1])
    value = {"deleted": None, "unreadable": b"\xff", "another": changed[key.encode()]}[what]
    reader.feed(key.encode(), value)
    assert reader.unlike(written) == key
    following, mended = encode(Assignment(), replace(written, epoch=written.epoch + 1))
    for record in mended:
        reader.feed(*record)
    assert reader.unlike(following) == ""


@given(histories(), st.data())
def test_a_record_that_is_refused_hides_no_good_one_from_who_begins_to_read(
    epochs: list[Assignment], data: st.DataObject
) -> None:
    """As long as the log is not compacted: a good record before it, or after it, counts."""
    log: list[tuple[bytes, bytes | None]] = []
    written = Assignment()
    for epoch in epochs:
        written, records = encode(written, epoch)
        log += records
    for key in sorted({*written.written_at, "epoch"}):
        log.insert(data.draw(st.integers(0, len(log)), f"where {key} is spoilt"), (key.encode(), b"\xff"))
    reader = AssignmentReader()
    reader.begin()
    for record in log:
        assert reader.feed(*record) is None
    assert reader.end_reached() == written
    assert reader.current == written


def test_what_strangers_write_under_keys_of_their_own_is_not_mended() -> None:
    stores = {"s": StoreSpec("s", "app-s-changelog", 1, 0)}
    written, records = encode(Assignment(), Assignment(1, "", "c", stores))
    reader = AssignmentReader()
    for record in (*records, (b"store/elsewhere", b"\xff"), (b"store/other", dict(records)[b"store/s"])):
        reader.feed(*record)
    assert reader.unlike(written) == ""


def test_an_epoch_that_none_could_follow_is_refused_by_everybody() -> None:
    stores = {"s": StoreSpec("s", "app-s-changelog", 1, 0)}
    written, records = encode(Assignment(), Assignment(1, "", "c", stores))
    manifest = assignment_pb2.AssignmentRecord.FromString(dict(records)[b"epoch"] or b"")
    for epoch in (2**21, 2**53, 2**64 - 1):
        manifest.manifest.epoch = epoch
        reader = AssignmentReader()
        for record in (*records, (b"epoch", manifest.SerializeToString())):
            reader.feed(*record)
        assert reader.current == written
        assert reader.unlike(written) == "epoch"


def test_after_the_log_was_begun_anew_nothing_in_it_is_strange() -> None:
    """Else no standby controller would take over where the topic was made anew."""
    stores = {"s": StoreSpec("s", "app-s-changelog", 1, 0)}
    _, records = encode(Assignment(), Assignment(1, "", "c", stores))
    reader = AssignmentReader()
    for record in records:
        reader.feed(*record)
    reader.begin()
    reader.end_reached()
    assert reader.current is not None
    assert reader.not_understood() == ""


def _changed(assignment: Assignment) -> tuple[dict[str, StoreSpec], dict[int, SubTopology]]:
    """Return other stores and sub-topologies of the same names; their tasks have no holders."""
    stores = {name: replace(spec, in_memory=not spec.in_memory) for name, spec in assignment.stores.items()}
    return stores, {number: replace(sub, query=f"{sub.query}-x") for number, sub in assignment.sub_topologies.items()}
