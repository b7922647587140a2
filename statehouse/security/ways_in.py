"""Each way in to our processes, and what has it pass the gate.

A test walks the code: a module that listens and isn't named here fails it, and so does a way whose door can be built
without saying which gate it has. Other tests ask each way with each kind of gate (`settings_gate.gates_named`).
"""

from __future__ import annotations

from typing import Final, NamedTuple


class WayIn(NamedTuple):
    """A way in.

    Attributes:
        what: what comes this way.
        module: the file that opens it.
        door: what is built to open it, as module:name; its parameter `parameter` is the gate, or says what gates there
            are, and has no default.
        parameter: see above.

    """

    what: str
    module: str
    door: str
    parameter: str = "gate"


WAYS_IN: Final = (
    WayIn(
        "calls of gRPC, health and reflection among them, whether grpcio takes them or the proxy passes them on, and "
        "what the proxy hands over on the link",
        "statehouse/rpc/server.py",
        "statehouse.rpc.server:RpcServer",
    ),
    WayIn(
        "lookups that the proxy sends to nodes by itself; it judges nobody, so a router with a gate has no such way",
        "proxy/main.go",
        "router.choice.express:standing_obstacle",
        "gates",
    ),
    WayIn(
        "/metrics, and probes of processors and controllers",
        "statehouse/observability/metrics.py",
        "statehouse.observability.metrics:MetricsServer",
    ),
    WayIn(
        "the HTTP API and the page; each route asks its gateway, and /healthz, the OpenAPI document and the page's own "
        "files, which say nothing of a fleet, are open to whoever can connect",
        "statehouse/web/connection_limit.py",
        "statehouse.web.gateway:Gateway",
        "settings",
    ),
)
