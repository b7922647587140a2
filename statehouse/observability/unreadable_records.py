"""Counts and logs the records of control topics that can't be taken: unreadable ones, and those that can't be true."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter

log = structlog.get_logger(__name__)

_LOGGED_MAX: Final = 1_000

OnUnreadable = Callable[[str, bytes | str | None, Exception], None]
"""Takes a record that is skipped: "assignment", "members" or "commits", its key, and why."""
OnUnsigned = Callable[[str, bytes | str | None], None]
"""Takes a record that is accepted although it has no signature: its topic, as above, and its key."""


class UnreadableRecords:
    """Counts each record, and logs the first one of each key. Thread-safe."""

    def __init__(self, registry: CollectorRegistry | None = None, prefix: str = "statehouse") -> None:
        """Prepare; with a registry the count is a metric whose name begins with `prefix`."""
        self._counts = Counter(
            f"{prefix}_unreadable_control_records",
            "Records of control topics that can't be read, or can't be true",
            labelnames=("topic",),
            registry=registry,
        )
        self._unsigned = Counter(
            f"{prefix}_unsigned_control_records",
            "Records of control topics that were taken without a signature",
            labelnames=("topic",),
            registry=registry,
        )
        self._logged: set[tuple[str, str, bytes]] = set()
        self._lock = threading.Lock()

    def note(self, topic: str, key: bytes | str | None, error: Exception) -> None:
        """Count a record of "assignment", "members" or "commits" that is skipped."""
        self._counts.labels(topic).inc()
        self._say_once(topic, key, "control record skipped", error=str(error))

    def unsigned(self, topic: str, key: bytes | str | None) -> None:
        """Count a record that is taken although it has no signature, where others have one."""
        self._unsigned.labels(topic).inc()
        self._say_once(topic, key, "control record without a signature: see require_signed_records")

    def _say_once(self, topic: str, key: bytes | str | None, event: str, **about: str) -> None:
        """Log the first event of each key. Later events of this key are only counted."""
        name = key.encode(errors="replace") if isinstance(key, str) else key or b""
        with self._lock:
            # A writer of nonsense may use a new key each time: the log must not grow by that.
            if (event, topic, name) in self._logged or len(self._logged) >= _LOGGED_MAX:
                return
            self._logged.add((event, topic, name))
        shown = name[:200].decode(errors="replace")
        log.warning(event, topic=topic, key=shown, **about)
