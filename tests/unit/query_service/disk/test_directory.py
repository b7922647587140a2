"""State directories: locks, wipes, readable checkpoints, and what `statehouse state inspect` says of them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import typer
from structlog.testing import capture_logs
from typer.testing import CliRunner

from query_service.cli import state
from query_service.disk.directory import CheckpointUnreadable, StateDirectory, TaskDirectory, TaskLocked
from query_service.inspect import stores_in
from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault, TaskFault
from query_service.stores.base import ChangelogRecord
from query_service.stores.catalog import open_store
from query_service.stores.engine import StoreUnusable
from query_service.stores.resources import StoreResources
from query_service.stores.rocksdb_engine import DiskRefused, RocksDBEngine
from statehouse.contract.topology import KEY_VALUE, SESSION, VERSIONED, WINDOW, GlobalId, StoreSpec, TaskId
from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.keys.composite import SessionKey, WindowKey

AT = Checkpoint("topic", "id", 7, 1_700_000_000_000)
ENTRIES = [(b"k%04d" % nth, os.urandom(200)) for nth in range(5_000)]


@pytest.fixture
def task(tmp_path: Path) -> TaskDirectory:
    """A closed task with a store of two entries."""
    folder = StateDirectory(tmp_path, "app").task(TaskId(0, 3))
    folder.acquire()
    engine = RocksDBEngine(folder.store_path("counts"))
    engine.write({"default": [(b"a", b"1"), (b"b", b"2")]}, AT)
    engine.close()
    folder.write_checkpoints({"counts": AT})
    folder.release()
    return folder


@pytest.mark.feature("state-directory-reboot")
@pytest.mark.parametrize(("parent", "is_warned_of"), [("/tmp", True), ("/var/tmp", False)])  # noqa: S108 - the subject
def test_a_state_directory_that_a_reboot_empties_is_warned_of(parent: str, is_warned_of: bool) -> None:
    with TemporaryDirectory(dir=parent) as directory, capture_logs() as logs:
        StateDirectory(Path(directory), "app")
        assert (Path(directory) / "app").is_dir()
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
        "state_dir is under /tmp: a reboot costs a full restore; set state_dir"
    ] * is_warned_of


def test_a_lock_that_the_file_system_refuses_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = TaskDirectory(tmp_path / "0_0")

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match=r"No locks available.*0_0/\.lock"):
        folder.acquire()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


@pytest.mark.feature("one-process-task")
def test_lock_is_released_if_its_holder_can_not_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = TaskDirectory(tmp_path / "0_0")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match=r"No space left on device.*0_0/\.lock"):
            folder.acquire()
    folder.acquire()
    with pytest.raises(TaskLocked, match=f"process {os.getpid()}"):
        TaskDirectory(folder.path).acquire()
    folder.release()


def test_removed_folder_is_another_one_than_a_later_one_of_its_name(task: TaskDirectory) -> None:
    state = StateDirectory(task.path.parents[1], "app")
    (state.path / "global" / "countries").mkdir(parents=True)
    assert set(map(str, state.on_disk())) == {"0_3", "global/countries"}
    task.acquire()
    with pytest.raises(TaskLocked):
        TaskDirectory(task.path).remove()
    assert task.read_checkpoints() == {"counts": AT}
    task.release()
    TaskDirectory(task.path).remove()
    assert [str(held) for held in state.on_disk()] == ["global/countries"]


def test_lock_of_a_folder_that_is_being_removed_is_none(task: TaskDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def open_and_lose(path: Path, *rest: int) -> int:
        fd = opened(path, *rest)
        (task.path / ".lock").unlink()
        return fd

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_and_lose)
        with pytest.raises(OSError, match=r"0_3/\.lock"):
            TaskDirectory(task.path).acquire()
    task.acquire()
    task.release()


def test_wipe_removes_all_or_says_so(task: TaskDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "rmdir", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EROFS, "Read-only file system"))
        )
        with pytest.raises(OSError, match="Read-only"):
            task.wipe_store("counts")
    task.wipe_store("counts")
    assert not task.store_path("counts").exists()
    assert task.read_checkpoints() == {}
    task.store_path("counts").write_text("a file in its place")
    task.wipe_store("counts")
    task.wipe_store("counts")
    assert not task.store_path("counts").exists()


@pytest.mark.feature("offsets-read-file")
@pytest.mark.parametrize("damage", [b"", b"\xff\x00", b"[1]", b'{"counts": 3}', b'{"counts": {"position": -7}}'])
def test_damaged_readable_copy_is_as_good_as_none(task: TaskDirectory, damage: bytes) -> None:
    (task.path / ".checkpoint").write_bytes(damage)
    with pytest.raises(CheckpointUnreadable, match=r"0_3/\.checkpoint"):
        task.read_checkpoints()
    faults: list[Fault] = []
    assert StateDirectory(task.path.parents[1], "app").dormant(faults.append) == {}
    assert faults == [Fault.CHECKPOINT_UNREADABLE]


def test_readable_copy_is_written_by_one_at_a_time_and_not_after_release(task: TaskDirectory) -> None:
    task.acquire()
    with ThreadPoolExecutor(2) as threads:
        writes = [threads.submit(task.write_checkpoints, {"counts": AT}) for _ in range(1_000)]
        assert [write.exception() for write in writes] == [None] * 1_000
    task.release()
    with pytest.raises(TaskFault, match="not locked"):
        task.write_checkpoints({"counts": replace(AT, position=3)})
    assert task.read_checkpoints() == {"counts": AT}


def test_unwritable_readable_copy_is_named(task: TaskDirectory) -> None:
    task.acquire()
    (task.path / ".checkpoint").unlink()
    (task.path / ".checkpoint").mkdir()
    with pytest.raises(OSError, match=r"0_3/\.checkpoint"):
        task.write_checkpoints({"counts": AT})


def test_refusing_disk_is_no_reason_to_wipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(DiskRefused, match="Read-only file system"):
        RocksDBEngine(tmp_path / "counts")


@pytest.mark.parametrize("reverse", [False, True])
def test_damaged_block_fails_a_walk_and_the_store(tmp_path: Path, reverse: bool) -> None:
    engine = RocksDBEngine(tmp_path)
    engine.write({"default": ENTRIES}, AT)
    engine.close()
    RocksDBEngine(tmp_path).close()  # turns the write-ahead log into a file of entries
    file = max(tmp_path.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 100] = b"x" * 100
    file.write_bytes(data)

    engine = RocksDBEngine(tmp_path)
    with engine.view(["default"]) as view, pytest.raises(LookupFailure) as failure:
        assert len(list(view.entries("default", b"", None, reverse=reverse))) == len(ENTRIES)
    assert failure.value.reason is Reason.TASK_FAILED
    with pytest.raises(StoreUnusable):
        engine.write({}, AT)
    engine.close()
    with pytest.raises(StoreUnusable, match="checksum mismatch"):
        RocksDBEngine(tmp_path)  # the mark of it, with the failed walk's traceback still held


@pytest.mark.feature("offsets-read-file")
def test_inspection_of_a_closed_store(task: TaskDirectory) -> None:
    before = {path: path.read_bytes() for path in task.path.rglob("*") if path.is_file()}
    for directory in (task.path, task.path.parent, task.path.parents[1]):
        (found,) = stores_in(directory)
        assert (found.task, found.store, found.topic, found.position, found.keys) == ("0_3", "counts", "topic", 7, 2)
        assert (found.at_end, found.format_version) == ("2023-11-14T22:13:20.000+00:00", 2)
        assert (found.locked_by, found.note) == (None, "")
        assert found.size_bytes > 0
    assert {path: path.read_bytes() for path in task.path.rglob("*") if path.is_file()} == before


def test_inspection_of_a_global_store(tmp_path: Path) -> None:
    # The application has the name of the folder of global stores.
    folder = StateDirectory(tmp_path, "global").task(GlobalId("profiles"))
    folder.acquire()
    for partition in range(2):
        engine = RocksDBEngine(folder.store_path(str(partition)))
        engine.write({"default": [(b"a", b"1")]}, AT)
        engine.close()
    folder.release()
    for directory in (folder.path, folder.path.parent, folder.path.parents[1], tmp_path):
        found = stores_in(directory)
        assert [(each.task, each.store, each.partition) for each in found] == [
            ("global/profiles", "profiles", 0),
            ("global/profiles", "profiles", 1),
        ]
    assert StateDirectory(tmp_path, "global").dormant([].append) == {}


@pytest.mark.feature("offsets-read-file")
def test_inspection_leaves_an_open_store_alone(task: TaskDirectory) -> None:
    task.acquire()
    (found,) = stores_in(task.path)
    assert (found.locked_by, found.position, found.keys) == (str(os.getpid()), 7, None)
    assert "from .checkpoint" in found.note
    task.release()


def test_inspection_tells_of_a_damaged_store(task: TaskDirectory) -> None:
    (task.store_path("counts") / "CURRENT").write_bytes(b"garbage")
    (found,) = stores_in(task.path)
    assert found.position is None
    assert "Corruption" in found.note
    with pytest.raises(ConfigurationError, match="not a directory"):
        stores_in(task.path / "nowhere")


def test_inspection_passes_over_what_is_no_partition(tmp_path: Path) -> None:
    folder = StateDirectory(tmp_path, "app").task(GlobalId("countries"))
    folder.acquire()
    folder.release()
    for name in ("0", "lost+found"):
        folder.store_path(name).mkdir()
    assert [(found.store, found.partition) for found in stores_in(tmp_path)] == [("countries", 0)]


@pytest.mark.feature("offsets-read-file")
def test_inspection_on_the_command_line(task: TaskDirectory) -> None:
    app = typer.Typer()
    app.command("state")(state)
    table = CliRunner().invoke(app, ["inspect", str(task.path)])
    assert table.exit_code == 0
    assert table.output.splitlines()[1].split()[:5] == ["0_3", "counts", "3", "7", "topic"]
    document = json.loads(CliRunner().invoke(app, ["inspect", str(task.path), "-o", "json"]).output)
    assert (document[0]["position"], document[0]["topic_id"]) == (7, "id")


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (KEY_VALUE, b"k"),
        (WINDOW, WindowKey(b"k", 5_000).to_bytes()),
        (SESSION, SessionKey(b"k", 4_000, 5_000).to_bytes()),
        (VERSIONED, b"k"),
    ],
)
def test_inspection_of_every_kind(tmp_path: Path, kind: str, key: bytes) -> None:
    spec = StoreSpec("counts", "topic", 1, 0, kind=kind, retention_ms=0 if kind == KEY_VALUE else 60_000)
    folder = StateDirectory(tmp_path, "app").task(TaskId(0, 0))
    folder.acquire()
    store = open_store(spec, folder.store_path("counts"), StoreResources())
    store.apply([ChangelogRecord(key, b"v", 5_000)], AT)
    store.close()
    folder.release()
    (found,) = stores_in(tmp_path)
    assert (found.store, found.position, found.keys, found.note) == ("counts", 7, 1, "")
    assert found.size_bytes > 0
