"""From the last released version to this one, and back, in every order of the kinds of processes that it has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest

from tests.support.fleet import THIS, Build
from tests.upgrades.builds import last_release
from tests.upgrades.rolling import NODES, PROCESSOR, ROUTERS, Rolling

_AS_DOCUMENTED = (NODES, ROUTERS, PROCESSOR)
_ORDERS = list(permutations(_AS_DOCUMENTED))


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return last_release(tmp_path_factory.mktemp("builds"))


@pytest.mark.feature("rolling-upgrade-last")
@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("order", _ORDERS, ids=[" > ".join(order) for order in _ORDERS])
def test_no_lookup_fails_on_the_way_there_and_back(released: Build, order: Sequence[str], tmp_path: Path) -> None:
    """The way back takes the kinds in the opposite order."""
    rolling = Rolling(tmp_path, released)
    with rolling.under_traffic():
        rolling.update(order, THIS)
        rolling.update(order[::-1], released)
    upgrade = rolling.upgrade
    assert upgrade is not None
    assert upgrade.violations == ()
    assert upgrade.failed_scans == ()
    assert upgrade.needless == []
    assert upgrade.restless == {}
    # Both versions restore stores of another format from the changelogs, and keep those of their own.
    nodes = rolling.run.cluster.nodes
    restored = [name for name, node in nodes.items() if "unknown_format" in node.log]
    assert restored == ([] if store_format(released) == store_format(THIS) else list(nodes))


def store_format(build: Build) -> str:
    """The format of a version's stores on disk, as its source has it."""
    source = (build.root / "query_service" / "states" / "checkpoint.py").read_text()
    (found,) = re.findall(r"^FORMAT_VERSION\b[^=]*= (\d+)", source, re.MULTILINE)
    return str(found)
