"""What `make dist` says of what it has built."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tools.dist import checksums, differences, go_rows, license_table


@pytest.mark.feature("wheels-linux-x86")
def test_folders_differ_by_names_and_bytes(tmp_path: Path) -> None:
    for folder, files in {"a": {"same": "1", "other": "1", "gone": ""}, "b": {"same": "1", "other": "2"}}.items():
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    assert differences(tmp_path / "a", tmp_path / "b") == ["gone", "other"]
    assert differences(tmp_path / "a", tmp_path / "a") == []


def test_checksums_are_those_of_all_files_but_their_own(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("x")
    (tmp_path / "a").write_text("")
    (tmp_path / "SHA256SUMS").write_text("old")
    of_a, of_b = (hashlib.sha256(content).hexdigest() for content in (b"", b"x"))
    assert checksums(tmp_path) == f"{of_a}  a\n{of_b}  b\n"


def test_licences_are_the_declared_ones_or_else_those_found() -> None:
    mit, bsd = {"license": {"id": "MIT"}}, {"license": {"name": "BSD"}}
    components = [
        {"name": "m1", "version": "1", "licenses": [bsd, mit]},
        {"name": "m2", "version": "2", "evidence": {"licenses": [mit]}},
        {"name": "m3", "version": "3", "licenses": [{"expression": "MIT OR ISC"}], "evidence": {"licenses": [bsd]}},
        {"name": "m4", "version": "4"},
    ]
    assert go_rows({"components": components}) == [
        ("m1", "1", "BSD AND MIT"),
        ("m2", "2", "MIT"),
        ("m3", "3", "MIT OR ISC"),
        ("m4", "4", "UNKNOWN"),
    ]
    assert go_rows({}) == []


def test_a_cell_cant_break_the_table() -> None:
    assert license_table([("Python", "thing", "1", "MIT | or\nISC")]).splitlines()[-1] == (
        "| Python | thing | 1 | MIT / or ISC |"
    )
