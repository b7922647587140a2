"""The bytes of requests that a server keeps for as long as something goes on: bounded, like their number. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from statehouse.errors import LookupFailure, Reason

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""For requests that are kept for one thing, as they are on the wire: a request of many small parts takes up to 30 times
as much when it is parsed. Requests have a hundred bytes, or some kilobytes with positions of hundreds of partitions."""


class HasSize(Protocol):
    """A request: a message, or what stands for one."""

    def ByteSize(self) -> int:  # noqa: N802 - as messages have it
        """Return its size on the wire, in bytes."""


class HeldBytes:
    """Counts them.

    `what`: what the requests are kept for, in words for a refused caller.
    """

    def __init__(self, what: str, most: int = HELD_BYTES_MAX) -> None:
        self._what, self._most = what, most
        self._held = 0

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Count a request of `size` bytes for as long as the context lasts.

        Raises:
            LookupFailure: OVERLOADED.

        """
        if self._held + size > self._most:
            raise LookupFailure(
                Reason.OVERLOADED,
                f"requests of {self._held:,} bytes are kept for {self._what}, and {size:,} more are too many: at most "
                f"{self._most:,} are",
            )
        self._held += size
        try:
            yield
        finally:
            self._held -= size
