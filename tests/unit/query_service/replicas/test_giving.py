"""Checkpoints for other nodes: made when asked for, kept while they are read, and few at a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from query_service.dataplane.holding import DataPlaneKeyValue
from query_service.dataplane.orders import DataPlane
from query_service.disk.directory import GIVEN_FOLDER, TaskDirectory
from query_service.replicas import giving
from query_service.replicas.giving import GivenStores
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.states.checkpoint import Checkpoint
from query_service.states.given import KEPT_S, REUSED_S, most_given
from query_service.states.task_events import NodeTask
from query_service.stores.engine import StoreClosed
from query_service.stores.memory_engine import MemoryEngine
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import AnyTaskId, Role, StoreSpec, TaskId
from statehouse.control.v1 import files_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import peer_service_pb2
from tests.support.polling import poll_until_async

AT = Checkpoint("topic", "id", 500, 1_700_000_000_000)


class Engine(MemoryEngine):
    """The engine in memory, which says that it makes files."""

    def __init__(self) -> None:
        super().__init__(1_000_000)
        self.made: list[Path] = []
        self.is_closed = False

    def _make(self, path: Path) -> None:
        path.mkdir(parents=True)
        (path / "1.sst").write_bytes(b"1234")
        self.made.append(path)

    async def given(self, path: Path) -> files_pb2.EngineManifest:
        if self.is_closed:
            raise StoreClosed("it is closed")
        self._make(path)
        file = peer_service_pb2.StoredFile(name="1.sst", size=4, changed_ns=1)
        return files_pb2.EngineManifest(checkpoint=AT.to_json().encode(), files=[file])


class Node:
    """A node with a task, whose clock a test sets."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.engines = 0.0, dict[str, Engine]()
        self.metrics, self._path = NodeMetrics(), path
        self.replicas: dict[AnyTaskId, TaskReplica] = {}
        monkeypatch.setattr(giving, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.given = GivenStores(cast(DataPlane, SimpleNamespace(engine="pebble/1")), self.replicas, self.metrics)

    def hold(self, store: str, partition: int = 0, state: TaskState = TaskState.RUNNING, **spec: Any) -> StoreReplica:
        made = StoreSpec(store, "topic", 8, 0, **spec)
        task = TaskId(0, partition)
        engine = self.engines[store] = Engine()
        replica = StoreReplica(
            made, partition, DataPlaneKeyValue(cast(Any, engine)), AT, self.metrics.of(store, Role.ACTIVE)
        )
        held = TaskReplica(NodeTask(task, Role.ACTIVE, (), state), TaskDirectory(self._path / str(task)))
        held.stores[store] = replica
        self.replicas[task] = held
        return replica


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


async def refused(node: Node, store: str, partition: int = 0) -> Reason:
    with pytest.raises(LookupFailure) as refusal:
        await node.given.offer(store, partition)
    return refusal.value.reason


async def test_a_checkpoint_is_made_once_for_those_who_ask_soon(node: Node) -> None:
    node.hold("a", 3)
    first = await node.given.offer("a", 3)
    assert (first.manifest.store, first.manifest.partition, first.manifest.engine) == ("a", 3, "pebble/1")
    assert Checkpoint.from_json(first.manifest.checkpoint) == AT
    node.now = REUSED_S
    assert (await node.given.offer("a", 3)).checkpoint == first.checkpoint
    node.now += 1
    assert (await node.given.offer("a", 3)).checkpoint != first.checkpoint
    assert len(node.engines["a"].made) == 2
    await node.given.close()
    assert not any(path.exists() for path in node.engines["a"].made)


async def test_a_file_is_granted_as_long_as_it_is_there(node: Node) -> None:
    replica = node.hold("a")
    offered = await node.given.offer("a", 0)
    (path,) = node.engines["a"].made
    assert path.parent.name == GIVEN_FOLDER
    for offset in (0, 3, 4):
        grant = node.given.granted(offered.checkpoint, "1.sst", offset)
        assert (grant.path, grant.offset) == (str(path / "1.sst"), offset)
    given_bytes = node.metrics.registry.get_sample_value("statehouse_node_given_bytes_total", {"store": "a"})
    assert given_bytes == 4 + 1 + 0
    for checkpoint, file, offset in (
        ("another", "1.sst", 0),
        (offered.checkpoint, "../1.sst", 0),
        (offered.checkpoint, "1.sst", 5),
    ):
        with pytest.raises(LookupFailure) as refusal:
            node.given.granted(checkpoint, file, offset)
        assert refusal.value.reason is Reason.INVALID_REQUEST
    node.given.forget(replica)
    with pytest.raises(LookupFailure):
        node.given.granted(offered.checkpoint, "1.sst", 0)
    await poll_until_async(lambda: not path.exists(), 10.0, "the checkpoint to be removed")


async def test_what_nobody_reads_goes_and_what_is_read_stays(node: Node) -> None:
    node.hold("a")
    node.hold("b", 1)
    read, unread = await node.given.offer("a", 0), await node.given.offer("b", 1)
    node.now = KEPT_S - 1
    node.given.granted(read.checkpoint, "1.sst", 0)
    node.now = KEPT_S + 1
    await node.given.offer("a", 0)  # each call has the old ones removed
    node.given.granted(read.checkpoint, "1.sst", 0)
    with pytest.raises(LookupFailure):
        node.given.granted(unread.checkpoint, "1.sst", 0)
    await node.given.close()


async def test_few_are_there_at_a_time(node: Node) -> None:
    most = most_given(1)
    node.hold("a")
    for _ in range(most):
        await node.given.offer("a", 0)
        node.now += REUSED_S + 1
        for given in node.given._given.values():
            given.used_at = node.now
    assert await refused(node, "a") is Reason.OVERLOADED
    await node.given.close()


async def test_what_can_not_be_given_is_refused(node: Node) -> None:
    node.hold("a", state=TaskState.RESTORING)
    node.hold("b", 1, in_memory=True)
    node.hold("c", 2)
    node.engines["c"].is_closed = True
    assert await refused(node, "a") is Reason.PARTITION_RESTORING
    assert await refused(node, "a", 7) is Reason.PARTITION_NOT_OWNED
    assert await refused(node, "b", 1) is Reason.INVALID_REQUEST
    assert await refused(node, "c", 2) is Reason.PARTITION_NOT_OWNED
    alone = GivenStores(None, node.replicas, node.metrics)
    with pytest.raises(LookupFailure) as refusal:
        await alone.offer("a", 0)
    assert refusal.value.reason is Reason.INVALID_REQUEST
    await node.given.close()
