"""What the processor has committed of its inputs, and calls that wait until it has committed a record.

To read at least a record's result, a client then reads with the returned positions as `at_least`: that read waits for
the replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from router.fleet_api.commit_tail import CommitTail, TopicPartition
from statehouse.contract.moments import MomentToken, unavailable, why_none
from statehouse.contract.positions import Token
from statehouse.contract.topology import StoreSpec
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.deadline import Deadline
from statehouse.runtime.held_bytes import HeldBytes
from statehouse.v1 import fleet_service_pb2

_MAX_WAITS: Final = 10_000
# What a kept record takes in addition to the request. All that are kept are compared with each commit, too.
_RECORD_BYTES: Final = 300


class Inputs:
    """The commits of all stores, and the calls that wait for one. Lives on the event loop."""

    def __init__(self) -> None:
        self._tails: dict[str, CommitTail] = {}
        self._changed = asyncio.Event()
        self._is_read = asyncio.Event()
        self.waiting = 0
        """Calls that wait for the processor now."""
        self._kept = HeldBytes("calls that wait for the processor at this router")

    def on_commit(self, commit: commits_pb2.Commit) -> None:
        """Take a record of the commits topic."""
        self._tails.setdefault(commit.store, CommitTail()).feed(commit)
        self._changed.set()
        self._changed = asyncio.Event()

    def on_read(self) -> None:
        """Take that the commits topic was read to its end."""
        self._is_read.set()

    def on_reset(self, store: str) -> None:
        """Forget a store's commits: its application begins anew, and processes its inputs again."""
        self._tails.pop(store, None)

    def moment(self, spec: StoreSpec, asked: MomentToken) -> fleet_service_pb2.GetMomentResponse:
        """Return what the processor has told of the batch that is asked for, or of the newest one.

        Raises:
            LookupFailure: MOMENTS_UNAVAILABLE, MOMENT_GONE or MOMENT_NOT_REACHED.

        """
        if why := why_none(spec):
            raise unavailable(spec.name, why)
        return self._tails.get(spec.name, CommitTail()).moment(spec.name, asked)

    async def has(self, store: str) -> bool:
        """Whether a processor has ever committed into a store. Waits until the commits topic was once read."""
        await self._is_read.wait()
        return store in self._tails

    async def sources_at(self, store: str, reached: Mapping[int, int], within_s: float) -> Mapping[TopicPartition, int]:
        """Wait until the processor has told where its inputs ended of what changelogs have up to these positions.

        After `within_s` seconds return where those of its newest batch did: it may have died in the next one.
        """
        try:
            async with asyncio.timeout(within_s):
                while (sources := self._tails.get(store, CommitTail()).sources_at(reached)) is None:
                    await self._changed.wait()
        except TimeoutError:
            return self._tails.get(store, CommitTail()).newest_sources
        return sources

    async def processed(
        self, store: str, records: Mapping[TopicPartition, int], deadline: Deadline, request_bytes: int
    ) -> Token:
        """Wait until the processor has committed the records; return the positions that a read must reach.

        `request_bytes`: size of the request, which is kept as long.

        Raises:
            LookupFailure: INPUT_NOT_PROCESSED, INVALID_REQUEST or OVERLOADED.

        """
        if self.waiting >= _MAX_WAITS:
            raise LookupFailure(Reason.OVERLOADED, f"{_MAX_WAITS} calls wait for the processor, the most allowed")
        with self._kept.hold(request_bytes + _RECORD_BYTES * len(records)):
            self.waiting += 1
            try:
                async with asyncio.timeout_at(deadline.at):
                    while (positions := self._positions(store, records)) is None:
                        await self._changed.wait()
            except TimeoutError:
                raise self._unprocessed(store) from None
            finally:
                self.waiting -= 1
        return Token({(store, partition): position for partition, position in positions.items()})

    def moment_with(self, store: str, records: Mapping[TopicPartition, int]) -> MomentToken:
        """Return the first batch known that includes the records and that reads can be of; empty if there is none."""
        return self._tails.get(store, CommitTail()).moment_with(records)

    def _positions(self, store: str, records: Mapping[TopicPartition, int]) -> Mapping[int, int] | None:
        tail = self._tails.get(store)
        return None if tail is None else tail.positions(records)

    def _unprocessed(self, store: str) -> LookupFailure:
        what = "has not committed the records" if store in self._tails else "has never committed anything"
        return LookupFailure(
            Reason.INPUT_NOT_PROCESSED,
            f"the processor of store {store} {what} within the time there was",
            {"store": store},
        )
