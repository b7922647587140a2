"""Upgrades between versions that write records in other formats, and stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from statehouse.contract import assignment
from statehouse.contract.membership import TaskState
from tests.support.fleet import THIS, Build, ServerProcess
from tests.support.polling import poll_until
from tests.upgrades.builds import has_another_store_format, reads_the_next_format, writes_the_next_format
from tests.upgrades.rolling import CONTROLLER, NODES, PROCESSOR, ROUTERS, Rolling

_ORDERS = (
    (NODES, ROUTERS, CONTROLLER, PROCESSOR),
    (PROCESSOR, CONTROLLER, ROUTERS, NODES),
    (ROUTERS, PROCESSOR, NODES, CONTROLLER),
    (CONTROLLER, NODES, PROCESSOR, ROUTERS),
)
"""Each kind is the first once, and the last once."""


_SKIPPED = "in format 1; this version reads formats up to 0"
_BEGIN_ANEW = "INVALID_PAGE_TOKEN: a newer version wrote this page token"


def _has_skipped_an_epoch(process: ServerProcess) -> bool:
    return any(_SKIPPED in line and '"key": "epoch"' in line for line in process.log.splitlines())


@pytest.fixture(autouse=True)
def tests_read_the_next_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests follow the assignment, too, with this tree's reader."""
    monkeypatch.setattr(assignment, "ASSIGNMENT", replace(assignment.ASSIGNMENT, read=1))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builds")


@pytest.fixture(scope="module")
def reads_next(directory: Path) -> Build:
    return reads_the_next_format(directory)


@pytest.fixture(scope="module")
def writes_next(directory: Path) -> Build:
    return writes_the_next_format(directory)


@pytest.mark.feature("rolling-upgrade-last")
@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("order", _ORDERS, ids=[" > ".join(order) for order in _ORDERS])
def test_a_format_that_is_read_before_it_is_written_costs_nothing(
    reads_next: Build, writes_next: Build, order: Sequence[str], tmp_path: Path
) -> None:
    rolling = Rolling(tmp_path, reads_next, with_standby_controller=True)
    with rolling.under_traffic():
        rolling.update(order, writes_next)
        rolling.update(order[::-1], reads_next)
    upgrade = rolling.upgrade
    assert upgrade is not None
    assert upgrade.violations == ()
    assert upgrade.failed_scans == ()
    assert upgrade.needless == []
    assert upgrade.restless == {}
    assert not [process.name for process in rolling.run.cluster.processes if "control record skipped" in process.log]


@pytest.mark.feature("records-control-topics-page")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_who_does_not_read_a_format_skips_it_and_goes_on_with_what_it_knows(writes_next: Build, tmp_path: Path) -> None:
    """An upgrade that leaves out the release between: the processor writes what nobody reads. No lookup fails, nothing
    is moved, each process says why, and a processor of the version before does not plan over it. A scan that one
    version began, and that the other is to go on with, must be begun again, and its error says so."""
    rolling = Rolling(tmp_path, THIS)
    cluster = rolling.run.cluster
    with rolling.under_traffic():
        epoch = cluster.assignment.epoch
        rolling.restart_processor(writes_next)
        cluster.add_node()
        everybody = [*cluster.nodes.values(), *cluster.routers.values()]
        poll_until(lambda: all(map(_has_skipped_an_epoch, everybody)), 60, "everybody to have skipped the epoch")
        assert all(each.is_running for each in everybody)
        assert {cluster.router_epoch(name) for name in cluster.routers} == {epoch}
        # Nobody plans over what it can't read: the version before says so, and ends.
        rolling.begin_processor(THIS)
        assert cluster.controller.wait(60) != 0
        assert "is of a newer version: start a processor of that version" in cluster.controller.log
        # Those that read it go on where it stands: the new node gets its share.
        rolling.restart_processor(writes_next)
        for name in list(cluster.nodes):
            rolling.bounce_node(name, writes_next)
        rolling.update([ROUTERS], writes_next)
        cluster.wait_settled()
    upgrade = rolling.upgrade
    assert upgrade is not None
    assert upgrade.violations == ()
    assert [failed for failed in upgrade.failed_scans if _BEGIN_ANEW not in failed] == []


@pytest.mark.feature("stores-another-format")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_stores_of_another_format_are_restored_while_standbys_serve(directory: Path, tmp_path: Path) -> None:
    rolling = Rolling(tmp_path, THIS)
    cluster = rolling.run.cluster
    with rolling.under_traffic():
        rolling.update([NODES], has_another_store_format(directory))
        for node in cluster.nodes.values():
            assert all(task.state == TaskState.RUNNING for task in node.node().tasks)
            assert "unknown_format" in node.log
    upgrade = rolling.upgrade
    assert upgrade is not None
    assert upgrade.violations == ()
    assert upgrade.needless == []
    assert upgrade.restless == {}
