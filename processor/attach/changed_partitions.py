"""Tells from the sizes of a batch's state files which partitions it has changed. Pure.

Spark writes a file for each partition and batch: `N.delta`, or `N.changelog` with RocksDB. Without a change it is a
compressed stream with nothing but its end. A partition counts as changed if its file has another size or isn't there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CODEC: Final = "lz4"
"""Only of this codec, Spark's default, the size of a stream with nothing is known."""
BATCHES_MAX: Final = 8
"""Of more batches files aren't asked for: most partitions have changed by then."""

_NOTHING: Final = 46
"""Bytes: a block with the number -1, which is the end, and an empty block, with the heads of both."""
_STATUS: Final = re.compile(r"FileStatus\{path=(?P<path>[^;]*); isDirectory=false; length=(?P<size>\d+);")
_PLACE: Final = re.compile(r"(?P<partition>\d+)(?:/[^/]+)?/(?P<batch>\d+)\.(?:delta|changelog)")


@dataclass(frozen=True, slots=True)
class StateFile:
    """What a batch has written for a partition. `size`: bytes."""

    partition: int
    batch_id: int
    size: int


def listed_files(text: str, after: str) -> list[StateFile]:
    """Return the state files in a listing, Hadoop's own text of FileStatus objects; `after`: the operator's folder."""
    found: list[StateFile] = []
    for each in _STATUS.finditer(text):
        place = _PLACE.fullmatch(each["path"].rpartition(after)[2])
        if place is not None:
            found.append(StateFile(int(place["partition"]), int(place["batch"]), int(each["size"])))
    return found


def changed_partitions(files: Iterable[StateFile], first: int, last: int, partitions: int) -> set[int]:
    """Return the partitions that may have changed from the batch `first` to `last`, both included."""
    unchanged: dict[int, set[int]] = {}
    for each in files:
        if each.size == _NOTHING and first <= each.batch_id <= last:
            unchanged.setdefault(each.partition, set()).add(each.batch_id)
    batches = last - first + 1
    return {number for number in range(partitions) if len(unchanged.get(number, ())) < batches}
