"""The users that may look into a run directory: it has keys, and logs with what keys were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from statehouse.local.cluster_state import locked
from statehouse.local.tls_files import DEFAULT_RUN_DIR


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("name", [DEFAULT_RUN_DIR.name, "mine"])
def test_a_new_one_is_its_owner_s_only(tmp_path: Path, name: str):
    with locked(tmp_path / name):
        assert mode(tmp_path / name) == 0o700


def test_one_of_an_earlier_version_becomes_so(tmp_path: Path):
    (tmp_path / DEFAULT_RUN_DIR.name).mkdir(mode=0o755)
    with locked(tmp_path / DEFAULT_RUN_DIR.name):
        assert mode(tmp_path / DEFAULT_RUN_DIR.name) == 0o700


def test_a_directory_that_somebody_has_made_for_more_is_left_as_it_is(tmp_path: Path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    with locked(shared):
        assert mode(shared) == 0o755
