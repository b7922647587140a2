"""The placement check: which records of a partition stand elsewhere than the partitioner puts their keys.

Each record is checked once, as it is applied. Windows and sessions are placed by their plain key. A record that the
store can't read anyway is not counted: it is skipped by every replica, and says nothing of how keys are placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from query_service.stores.base import ChangelogRecord
from statehouse.contract.topology import SESSION, WINDOW, StoreSpec
from statehouse.errors import ContractError
from statehouse.kafka.partitioner import Partitioner
from statehouse.keys.composite import SESSION_SUFFIX_BYTES, WINDOW_SUFFIX_BYTES, SessionKey, WindowKey

_SUFFIX_BYTES: Final[Mapping[str, int]] = {WINDOW: WINDOW_SUFFIX_BYTES, SESSION: SESSION_SUFFIX_BYTES}


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A record that stands elsewhere than in `expected`, the partition that the partitioner gives its key."""

    offset: int
    expected: int


class PlacementCheck:
    """Checks the records of one partition. `partition_of`: see `partition_for`."""

    def __init__(self, spec: StoreSpec, partition: int, partition_of: Partitioner) -> None:
        self._layout, self._count, self._partition = spec.built_on, spec.partition_count, partition
        self._suffix, self._partition_of = _SUFFIX_BYTES.get(spec.built_on, 0), partition_of

    def misplaced(self, records: Sequence[ChangelogRecord]) -> list[Misplaced]:
        """Return the misplaced records of a batch, tombstones included, in order of offset."""
        count, here, partition_of, suffix = self._count, self._partition, self._partition_of, self._suffix
        if count == 1:
            return []
        # One call a record is what most of the time goes to, so nothing else is done to those that are in place.
        if not suffix:
            return [
                Misplaced(record.offset, expected)
                for record in records
                if (expected := partition_of(record[0], count)) != here
            ]
        return [
            Misplaced(record.offset, expected)
            for record in records
            if (expected := partition_of(record[0][:-suffix], count)) != here and self._is_readable(record[0])
        ]

    def _is_readable(self, key: bytes) -> bool:
        try:
            (WindowKey if self._layout == WINDOW else SessionKey).from_bytes(key)
        except ContractError:
            return False
        return True
