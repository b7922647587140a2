"""The store: a window store of histograms that answers quantiles over any span of windows.

Its records have the keys of a window store. So it expires, restores, compacts and moves as one, and has FetchWindows
and ScanWindows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from query_service.stores.engine import Engine
from query_service.stores.windows import WINDOWS, TimedStore
from statehouse.contract.paging import LAST_MS
from statehouse.contract.topology import StoreSpec
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import WindowKey
from statehouse.serdes import JsonValue

from .histograms import added_up, bounds_ms, quantile_bucket, read_histogram

QUANTILE: Final = "quantile"
_ARGUMENTS: Final = frozenset({"q", "from_ms", "to_ms"})


class HistogramStore(TimedStore[WindowKey]):
    """Histograms by key and window, with one custom query."""

    query_names = (QUANTILE,)

    def __init__(self, spec: StoreSpec, engine: Engine) -> None:
        super().__init__(engine, WINDOWS, spec.retention_ms)
        self._name = spec.name

    def query(self, name: str, key: bytes, arguments: Mapping[str, JsonValue]) -> JsonValue:  # noqa: ARG002 - the only one
        """Answer `quantile` with {"q": 0.99, "from_ms": ..., "to_ms": ...}: how long that share of all took at most.

        The span is of window starts, both ends inclusive; without it all windows count that are kept. The answer has
        the duration's bounds; `below_ms` is null for the longest. It is null if nothing was counted.

        Raises:
            LookupFailure: INVALID_REQUEST, or VALUE_UNDECODABLE if a value is no histogram.

        """
        quantile, first_ms, last_ms = self._read(arguments)
        page = self.entries_of(key, first_ms, last_ms)
        if page.more:
            raise LookupFailure(
                Reason.INVALID_REQUEST, f"the span has more than {len(page.entries)} windows: ask for a narrower one"
            )
        try:
            counts = added_up(read_histogram(value) for _, value in page.entries)
        except ValueError as error:
            raise LookupFailure(Reason.VALUE_UNDECODABLE, str(error), {"store": self._name}) from error
        bucket = quantile_bucket(counts, quantile)
        if bucket is None:
            return None
        from_ms, below_ms = bounds_ms(bucket)
        return {
            "count": sum(counts),
            "windows": len(page.entries),
            "from_ms": from_ms,
            "below_ms": below_ms if math.isfinite(below_ms) else None,
        }

    @staticmethod
    def _read(arguments: Mapping[str, JsonValue]) -> tuple[float, int, int]:
        quantile = arguments.get("q")
        span = [arguments.get("from_ms", 0), arguments.get("to_ms", LAST_MS)]
        is_number = isinstance(quantile, int | float) and not isinstance(quantile, bool)
        if not is_number or not 0 <= quantile <= 1 or not all(type(each) is int for each in span):  # type: ignore[operator]
            raise LookupFailure(
                Reason.INVALID_REQUEST, f'{QUANTILE} takes {{"q": 0 to 1, "from_ms": integer, "to_ms": integer}}'
            )
        if arguments.keys() - _ARGUMENTS:
            raise LookupFailure(Reason.INVALID_REQUEST, f"{QUANTILE} takes {', '.join(sorted(_ARGUMENTS))} only")
        return quantile, *span  # type: ignore[return-value]
