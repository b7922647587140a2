"""Manifests: another node's store is taken if and only if the same state on the own disk would be kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from query_service.states.checkpoint import FORMAT_VERSION, Checkpoint
from query_service.states.faults import Fault
from query_service.states.keep_or_wipe import Changelog, restore_start
from query_service.states.manifest import (
    Manifest,
    ManifestUnusable,
    Needed,
    StoredFile,
    accepted,
    by_our_clock,
    checked_checkpoint,
    checked_files,
)

NOW = 1_700_000_000_000
HOUR = 3_600_000
IDS = st.sampled_from(["id-1", "id-2"])
LAYOUTS = st.sampled_from(["key-value", "window/60000"])
FILES = (StoredFile("000012.sst", 10, 1),)

checkpoints = st.builds(
    Checkpoint,
    st.sampled_from(["topic", "other"]),
    IDS,
    st.integers(0, 120),
    st.integers(NOW - 3 * HOUR, NOW + HOUR),
    layout=LAYOUTS,
    misplaced=st.sampled_from([None, 0, 2]),
    placed_by=st.sampled_from([4, 8]),
    boot_id=st.sampled_from(["", "its"]),
    offset_ms=st.integers(0, 10),
    batch=st.integers(0, 3),
    records_end=st.none() | st.integers(0, 120),
)
logs = st.builds(
    Changelog,
    st.just("topic"),
    st.just("id-1"),
    st.integers(0, 50),
    st.integers(50, 110),
    st.sampled_from([None, 0, HOUR, 24 * HOUR]),
    st.booleans(),
)
needs = st.builds(
    Needed, st.just("counts"), st.just(3), st.just("pebble/1"), LAYOUTS, st.sampled_from([4, 8]), st.booleans(), logs
)


@pytest.mark.feature("store-files-peer")
@given(checkpoints, needs, st.integers(0, 60_000), st.integers(-30 * HOUR, 30 * HOUR))
def test_a_peers_state_is_taken_if_ours_would_be_kept(
    checkpoint: Checkpoint, needed: Needed, asked_ms_ago: int, its_clock_is_ahead_ms: int
) -> None:
    """However its clock is set: our own state would have the same age."""
    said_at_ms = NOW - asked_ms_ago + its_clock_is_ahead_ms
    told = replace(checkpoint, at_end_ms=checkpoint.at_end_ms + its_clock_is_ahead_ms)
    ours = by_our_clock(told, said_at_ms, NOW - asked_ms_ago, "boot", 5)
    manifest = Manifest("counts", 3, "pebble/1", ours, FILES)
    local = checkpoint.checked_by(needed.partition_count)
    kept = restore_start(local, needed.layout, needed.changelog, NOW, needs_placement=needed.needs_placement)
    assert accepted(manifest, needed, NOW) == kept


@given(checkpoints, needs, st.integers(0, HOUR), st.integers(0, HOUR), st.integers(-HOUR, HOUR))
def test_a_state_is_never_taken_for_younger_than_it_is(
    checkpoint: Checkpoint, needed: Needed, took_ms: int, copied_ms: int, ahead_ms: int
) -> None:
    """However long the answer takes, and the files."""
    asked_at_ms = NOW - took_ms - copied_ms
    told = replace(checkpoint, at_end_ms=checkpoint.at_end_ms + ahead_ms)
    ours = by_our_clock(told, asked_at_ms + took_ms + ahead_ms, asked_at_ms, "boot", 5)
    assert ours.at_end_ms <= checkpoint.at_end_ms
    assert ours == replace(checkpoint, at_end_ms=checkpoint.at_end_ms - took_ms, boot_id="boot", offset_ms=5)


@given(checkpoints, needs)
def test_another_partition_or_another_engine_is_never_taken(checkpoint: Checkpoint, needed: Needed) -> None:
    good = Manifest("counts", 3, "pebble/1", checkpoint, FILES)
    for other in (replace(good, store="other"), replace(good, partition=4), replace(good, engine="pebble/2")):
        with pytest.raises(ManifestUnusable):
            accepted(other, needed, NOW)


@given(checkpoints)
@example(Checkpoint("topic", "id", 0, 0, format_version=FORMAT_VERSION + 1))
def test_a_checkpoint_is_as_it_was_written_or_refused(checkpoint: Checkpoint) -> None:
    text = checkpoint.to_json().encode()
    if checkpoint.format_version == FORMAT_VERSION:
        assert checked_checkpoint(text) == checkpoint
    else:
        with pytest.raises(ManifestUnusable) as refused:
            checked_checkpoint(text)
        assert refused.value.fault is Fault.UNKNOWN_FORMAT
    with pytest.raises(ManifestUnusable):
        checked_checkpoint(text[:-1])


@given(st.text(max_size=8))
@example("..")
@example("../x")
@example("/etc/passwd")
@example("a/b")
@example(".hidden")
@example("000001.sst.part")
@example("000001.sst\n")
def test_a_files_name_never_leads_elsewhere(name: str) -> None:
    try:
        (file,) = checked_files([StoredFile(name, 1, 1)])
    except ManifestUnusable:
        return
    assert "/" not in file.name
    assert file.name.strip(".") == file.name.rstrip(".")
    assert file.name.isascii()
    assert file.name.isprintable()


@pytest.mark.parametrize(
    "files",
    [
        [],
        [StoredFile("a", -1, 1)],
        [StoredFile("a", 1, -1)],
        [StoredFile("a", 1, 2**63)],
        [StoredFile("a", 2**60, 1)],
        [StoredFile("a", 1, 1), StoredFile("a", 1, 2)],
    ],
)
def test_a_manifest_that_can_not_be_is_refused(files: list[StoredFile]) -> None:
    with pytest.raises(ManifestUnusable):
        checked_files(files)
