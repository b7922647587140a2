"""Refuses values that are older than a read allows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from statehouse.contract.consistency import refuse_too_old
from statehouse.runtime.clocks import process_clock
from statehouse.v1 import types_pb2


class _Bounded(Protocol):
    """A read of a store."""

    @property
    def store(self) -> str:
        """The store's name."""
        ...

    @property
    def freshness(self) -> types_pb2.Freshness:
        """The caller's bounds."""
        ...


def refuse_old_values(request: _Bounded, timestamps_ms: Iterable[int]) -> None:
    """Refuse an answer by the times of its values' records, as `consistency.refuse_too_old` does.

    Raises:
        LookupFailure: VALUE_TOO_OLD.

    """
    refuse_too_old(request.freshness, request.store, timestamps_ms, process_clock().now_ms())
