"""Which partitions a batch has changed, by the sizes of their files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.attach.changed_partitions import StateFile, changed_partitions, listed_files

NOTHING = 46


def test_files_are_read_from_a_listing() -> None:
    text = (
        "Array(FileStatus{path=file:/data/state/1/state/0/12/7.changelog; isDirectory=false; length=46; x=1}, "
        "FileStatus{path=file:/data/state/1/state/0/3/left-key/8.delta; isDirectory=false; length=90; x}, "
        "FileStatus{path=file:/data/state/1/state/0/3; isDirectory=true; x}, "
        "FileStatus{path=file:/data/state/1/state/0/3/8_ab-cd.changelog; isDirectory=false; length=46; x})"
    )
    assert listed_files(text, "/state/0/") == [StateFile(12, 7, 46), StateFile(3, 8, 90)]


@pytest.mark.feature("job-keeps-two")
@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 4), st.sampled_from([NOTHING, 45, 47, 600]))))
def test_only_what_has_a_file_with_nothing_for_each_batch_is_unchanged(files: set[tuple[int, int, int]]) -> None:
    by_place = {(partition, batch): size for partition, batch, size in sorted(files)}
    found = changed_partitions((StateFile(*place, size) for place, size in by_place.items()), 1, 3, 6)
    for partition in range(6):
        sizes = [by_place.get((partition, batch)) for batch in (1, 2, 3)]
        assert (partition in found) == (sizes != [NOTHING] * 3)
