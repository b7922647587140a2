"""Who is asked for a store's files, and how often."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from query_service.dataplane.orders import DataPlane
from query_service.disk.directory import TaskDirectory
from query_service.replicas.fetching import Brought, FileRestores, NotWanted, _cleared, _Fetch, folder_of
from query_service.replicas.opening import FoundStore, StoreOpener
from query_service.replicas.transfers import Transfer
from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault, TaskFault
from query_service.states.keep_or_wipe import Changelog
from query_service.states.manifest import Manifest, StoredFile
from query_service.states.sources import Peer
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.topology import AnyTaskId, StoreSpec
from statehouse.control.v1 import engine_pb2
from statehouse.settings import NodeSettings

RECORDS = 10_000_000
SETTINGS = SimpleNamespace(
    peers_asked_after_ms=1_000, peer_silence_ms=1_000, peer_bytes_per_s=0, assumed_log_records_per_s=500_000
)


class Fleet:
    """The nodes that a store's files are asked of. All are of a version that has no such call."""

    def __init__(self, path: Path) -> None:
        self.peers: list[Peer] = []
        self.asked: list[str] = []
        self.transfers: dict[str, Transfer] = {}
        plane = cast(DataPlane, SimpleNamespace(call=self._call))
        opener = cast(StoreOpener, SimpleNamespace())
        self._files = FileRestores(cast(NodeSettings, SETTINGS), plane, opener, self._peers_of, NodeMetrics())
        log = Changelog("topic", "id", 0, RECORDS, None)
        spec = StoreSpec("scores", "topic", 1, 0)
        self._found = FoundStore(spec, 0, TaskDirectory(path), path / "scores", {}, 1, log, 0)

    async def _peers_of(self, _task: AnyTaskId, _store: str, _partition: int) -> Sequence[Peer]:
        return self.peers

    async def _call(self, target: str, *_: Any) -> bytes:
        self.asked.append(target)
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNIMPLEMENTED, grpc.aio.Metadata(), grpc.aio.Metadata())

    async def bring(self) -> Brought:
        return await self._files.bring(self._found, self.transfers, lambda: True)


async def test_a_version_that_gives_no_stores_is_asked_once(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.peers = [Peer("old", "old:1", "run"), Peer("older", "older:1", "run")]
    why = "peer_failed: its version gives no stores to other nodes"
    for _ in range(3):
        brought = await fleet.bring()
        assert (brought.peer, brought.passed_over) == ("", [f"old: {why}", f"older: {why}"])
    assert fleet.asked == ["old:1", "older:1"]
    assert fleet.transfers == {}

    fleet.peers = [Peer("old", "old:1", "the next run")]
    await fleet.bring()
    assert fleet.asked == ["old:1", "older:1", "old:1"], "it may be of another version now"


class SilentPeer:
    """A data plane whose fetches end when they are ended, and not before."""

    def __init__(self) -> None:
        self.begun = 0
        self._under_way: list[Future[engine_pb2.EngineAnswer]] = []

    def begin(self, order: engine_pb2.EngineOrder) -> Future[engine_pb2.EngineAnswer]:
        done: Future[engine_pb2.EngineAnswer] = Future()
        if order.HasField("fetch"):
            self.begun += 1
            self._under_way.append(done)
            return done
        while self._under_way:
            self._under_way.pop().set_exception(TaskFault("context canceled", Fault.PEER_FAILED))
        done.set_result(engine_pb2.EngineAnswer())
        return done


CHANGED_NS = 1_700_000_000_123_456_789


def test_what_is_there_of_files_is_known_by_peer_name_size_and_time(tmp_path: Path) -> None:
    files = [StoredFile(name, 100, CHANGED_NS) for name in ("1.sst", "2.sst", "3.sst", "4.sst", "5.sst")]
    ours, others = folder_of(tmp_path, "n1"), folder_of(tmp_path, "../n2")
    assert ours.parent == others.parent
    for folder in (ours, others):
        folder.mkdir(parents=True)
    (others / "1.sst").write_bytes(bytes(100))
    for name, size, changed_ns in (
        ("1.sst", 100, CHANGED_NS),
        ("2.sst", 100, CHANGED_NS + 1),
        ("3.sst", 99, CHANGED_NS),
        ("4.sst.100.1700000000123456789.part", 30, 0),
        ("5.sst.100.1700000000123456788.part", 50, 0),
        ("6.sst", 100, CHANGED_NS),
    ):
        (ours / name).write_bytes(bytes(size))
        os.utime(ours / name, ns=(changed_ns, changed_ns))
    assert _cleared(ours, files) == 100 + 30
    assert {each.name for each in ours.iterdir()} == {"1.sst", files[3].part}
    assert not others.exists()


def test_what_is_missing_of_files_is_never_negative() -> None:
    assert Transfer("scores", 0, "a", 10, 0, 4).missing == 6
    assert Transfer("scores", 0, "a", 10, 0, 11).missing == 0


async def test_files_of_a_fetch_that_was_ended_are_not_fetched_again(tmp_path: Path) -> None:
    plane = SilentPeer()
    files = tuple(StoredFile(f"{number}.sst", 10, 1) for number in range(10))
    manifest = Manifest("scores", 0, "pebble/1", Checkpoint("topic", "id", 500, 0), files)
    fetch = _Fetch(cast(DataPlane, plane), Peer("n1", "n1:1"), "checkpoint", manifest, tmp_path, 1_000)

    def go_on(_took_s: float, _size: int) -> None:
        raise NotWanted

    with pytest.raises(NotWanted):
        await fetch.run(go_on)
    assert plane.begun == 3, "one for each file that was under way"
