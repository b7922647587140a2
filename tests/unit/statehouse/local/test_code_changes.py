"""Which files count as an application's code, and that their changes are reported, on a real folder."""

from __future__ import annotations

import threading
from collections.abc import Generator
from itertools import islice
from pathlib import Path

import pytest

from statehouse.local.code_changes import code_changes, code_folder
from statehouse.local.errors import LocalError

LOOKS_MAX = 100


def test_the_code_is_where_the_module_is_though_it_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for package in ("watched_shop", "watched_shops/tea"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("1 / 0")
        (tmp_path / package / "topology.py").write_text("def build(")
    (tmp_path / "watched_flat.py").write_text("1 / 0")
    for module, folder in (
        ("watched_shop.topology", "watched_shop"),
        ("watched_shop", "watched_shop"),
        ("watched_shops.tea.topology", "watched_shops/tea"),
        ("watched_shops.tea", "watched_shops/tea"),
        ("watched_flat", "."),
    ):
        assert code_folder(module, tmp_path) == tmp_path / folder
    for missing in ("watched_shop.nothing", "nowhere.topology", "nowhere", "watched_flat.topology", "sys"):
        with pytest.raises(LocalError, match=f"no file of {missing} in {tmp_path}"):
            code_folder(missing, tmp_path)


def next_change(changes: Generator[list[Path]]) -> list[Path]:
    return next(filter(None, islice(changes, LOOKS_MAX)))


@pytest.mark.feature("up-watch-starts")
def test_a_change_of_code_is_told_and_nothing_else(tmp_path: Path):
    run_dir = tmp_path / ".statehouse"
    (tmp_path / "package").mkdir()
    run_dir.mkdir()
    changes = code_changes(tmp_path, run_dir)
    assert next(changes) == []
    (tmp_path / "notes.txt").touch()
    (run_dir / "generated.py").touch()
    (tmp_path / "package" / "topology.py").write_text("1")
    assert next_change(changes) == [tmp_path / "package" / "topology.py"]
    (tmp_path / "package" / "topology.py").unlink()
    assert next_change(changes) == [tmp_path / "package" / "topology.py"]
    changes.close()
    assert "code-changes" not in {thread.name for thread in threading.enumerate()}
