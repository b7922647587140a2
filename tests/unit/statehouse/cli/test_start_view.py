"""What people see of a start, event by event."""

from __future__ import annotations

import pytest

from statehouse.cli.start_view import StartView
from statehouse.local.cluster_progress import ClusterProgress

STARTING = ClusterProgress("processor", "starting")
SPARK = ClusterProgress("processor", "doing", detail="Spark is starting")
READY = ClusterProgress("node-a", "ready", 1.25, "127.0.0.1:7101")


def download(megabytes: int) -> ClusterProgress:
    return ClusterProgress("jars", "downloading", detail=f"{megabytes} MB")


def test_without_a_terminal_each_event_is_a_line():
    view = StartView(is_live=False)
    steps = [STARTING, SPARK, READY, ClusterProgress("processor", "ready", 20)]
    steps += [ClusterProgress("node-a", "stopped", 0.5), ClusterProgress("kafka", "killed", 30)]
    assert [view.take(step, 0) for step in steps] == [
        "processor    starting",
        "processor    Spark is starting",
        "node-a       ready in 1.2 s  127.0.0.1:7101",
        "processor    ready in 20.0 s",
        "node-a       stopped after 0.5 s",
        "kafka        killed after 30.0 s",
    ]


def test_without_a_terminal_a_download_is_a_line_every_five_seconds():
    view = StartView(is_live=False)
    lines = [view.take(download(second), second) for second in range(12)]
    assert [line for line in lines if line] == ["jars         0 MB", "jars         5 MB", "jars         10 MB"]


@pytest.mark.feature("start-says-does")
def test_on_a_terminal_only_what_is_done_stays():
    view = StartView(is_live=True)
    assert view.take(download(3), 0) is None
    assert view.live(2) == "jars: 3 MB (2 s)"
    assert view.take(STARTING, 2) is None
    assert view.take(ClusterProgress("node-a", "starting"), 3) is None
    assert view.live(10) == "jars: 3 MB (10 s); processor, node-a starting (8 s)"
    assert view.take(SPARK, 11) is None
    assert view.take(READY, 12) == "node-a       ready in 1.2 s  127.0.0.1:7101"
    assert view.live(12) == "processor: Spark is starting (10 s)"
    view.take(ClusterProgress("processor", "ready", 20), 22)
    assert view.live(23) == ""
