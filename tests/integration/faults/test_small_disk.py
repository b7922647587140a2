"""The small disk itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_disk import fill, small_disk


def test_can_be_filled_and_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    with small_disk(path, 1) as disk:
        filler = fill(disk)
        with pytest.raises(OSError, match="No space left"):
            (disk / "more").write_bytes(b"x" * 4096)
        filler.unlink()
        (disk / "more").write_bytes(b"x" * 4096)
        assert path.is_mount()
    assert not path.is_mount()
