"""A node without a broker: what it does about its own defects, and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from query_service.heartbeat_process import HeartbeatProcess
from query_service.node import QueryNode
from statehouse.contract.topology import TaskId
from statehouse.control.v1 import commits_pb2
from statehouse.settings import NodeSettings
from tests.unit.query_service import one_node


@pytest.fixture
def settings(tmp_path: Path) -> NodeSettings:
    return NodeSettings(
        application_id="app",
        bootstrap="127.0.0.1:1",
        node_port=0,
        proxy="none",
        state_dir=tmp_path,
        drain_timeout_ms=600_000,
    )


@pytest.fixture
def heartbeats() -> Iterator[HeartbeatProcess]:
    with HeartbeatProcess() as process:
        yield process


async def test_a_chore_that_breaks_while_the_node_drains_ends_the_drain_and_is_told(
    settings: NodeSettings, heartbeats: HeartbeatProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = QueryNode(settings, heartbeats)
    node._control.members_known.set()
    monkeypatch.setattr(node, "_active_tasks", lambda: [TaskId(0, 0)])  # nobody takes it
    monkeypatch.setattr(node._heartbeats, "end", AsyncMock())
    is_draining = asyncio.Event()

    async def write_until_it_drains() -> None:
        await is_draining.wait()
        raise RuntimeError("a defect")

    monkeypatch.setattr(node._heartbeats, "write_forever", write_until_it_drains)
    running = asyncio.create_task(node.run())
    node.stop(drain=True)
    asyncio.get_running_loop().call_later(0.3, is_draining.set)
    with pytest.raises(RuntimeError, match="a defect"):
        await asyncio.wait_for(running, 30)


async def test_a_defect_in_what_follows_a_change_stops_the_node_too(
    settings: NodeSettings, heartbeats: HeartbeatProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = QueryNode(settings, heartbeats)
    monkeypatch.setattr(node._tasks, "states", lambda: 1 / 0)
    running = asyncio.create_task(node.run())
    node._thread_broke(RuntimeError("a defect"))
    with pytest.raises(RuntimeError, match="a defect"):
        await asyncio.wait_for(running, 30)


@pytest_asyncio.fixture
async def node(settings: NodeSettings, heartbeats: HeartbeatProcess) -> AsyncIterator[QueryNode]:
    """A node that isn't run. Its tasks' threads poll a broker until a test tells them to end."""
    node = QueryNode(settings, heartbeats)
    yield node
    await node._tasks.close()


@pytest.mark.feature("clients-command-line")
async def test_metrics_tell_what_the_processor_reported_for_the_stores_that_are_here(node: QueryNode) -> None:
    node._tasks.replicas.update(one_node.admission_of(node._metrics, [0, 1], ["a"])._replicas)
    store = one_node.SPEC.name

    def served() -> list[float | None]:
        value = node._metrics.registry.get_sample_value
        names = ("processor_age_seconds", "input_backlog_records")
        return [value(f"statehouse_node_{name}", {"store": store}) for name in names]

    assert served() == [None, None], "nobody knows"
    reports = node._control.reports
    reports.take(commits_pb2.Commit(store="elsewhere", input_backlog=1), time.monotonic())
    reports.take(commits_pb2.Commit(store=store, input_backlog=42), time.monotonic() - 7)
    age_s, backlog = served()
    assert age_s == pytest.approx(7, abs=5)
    assert backlog == 42
    reports.take(commits_pb2.Commit(store=store), time.monotonic())
    age_s, backlog = served()
    assert age_s == pytest.approx(0, abs=5)
    assert backlog is None, "not known is not 0"
    assert (
        node._metrics.registry.get_sample_value("statehouse_node_input_backlog_records", {"store": "elsewhere"}) is None
    )
