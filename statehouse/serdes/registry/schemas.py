"""The schemas that a serde knows: each is fetched from the registry once, and never while a read waits in line.

A schema of an id never changes, so one that was fetched stays, also while the registry is down. That the registry lacks
an id, or can't be reached, is remembered only briefly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from statehouse.serdes import FetchNeeded, SerdeUnavailable

D = TypeVar("D")

_KNOWN_MAX = 10_000
_LACKING_MAX = 10_000
# How long "the registry has no such schema" holds; it may be registered at any time.
_LACKING_S = 10.0
# How long nothing more is asked of a registry that can't be reached.
_UNREACHABLE_S = 1.0


class Schemas(Generic[D]):
    """Gives the decoder of a schema id.

    Several threads may use it. `fetch` gets a decoder from the registry. It raises ValueError if there can be none for
    this id, and SerdeUnavailable if the registry can't say.
    """

    def __init__(self, fetch: Callable[[int], D], clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch, self._clock = fetch, clock
        self._lock = threading.Lock()
        self._known: dict[int, D] = {}
        self._lacking: dict[int, tuple[float, str]] = {}
        self._unreachable: tuple[float, str] = (0.0, "")

    def decoder(self, schema_id: int) -> D:
        """Return a decoder, immediately.

        Raises:
            FetchNeeded: it isn't known yet.
            ValueError, SerdeUnavailable: as `fetch` said a short while ago.

        """
        known = self._known.get(schema_id)
        if known is not None:
            return known
        now = self._clock()
        until, message = self._lacking.get(schema_id, (0.0, ""))
        if now < until:
            raise ValueError(message)
        until, message = self._unreachable
        if now < until:
            raise SerdeUnavailable(f"schema {schema_id} is not known here, and {message}; raw reads work")
        raise FetchNeeded((id(self), schema_id), partial(self.fetch, schema_id))

    def fetch(self, schema_id: int) -> None:
        """Fetch a decoder and keep it, or keep why there is none. It blocks."""
        try:
            found = self._fetch(schema_id)
        except ValueError as error:
            with self._lock:
                _keep(self._lacking, schema_id, (self._clock() + _LACKING_S, str(error)), _LACKING_MAX)
        except SerdeUnavailable as error:
            self._unreachable = (self._clock() + _UNREACHABLE_S, error.message)
        else:
            with self._lock:
                _keep(self._known, schema_id, found, _KNOWN_MAX)
                self._lacking.pop(schema_id, None)


V = TypeVar("V")


def _keep(kept: dict[int, V], schema_id: int, value: V, at_most: int) -> None:
    kept.pop(schema_id, None)
    if len(kept) >= at_most:
        kept.pop(next(iter(kept)))
    kept[schema_id] = value
