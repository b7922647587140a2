"""What a watch by moment has been sent of a batch, until its mark makes it whole. Pure."""

from __future__ import annotations

from typing import Final

from statehouse.client.answers import Batch, Update
from statehouse.contract.moments import MomentToken
from statehouse.contract.watch_marks import token_of
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2

CHANGES_MAX: Final = 1_000_000
BYTES_MAX: Final = 512 * 1024 * 1024
"""A batch is kept until it is whole. With more changes, or larger ones, a watch ends rather than the program."""


class BatchParts:
    """The updates since the last mark."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._updates: list[tuple[Update, int]] = []
        self._changes = self._bytes = 0

    def take(self, update: Update, size: int) -> None:
        """Take an update whose response is of a size.

        Raises:
            LookupFailure: MESSAGE_TOO_LARGE.

        """
        if update.begins:
            others = [each for each in self._updates if each[0].partition != update.partition]
            self._updates, self._changes, self._bytes = [], 0, 0
            for kept, kept_size in others:
                self._add(kept, kept_size)
        if update.changes or update.current:
            self._add(update, size)
        if self._changes > CHANGES_MAX or self._bytes > BYTES_MAX:
            raise LookupFailure(
                Reason.MESSAGE_TOO_LARGE,
                f"a batch of store {self._store} has more than {CHANGES_MAX:,} changes, or than {BYTES_MAX:,} bytes: "
                "watch fewer keys at once, by their prefix or partition",
                {"store": self._store},
            )

    def _add(self, update: Update, size: int) -> None:
        self._updates.append((update, size))
        self._changes += len(update.changes)
        self._bytes += size

    def whole(self, mark: query_service_pb2.WatchMark) -> Batch:
        """Return the batch that a mark ends."""
        updates = tuple(update for update, _ in self._updates)
        self._updates, self._changes, self._bytes = [], 0, 0
        return Batch(MomentToken({mark.moment.query_id: mark.moment.batch_id}), updates, token_of(mark))
