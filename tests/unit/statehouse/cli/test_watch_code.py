"""What `statehouse up --watch` does at its start, when the application's code doesn't work."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from statehouse.cli.exits import ExitCode
from statehouse.cli.local import _stay
from statehouse.cli.watch_code import start_watched
from statehouse.local.cluster import LocalCluster
from statehouse.local.cluster_parts import SAMPLE_DATA
from statehouse.local.process import ProcessFailed
from tests.support.polling import poll_until
from tests.support.statehouse import staying

BECOMES_S = 60.0


class Cluster:
    """One whose starts end in turn as a test says."""

    def __init__(self, *ends: BaseException | None) -> None:
        self._ends = list(ends)
        self.done: list[str] = []

    def start(self, *, spare: bool, check: bool) -> None:
        assert spare
        assert check
        self.done.append("start")
        end = self._ends.pop(0)
        if end is not None:
            raise end

    def stop(self, *, keep_data: bool = False) -> None:
        self.done.append("stop, data kept" if keep_data else "stop")

    is_of_code = LocalCluster.is_of_code
    processor: Any = type("Part", (), {"name": "processor"})


class Code:
    """It changes immediately, so many times."""

    def __init__(self, changes: int) -> None:
        self.changes = changes

    def await_change(self) -> None:
        if self.changes == 0:
            raise KeyboardInterrupt
        self.changes -= 1


def failure(process: str) -> ProcessFailed:
    return ProcessFailed(process, "ended with exit code 1", Path("x.log"), ["NameError: nobody"])


def start(cluster: Cluster, code: Code) -> None:
    start_watched(cast("Any", cluster), cast("Any", code))


@pytest.mark.feature("up-watch-starts")
def test_a_start_is_tried_again_when_the_code_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    cluster, code = Cluster(failure(SAMPLE_DATA), failure("processor"), None), Code(3)
    start(cluster, code)
    assert cluster.done == ["start", "start", "start"]
    assert code.changes == 1
    said = capsys.readouterr().err
    assert said.count("NameError: nobody") == 2
    assert "error: processor ended with exit code 1" in said


def test_what_no_change_of_the_code_mends_ends_it() -> None:
    cluster = Cluster(failure("processor"), failure("kafka"))
    with pytest.raises(ProcessFailed, match="kafka ended"):
        start(cluster, Code(3))
    assert cluster.done == ["start", "start", "stop, data kept"]


def test_an_interrupt_while_it_waits_stops_everything() -> None:
    cluster = Cluster(failure("processor"))
    with pytest.raises(KeyboardInterrupt):
        start(cluster, Code(0))
    assert cluster.done == ["start", "stop"]


@pytest.mark.parametrize(
    ("ends", "last"), [(failure("node-a"), "stop, data kept"), (KeyboardInterrupt(), "stop")], ids=["failure", "Ctrl-C"]
)
def test_the_logs_of_a_part_that_has_failed_stay(ends: BaseException, last: str) -> None:
    cluster = Cluster()

    def check() -> None:
        raise ends

    cluster.check = check  # type: ignore[attr-defined]
    with pytest.raises(type(ends)):
        _stay(cast("Any", cluster), None)
    assert cluster.done == [last]


@pytest.mark.feature("up-watch-starts")
def test_an_application_that_can_not_be_imported_is_tried_again_at_each_change(tmp_path: Path) -> None:
    topology, said = tmp_path / "broken_shop" / "topology.py", tmp_path / "said"
    topology.parent.mkdir()
    topology.write_text("def build(app:")

    def waits(times: int) -> bool:
        return said.read_text().count("waiting for the next change of the code") == times

    with staying(tmp_path, said, "up", "--watch", "--app", "broken_shop.topology") as up:
        poll_until(lambda: waits(1), BECOMES_S, "the first error")
        assert "SyntaxError" in said.read_text()
        topology.write_text("def build(app): pass")
        poll_until(lambda: waits(2), BECOMES_S, "the second one")
        assert "changed: topology.py" in said.read_text()
        assert "must define application_id" in said.read_text()
    assert up.returncode == ExitCode.INTERRUPTED
    assert not (tmp_path / ".statehouse").exists(), "nothing was started"
