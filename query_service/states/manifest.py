"""Manifests: a store's partition as files that came, or may come, from somewhere else. Where they lie isn't known here.

No I/O here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from query_service.states.checkpoint import Checkpoint, UnknownFormat
from query_service.states.faults import Fault
from query_service.states.keep_or_wipe import Changelog, RestoreStart, restore_start

_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,99}")
_FILES_MAX: Final = 100_000
_BYTES_MAX: Final = 2**53
_TIME_MAX: Final = 2**63


class ManifestUnusable(ValueError):
    """A manifest that can't be of one of our stores. The message says why, and `fault` names it."""

    def __init__(self, message: str, fault: Fault = Fault.CORRUPT_STORE) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a manifest: its name, which is no path, its bytes, and when it was changed, by its node's clock."""

    name: str
    size: int
    changed_ns: int

    @property
    def part(self) -> str:
        """The name of what is there of it, as long as it isn't whole; `dataplane/files` gives it."""
        return f"{self.name}.{self.size}.{self.changed_ns}.part"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A store's partition as files.

    Attributes:
        store: the store's name.
        partition: its partition.
        engine: what reads the files, and the format that it has.
        checkpoint: what they hold: topic and its id, position, batch, layout, and when they were last at the log's end.
        files: the files; all are needed.

    """

    store: str
    partition: int
    engine: str
    checkpoint: Checkpoint
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(each.size for each in self.files)


def checked_files(files: Sequence[StoredFile]) -> tuple[StoredFile, ...]:
    """Return the files of a manifest that somebody else has written.

    Raises:
        ManifestUnusable: a name may lead out of a folder or stands there twice, or a size or time can't be one.

    """
    if not 0 < len(files) <= _FILES_MAX:
        raise ManifestUnusable(f"a manifest of {len(files)} files")
    for each in files:
        if _NAME.fullmatch(each.name) is None or each.name.endswith(".part"):
            raise ManifestUnusable(f"a file's name is {each.name[:100]!r}")
        if not 0 <= each.size <= _BYTES_MAX or not 0 <= each.changed_ns < _TIME_MAX:
            raise ManifestUnusable(f"the size or the time of {each.name} can't be one")
    if len({each.name for each in files}) < len(files):
        raise ManifestUnusable("two files have one name")
    return tuple(files)


def checked_checkpoint(text: bytes) -> Checkpoint:
    """Return the checkpoint of a manifest.

    Raises:
        ManifestUnusable: it has another format, or is damaged.

    """
    try:
        return Checkpoint.from_json(text)
    except UnknownFormat as error:
        raise ManifestUnusable(str(error), Fault.UNKNOWN_FORMAT) from error
    except ValueError as error:
        raise ManifestUnusable(str(error)) from error


def by_our_clock(checkpoint: Checkpoint, said_at_ms: int, asked_at_ms: int, boot_id: str, offset_ms: int) -> Checkpoint:
    """Return another machine's checkpoint with its time by our clock.

    Two machines' clocks differ. So what counts is how old the state was by the clock that wrote its time, when the
    other one answered; and that was after we asked. The state may be younger than this says, and never is older.

    Args:
        checkpoint: as the other one has it.
        said_at_ms: what its clock showed when it answered.
        asked_at_ms: what ours showed when we asked.
        boot_id: our clock's, as `MachineClock` has it.
        offset_ms: the same.

    """
    at_end_ms = asked_at_ms - (said_at_ms - checkpoint.at_end_ms)
    return replace(checkpoint, at_end_ms=at_end_ms, boot_id=boot_id, offset_ms=offset_ms)


@dataclass(frozen=True, slots=True)
class Needed:
    """What a store on disk must be to be kept, wherever it comes from.

    Attributes:
        store: the store's name.
        partition: its partition.
        engine: what reads its files here.
        layout: what its content depends on.
        partition_count: how many partitions the store has.
        needs_placement: whether it must be known how many records are misplaced.
        changelog: the log that it is read on from.

    """

    store: str
    partition: int
    engine: str
    layout: str
    partition_count: int
    needs_placement: bool
    changelog: Changelog


def kept_from(checkpoint: Checkpoint | None, needed: Needed, now_ms: int) -> RestoreStart:
    """Decide whether a store may be kept. `checkpoint`: its own, with its time by our clock."""
    if checkpoint is not None:
        checkpoint = checkpoint.checked_by(needed.partition_count)
    return restore_start(checkpoint, needed.layout, needed.changelog, now_ms, needs_placement=needed.needs_placement)


def accepted(manifest: Manifest, needed: Needed, now_ms: int) -> RestoreStart:
    """Decide whether another node's store may take the place of ours: by the rule for a store on our own disk.

    `manifest`: its checkpoint has its time by our clock.

    Raises:
        ManifestUnusable: it is of something else, or nothing here reads its files.

    """
    if (manifest.store, manifest.partition) != (needed.store, needed.partition):
        raise ManifestUnusable(f"manifest is of partition {manifest.partition} of store {manifest.store}")
    if manifest.engine != needed.engine:
        written = f"files were written by {manifest.engine}, and {needed.engine} is to read them"
        raise ManifestUnusable(written, Fault.UNKNOWN_FORMAT)
    return kept_from(manifest.checkpoint, needed, now_ms)
