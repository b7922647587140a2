"""The commands of the tutorial and of the pages that go on with its cluster, typed as they stand there.

README.md and, in docs/, tutorial.md, fresh-reads.md, standbys.md, debugging.md and serdes.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from statehouse.client import Client
from statehouse.local.cluster import LocalCluster
from tests.e2e.conftest import is_settled
from tests.support.netns import Network
from tests.support.pages import Terminal
from tests.support.polling import poll_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture
def own_machine() -> Iterator[Terminal]:
    """A terminal in a network of its own, where the usual ports are free; it stops the cluster that it leaves."""
    assert not (ROOT / ".statehouse" / "state.json").exists(), "a cluster runs in this folder: make down"
    with Network() as network:
        terminal = Terminal(prefix=network.namespace().prefix)
        try:
            yield terminal
        finally:
            terminal.run("statehouse down")


@pytest.mark.feature("site-documentation-built")
def test_the_tutorial(own_machine: Terminal) -> None:
    assert len(own_machine.play((ROOT / "docs" / "tutorial.md").read_text())) > 10


@pytest.mark.parametrize(
    "page", ["README.md", "docs/fresh-reads.md", "docs/standbys.md", "docs/debugging.md", "docs/serdes.md"]
)
def test_a_page_about_a_cluster_that_runs(page: str, cluster: LocalCluster, client: Client, tmp_path: Path) -> None:
    poll_until(lambda: is_settled(client), 60, "a caught-up standby of every partition")
    # As a reader sits in the project's folder, where the cluster is.
    (tmp_path / ".statehouse").symlink_to(cluster.run_dir)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    assert Terminal(folder=tmp_path).play((ROOT / page).read_text())
