"""`statehouse export` against a router in this process: what it leaves, also when it ends too soon."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from statehouse.cli.export_files import MANIFEST, UNFINISHED
from statehouse.cli.main import app
from statehouse.contract.moments import MomentBound, MomentToken
from statehouse.contract.partitioning import partition_for
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fake_router import PARTITIONS, WRITTEN_MS, FakeRouter, fake_router

NAMES = [f"name-{number:03}" for number in range(60)]
TOKEN = MomentToken({"q": 7})


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    def show(bound: MomentBound) -> types_pb2.Moment:
        named = bound.exactly("q")
        return types_pb2.Moment(query_id="q", batch_id=7 if named is None else named)

    with fake_router() as running:
        running.values = {name: {"score": number} for number, name in enumerate(NAMES)}
        running.shows = show
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out" / "boards"


def export(router: FakeRouter, folder: Path, *options: str, store: str = "boards") -> Result:
    return CliRunner().invoke(app, ["export", store, str(folder), "--router", router.target, *options])


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    return found


def files(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def pages(router: FakeRouter) -> list[int]:
    """Return the partitions that pages were asked of."""
    scans = [each for each in router.requests if isinstance(each, query_service_pb2.ScanRequest)]
    return [each.partition for each in scans if each.HasField("partition")]


def is_exact(router: FakeRouter) -> bool:
    scans = [each for each in router.requests if isinstance(each, query_service_pb2.ScanRequest)]
    bounds = [MomentBound.from_proto(each.freshness.moment) for each in scans if each.HasField("partition")]
    return {each.exactly("q") for each in bounds} == {7}


def test_a_router_that_does_not_know_the_inputs_costs_only_their_offsets(router: FakeRouter, folder: Path) -> None:
    router.source_ends = None
    result = export(router, folder)
    assert result.exit_code == 0, result.output
    assert "what the moment includes of the inputs: MOMENT_GONE: it has restarted" in result.stderr
    assert manifest(folder)["source_ends"] is None


@pytest.mark.feature("store-exported")
def test_a_store_becomes_a_file_for_each_partition_and_a_manifest(router: FakeRouter, folder: Path) -> None:
    result = export(router, folder)
    assert result.exit_code == 0, result.output
    assert str(TOKEN) in result.stdout
    assert files(folder) == {MANIFEST, *(f"part-{number:05}.parquet" for number in range(PARTITIONS))}
    told = manifest(folder)
    assert (told["store"], told["moment"], told["query_id"], told["batch_id"]) == ("boards", str(TOKEN), "q", 7)
    assert (told["entries"], told["undecodable"], told["format"]) == (len(NAMES), 0, "parquet")
    assert told["source_ends"] == [{"topic": "scores", "partition": 1, "offset": 12}]
    for part in told["parts"]:
        data = (folder / part["file"]).read_bytes()
        assert (part["bytes"], part["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        table = pq.read_table(folder / part["file"])
        assert table.column_names == ["key", "value", "timestamp"]
        keys = [name for name in NAMES if partition_for(name.encode(), PARTITIONS) == part["partition"]]
        assert table.column("key").to_pylist() == keys
        assert table.column("value").to_pylist() == [f'{{"score":{NAMES.index(key)}}}' for key in keys]
        assert (part["entries"], part["position"]) == (len(keys), 12)
    assert is_exact(router)


def test_lines_of_json_are_as_scans_show_entries(router: FakeRouter, folder: Path) -> None:
    router.values["name-000"] = b"no json"
    result = export(router, folder, "--format", "ndjson")
    assert result.exit_code == 0, result.output
    assert "1 keys or values don't decode" in result.stderr
    lines = [json.loads(line) for part in sorted(folder.glob("*.ndjson")) for line in part.read_text().splitlines()]
    assert {each["key"]: each["value"] for each in lines} == {
        name: {"score": number} if number else None for number, name in enumerate(NAMES)
    }
    assert {each["timestamp_ms"] for each in lines} == {WRITTEN_MS}
    assert manifest(folder)["undecodable"] == 1


def test_raw_files_have_the_bytes(router: FakeRouter, folder: Path) -> None:
    router.values = {"name-000": b"no json"}
    assert export(router, folder, "--raw").exit_code == 0
    rows = [row for part in folder.glob("*.parquet") for row in pq.read_table(part).to_pylist()]
    assert [(row["key"], row["value"]) for row in rows] == [(b"name-000", b"no json")]
    assert {part["position"] for part in manifest(folder)["parts"]} == {None, 12}


def test_one_that_was_cut_off_goes_on_with_what_is_missing(router: FakeRouter, folder: Path) -> None:
    router.passing = []

    def fail(bound: MomentBound) -> types_pb2.Moment:
        if len(pages(router)) == 3:
            router.failure = LookupFailure(Reason.PERMISSION_DENIED, "the rules have changed")
        return types_pb2.Moment(query_id="q", batch_id=bound.exactly("q") or 7)

    router.shows = fail
    result = export(router, folder)
    assert result.exit_code == 1
    assert "PERMISSION_DENIED" in result.stderr
    assert "go on by --resume" in result.stderr
    whole = files(folder) - {UNFINISHED}
    assert whole == {f"part-{number:05}.parquet" for number in range(len(whole))}
    assert 1 < len(whole) < PARTITIONS
    router.failure = None
    router.requests.clear()

    result = export(router, folder)
    assert result.exit_code == 2
    assert "go on with it by --resume" in result.stderr
    assert "as parquet, of moment" in export(router, folder, "--resume", "--raw").stderr
    assert "as parquet, of moment" in export(router, folder, "--resume", "--format", "ndjson").stderr
    assert "as parquet, of moment" in export(router, folder, "--resume", "--moment", str(MomentToken({"q": 8}))).stderr
    assert not pages(router)

    (folder / "part-00000.parquet").write_bytes(b"damaged")
    (folder / "part-00003.parquet.partial").write_bytes(b"left by who was killed")
    kept = (folder / "part-00001.parquet").stat().st_ino
    router.shows = lambda bound: types_pb2.Moment(query_id="q", batch_id=bound.exactly("q") or 9)
    assert export(router, folder, "--resume").exit_code == 0
    assert is_exact(router)
    assert set(pages(router)) == {0, *range(len(whole), PARTITIONS)}
    assert (folder / "part-00001.parquet").stat().st_ino == kept
    told = manifest(folder)
    assert [part["partition"] for part in told["parts"]] == list(range(PARTITIONS))
    assert (told["entries"], told["batch_id"]) == (len(NAMES), 7)
    assert files(folder) == {MANIFEST, *(part["file"] for part in told["parts"])}
    again = export(router, folder, "--resume")
    assert (again.exit_code, "has a whole export already" in again.stderr) == (2, True)


def test_one_whose_moment_is_gone_begins_anew(router: FakeRouter, folder: Path, tmp_path: Path) -> None:
    gone = LookupFailure(Reason.MOMENT_GONE, "batch 7 is not kept any more")

    def fail(_bound: MomentBound) -> types_pb2.Moment:
        if pages(router):
            router.failure = gone
        return types_pb2.Moment(query_id="q", batch_id=7)

    router.shows = fail
    for options in ((), ("--resume",)):
        router.failure = None
        router.requests.clear()
        result = export(router, folder, *options)
        assert result.exit_code == 4
        assert "MOMENT_GONE" in result.stderr
        assert "begin anew, in another folder" in result.stderr
        assert MANIFEST not in files(folder)
    router.failure, router.shows = None, lambda _: types_pb2.Moment(query_id="q", batch_id=9)
    assert export(router, tmp_path / "anew").exit_code == 0


def fail_to_write(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    class Sum:
        def update(self, _: object) -> None:
            raise failure

    monkeypatch.setattr(hashlib, "sha256", Sum)


def test_interrupted_it_leaves_whole_files_alone(
    router: FakeRouter, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_write(monkeypatch, KeyboardInterrupt())
    result = export(router, folder)
    assert result.exit_code == 130
    assert "go on by --resume within a minute" in result.stderr
    assert files(folder) == {UNFINISHED}


def test_a_full_disk_is_named(router: FakeRouter, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_write(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    result = export(router, folder)
    assert result.exit_code == 1
    assert "No space left on device. Make room, and go on by --resume" in result.stderr
    assert files(folder) == {UNFINISHED}
    monkeypatch.undo()
    assert export(router, folder, "--resume").exit_code == 0


def test_what_can_not_be_exported_is_refused_and_leaves_nothing(
    router: FakeRouter, folder: Path, tmp_path: Path
) -> None:
    unknown = export(router, folder, store="elsewhere")
    assert (unknown.exit_code, "UNKNOWN_STORE" in unknown.stderr) == (1, True)
    assert not folder.exists()
    assert "not a moment" in export(router, folder, "--moment", "?").stderr
    router.shows = None
    unavailable = export(router, folder)
    assert (unavailable.exit_code, "MOMENTS_UNAVAILABLE" in unavailable.stderr) == (4, True)
    assert "--resume" not in unavailable.stderr
    assert not files(folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    full = export(router, tmp_path / "full", "--resume")
    assert (full.exit_code, "is not empty" in full.stderr) == (2, True)
    (tmp_path / "full" / "file").rename(tmp_path / "full" / UNFINISHED)
    assert "can't be gone on with" in export(router, tmp_path / "full", "--resume").stderr
    (tmp_path / "file").touch()
    assert "can't make" in export(router, tmp_path / "file").stderr


def test_two_do_not_write_into_one_folder(router: FakeRouter, folder: Path) -> None:
    folder.mkdir(parents=True)
    other = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another export is being written" in export(router, folder).stderr
    finally:
        os.close(other)
    assert export(router, folder).exit_code == 0
