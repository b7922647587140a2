"""No way in is left out: whatever listens in our code is in the list, and its door asks for a gate.

Other tests ask each way with each kind of gate (`settings_gate.gates_named`).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import pytest

from statehouse.link.link import CALLS

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = ("statehouse", "router", "query_service", "processor", "pyspark_statehouse")
LISTENS: Final = frozenset(
    {
        *("listen", "create_server", "start_server", "create_unix_server", "start_unix_server", "serve_forever"),
        *("add_insecure_port", "add_secure_port", "run_app"),
        *("HTTPServer", "ThreadingHTTPServer", "WSGIServer", "TCPServer", "UDPServer", "ThreadingTCPServer"),
    }
)
"""Names of whatever accepts connections from others, in the standard library and in what we use."""
NO_WAYS_IN: Final = MappingProxyType(
    {
        "router/workers.py": "looks whether a port is free, and answers nobody",
        "dataplane/rests/reststest/reststest.go": "only tests have it",
    }
)


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
        "lookups that the proxy sends to nodes by itself; it judges nobody, so with a gate callers need a permit",
        "dataplane/main.go",
        "router.choice.express:ExpressLimits",
        "needs_permits",
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


def listening(source: str) -> bool:
    """Whether a module calls, or is a kind of, something that accepts connections."""
    for node in ast.walk(ast.parse(source)):
        named: list[ast.expr] = []
        if isinstance(node, ast.Call):
            named = [node.func]
        elif isinstance(node, ast.ClassDef):
            named = node.bases
        if any(getattr(each, "attr", getattr(each, "id", "")) in LISTENS for each in named):
            return True
    return False


def test_whatever_listens_is_listed() -> None:
    found = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if listening(path.read_text())
    }
    in_go = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "dataplane").rglob("*.go")
        if not path.name.endswith("_test.go") and re.search(r"\b(?:net\.Listen|\.Listen)\w*\(", path.read_text())
    }
    assert found | in_go == {each.module for each in WAYS_IN} | set(NO_WAYS_IN)


@pytest.mark.parametrize("way", WAYS_IN, ids=lambda way: way.door)
def test_no_door_is_built_without_saying_which_gate_it_has(way: WayIn) -> None:
    module, _, name = way.door.partition(":")
    parameter = inspect.signature(getattr(importlib.import_module(module), name)).parameters[way.parameter]
    assert parameter.default is inspect.Parameter.empty


def test_the_link_carries_no_call_that_its_handlers_do_not_admit() -> None:
    """`RpcServer` has the handlers of all calls in CALLS admit them; the proxy has no others for the link."""
    linked = re.search(
        r"var linked = map\[string\]byte\{(.*?)\}", (ROOT / "dataplane/lookups.go").read_text(), re.DOTALL
    )
    assert linked is not None
    paths = re.findall(r'"/statehouse\.v1\.QueryService/(\w+)"', linked.group(1))
    assert sorted(paths) == sorted(CALLS.values())


@pytest.mark.parametrize(
    "planted",
    [
        "import socket\nsocket.create_server(('', 1))",
        "class S(http.server.ThreadingHTTPServer): ...",
        "await asyncio.start_server(f, port=1)",
    ],
)
def test_a_new_way_in_would_be_noticed(planted: str) -> None:
    if planted.startswith("await"):
        planted = f"async def f():\n    {planted}"
    assert listening(planted)
    assert not listening("bind(port)")
