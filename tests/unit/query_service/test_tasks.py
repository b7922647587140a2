"""Tasks: what becomes of them when a step of their life fails. No broker is there, and none is asked."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from query_service.disk import StateDirectory
from query_service.listeners import Listeners
from query_service.metrics import NodeMetrics
from query_service.stores.resources import StoreResources
from query_service.tasks import TaskManager


@pytest.fixture
def metrics() -> NodeMetrics:
    return NodeMetrics()


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path, "app")


@pytest_asyncio.fixture
async def tasks(state: StateDirectory, metrics: NodeMetrics) -> AsyncIterator[TaskManager]:
    tasks = TaskManager(
        "127.0.0.1:1",
        "test",
        state,
        lambda: None,
        lambda _error: None,
        Listeners(),
        metrics,
        resources=StoreResources(),
        restore_batch_records=10,
        tail_bytes=0,
        cleanup_delay_s=0.0,
    )
    yield tasks
    await tasks.close()


async def test_a_state_directory_that_can_not_be_listed_is_looked_at_again_later(
    tasks: TaskManager, state: StateDirectory, metrics: NodeMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many_files() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(state, "on_disk", too_many_files)
    await tasks.clean_up()
    labels = {"fault": "disk_refused", "outcome": "passed_over"}
    assert metrics.registry.get_sample_value("statehouse_node_faults_total", labels) == 1
