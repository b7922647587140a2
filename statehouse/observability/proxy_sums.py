"""Shows what the proxy in front of a process says of itself, as metrics of that process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import grpc
import structlog
from google.protobuf.message import DecodeError
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from statehouse.control.v1 import proxy_sums_pb2

log = structlog.get_logger(__name__)

_CODES: Final = {code.value[0]: code.name for code in grpc.StatusCode}
_WAYS: Final = {
    proxy_sums_pb2.PROXY_WAY_EXPRESS: "express",
    proxy_sums_pb2.PROXY_WAY_LINK: "link",
    proxy_sums_pb2.PROXY_WAY_FORWARDED: "forwarded",
    proxy_sums_pb2.PROXY_WAY_REFUSED: "refused",
    proxy_sums_pb2.PROXY_WAY_STORES: "stores",
}

_Gauges = dict[str, tuple[str, Callable[[proxy_sums_pb2.ProxySums], float]]]
_GAUGES: Final[_Gauges] = {
    "connections": ("Connections that are open", lambda sums: sums.connections),
    "calls_at_process": ("Calls that the process has not answered yet", lambda sums: sums.calls_at_process),
    "held_bytes": ("Bytes that calls take", lambda sums: sums.held_bytes),
    "held_bytes_max": ("Bytes that calls may take", lambda sums: sums.held_bytes_max),
}
_OF_EXPRESS: Final[_Gauges] = {
    "express_lookups": ("Lookups that nodes were asked for and have not answered", lambda sums: sums.express_lookups),
    "express_open": ("1 while the proxy may send lookups to nodes", lambda sums: sums.express_is_open),
}

_OF_STORES: Final[_Gauges] = {
    "stores_open": ("1 while the proxy may answer from stores that it holds", lambda sums: sums.stores_are_open),
}


class ProxyCollector(Collector):
    """Shows the newest sums at each scrape; nothing without a proxy.

    `prefix` begins the metrics' names. `sums()` returns serialized ProxySums, empty while there are none.
    `has_express`: whether the process is a router, whose proxy may send lookups to nodes. A node's may answer some.
    """

    def __init__(self, prefix: str, sums: Callable[[], bytes], *, has_express: bool) -> None:
        self._prefix, self._sums, self._has_express = f"{prefix}_proxy", sums, has_express

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        prefix, gauges = self._prefix, _GAUGES | (_OF_EXPRESS if self._has_express else _OF_STORES)
        calls = CounterMetricFamily(
            f"{prefix}_calls", "Calls that are over, by who answered and the status", labels=("way", "code")
        )
        queued = GaugeMetricFamily(
            f"{prefix}_queued_calls", "Calls that wait to be given to the process", labels=("kind",)
        )
        refused = CounterMetricFamily(f"{prefix}_refused_connections", "Connections closed at once: too many")
        others = {name: GaugeMetricFamily(f"{prefix}_{name}", meaning) for name, (meaning, _) in gauges.items()}
        sums = newest(self._sums)
        if sums is not None:
            for each in sums.calls:
                way, code = _WAYS.get(each.way, str(each.way)), _CODES.get(each.code, str(each.code))
                calls.add_metric((way, code), each.count)
            queued.add_metric(("lookups",), sums.queued_lookups)
            queued.add_metric(("others",), sums.queued_others)
            refused.add_metric((), sums.connections_refused)
            for name, (_, value_in) in gauges.items():
                others[name].add_metric((), value_in(sums))
        yield from (calls, queued, refused, *others.values())


def newest(sums: Callable[[], bytes]) -> proxy_sums_pb2.ProxySums | None:
    """Return what a proxy last said of itself; None if it has said nothing, or something else."""
    if not (data := sums()):
        return None
    try:
        return proxy_sums_pb2.ProxySums.FromString(data)
    except DecodeError as error:
        log.warning("the proxy's sums can't be read", error=str(error))
        return None
