"""Each way in x each kind of gate alone x each kind of caller: what becomes of the call, and what is noted of it.

The tests look at the outcome, whatever way the call takes. The methods come from the table of rights, which
`test_rights.py` compares with the services' descriptors; the routes from the application itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from statehouse.errors import LookupFailure, Reason
from statehouse.link.link import CALLS, LinkContext
from statehouse.link.proxy import proxy_for
from statehouse.local.ports import LOOPBACK
from statehouse.observability.denials import SecurityMetrics, counted_gate
from statehouse.observability.metrics import MetricsServer
from statehouse.rpc import authorized
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.server import RpcServer
from statehouse.rpc.status import Context, failing_cleanly
from statehouse.security import audit
from statehouse.security.rights import HEALTH_CHECK, METRICS, RIGHTS
from statehouse.settings import RouterSettings, WebSettings
from statehouse.web.app import build_app
from statehouse.web.gateway import Gateway
from tests.support.certificates import Authority, Issued
from tests.support.gates import CALLERS, GATES, HOURS, NAMES, NO_CONNECTION, REFUSED, SERVED, URI, GateCase, outcome_of
from tests.support.metrics import scrape_registry
from tests.support.proxy import PROXY
from tests.support.web import web_server

# There is one version of reflection, the older one.
METHODS: Final = tuple(path for path in RIGHTS if path != METRICS and ".reflection.v1." not in path)
OURS: Final = tuple(path for path in METHODS if path.startswith("/statehouse.v1."))
STREAMS: Final = frozenset({"Watch", "WatchFleet"})
OPEN_ROUTES: Final = frozenset({"/healthz", "/v1", "/v1/openapi.json", "/static"})
NOBODY: Final = f"{LOOPBACK}:1"


def callers_of(gate: str) -> list[str]:
    return [caller for caller in CALLERS if outcome_of(gate, caller) is not None]


CASES: Final = [(gate, caller) for gate in GATES for caller in callers_of(gate)]


@pytest.fixture(autouse=True)
def _each_denial_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "LINES_PER_S", 10_000)


class Noted:
    """What a gate has noted since this was made: its lines and its count of denials."""

    def __init__(self, registry: CollectorRegistry, lines: list[Any]) -> None:
        self._registry, self._lines = registry, lines
        self._counted = self._denials()

    def _denials(self) -> float:
        return scrape_registry(self._registry).value("t_denials_total")

    def assert_denials(self, calls: int) -> None:
        assert self._denials() - self._counted == calls
        logged = [each for each in self._lines if each["event"] == "denied"]
        assert len(logged) == calls
        assert all(each["reason"] in {"UNAUTHENTICATED", "PERMISSION_DENIED"} for each in logged)


# gRPC: our services, health and reflection, through the proxy and by grpcio


@failing_cleanly
async def _reached(_self: object, _request: bytes, _context: Context) -> None:
    raise LookupFailure(Reason.UNKNOWN_STORE, "this is what a call that is served comes to here")


def _over_the_link(_request: bytes, _context: LinkContext) -> bytes:
    raise LookupFailure(Reason.UNKNOWN_STORE, "likewise")


def _register(server: Any) -> None:
    handlers: dict[str, dict[str, Any]] = {}
    for path in OURS:
        service, _, name = path[1:].partition("/")
        make = grpc.unary_stream_rpc_method_handler if name in STREAMS else grpc.unary_unary_rpc_method_handler
        handlers.setdefault(service, {})[name] = make(partial(_reached, None))
    for service, methods in handlers.items():
        server.add_registered_method_handlers(service, methods)


@dataclass
class Served:
    case: GateCase
    server: RpcServer
    registry: CollectorRegistry
    gate: Any

    def channel(self, caller: str) -> grpc.aio.Channel:
        shown, token = self.case.certificate_of(caller), self.case.token_of(caller)
        pair = (None, None) if shown is None else (shown.key_path.read_bytes(), shown.certificate_path.read_bytes())
        credentials = grpc.ssl_channel_credentials(self.case.authority.path.read_bytes(), *pair)
        if token is not None:
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        return grpc.aio.secure_channel(f"{LOOPBACK}:{self.server.port}", credentials, options)


@contextlib.asynccontextmanager
async def served(case: GateCase, proxy: str) -> AsyncIterator[Served]:
    settings = RouterSettings(application_id="tests", proxy=proxy, **case.settings)
    registry = CollectorRegistry()
    gate = counted_gate(settings, SecurityMetrics(registry, "t"))
    bind = f"{LOOPBACK}:0"
    server = RpcServer(
        bind,
        tuple({path[1:].partition("/")[0] for path in OURS}),
        _register,
        settings=settings,
        proxy=proxy_for(settings, bind, lambda error: pytest.fail(str(error))),
        proxied=dict.fromkeys(CALLS.values(), _over_the_link),
        max_batch_entries=1_000,
        lasting_calls=0,
        gate=gate,
    )
    await server.start()
    try:
        yield Served(case, server, registry, gate)
    finally:
        await server.stop(0.0)


async def outcome(channel: grpc.aio.Channel, path: str, metadata: Sequence[tuple[str, bytes]] = ()) -> str:
    # With one request, and not a stream of them: a refusal that comes while grpcio still writes a stream's request
    # looks like a failure of that write, INTERNAL.
    call: Any = channel.unary_stream(path)(b"", timeout=10.0, metadata=tuple(metadata))
    try:
        await call.read()
        call.cancel()
    except grpc.aio.AioRpcError as error:
        failure = from_rpc_error(error)
        if failure.reason in {Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED}:
            return REFUSED
        return NO_CONNECTION if failure.reason is Reason.UNREACHABLE else SERVED
    return SERVED


@pytest.mark.parametrize("proxy", [str(PROXY), "none"], ids=["proxy", "grpcio"])
@pytest.mark.parametrize("gate", GATES)
async def test_each_method_behind_each_gate(tmp_path: Path, gate: str, proxy: str) -> None:
    async with served(GateCase(gate, tmp_path), proxy) as it:
        for caller in callers_of(gate):
            wanted = outcome_of(gate, caller)
            async with it.channel(caller) as channel:
                if caller == "expired" and gate != "jwt":  # it holds while the connection begins
                    assert await outcome(channel, HEALTH_CHECK) == SERVED
                    it.gate._clock = lambda: time.time() + HOURS * 3_600 + 60
                with capture_logs() as lines:
                    noted = Noted(it.registry, lines)
                    found = {path: await outcome(channel, path) for path in METHODS}
                    noted.assert_denials(len(METHODS) if wanted == REFUSED else 0)
                it.gate._clock = time.time
            assert found == dict.fromkeys(METHODS, wanted), caller


async def _read_all(stream: Any) -> None:
    while True:
        await stream.read()


class Forwarding(GateCase):
    """Rules that know a router, who may read for others or also act for them, and those others."""

    def __init__(self, folder: Path) -> None:
        super().__init__("rules", folder)
        root = Authority(folder, "root", path_length=1)
        self.below = Authority(folder, "below", under=root)
        ca = self.authority.path
        ca.write_bytes(ca.read_bytes() + root.path.read_bytes())
        self.issued |= {name: self.authority.issue(NAMES, (uri(name),)) for name in ("router", "deputy")}
        self.issued["below"] = self.below.issue(NAMES, (URI,))

    def _rules(self, known_by: str) -> Path:
        path = super()._rules(known_by)
        entries = {"router": "", "deputy": 'also = ["act-for"]'}
        with path.open("a") as rules:
            for name, more in entries.items():
                certificates = f'certificates = ["{uri(name)}"]'
                rules.write(f'[[identity]]\nname = "{name}"\nroles = ["router"]\n{certificates}\n{more}\n')
        return path


def uri(name: str) -> str:
    return f"statehouse://tests/{name}"


def shown_for(issued: Issued, *, whole: bool = True) -> list[tuple[str, bytes]]:
    """Return the metadata by which somebody else shows a certificate, with what is between it and a CA."""
    chain = authorized.ders_of(issued.certificate_path.read_bytes())
    with_it = chain[len(issued.der) :]
    return [
        (authorized.ON_BEHALF_KEY, issued.der),
        *([(authorized.ON_BEHALF_CHAIN_KEY, with_it)] if whole and with_it else []),
    ]


@pytest.mark.parametrize("proxy", [str(PROXY), "none"], ids=["proxy", "grpcio"])
async def test_what_a_router_does_for_others(tmp_path: Path, proxy: str) -> None:
    """Also of calls that go over the link otherwise: whom a call is for decides there, too."""
    case = Forwarding(tmp_path)
    (tmp_path / "own").mkdir()
    itself = Authority(tmp_path / "own", "house").issue(NAMES, (URI,))
    others: dict[str, list[tuple[str, bytes]]] = {
        "right": shown_for(case.issued["right"]),
        "below": shown_for(case.issued["below"]),
        "below, alone": shown_for(case.issued["below"], whole=False),
        "made by themselves": shown_for(itself),
        "two": shown_for(case.issued["right"]) * 2,
        "empty": [(authorized.ON_BEHALF_KEY, b"")],
    }
    changes = [f"/statehouse.v1.NodeService/{name}" for name in ("Drain", "RestoreReplica")]
    async with served(case, proxy) as it:
        for forwarder in ("router", "deputy"):
            async with it.channel(forwarder) as channel:
                for kind, metadata in others.items():
                    found = {path: await outcome(channel, path, metadata) for path in OURS}
                    wanted = dict.fromkeys(OURS, SERVED if kind in {"right", "below"} else REFUSED)
                    if forwarder == "router":
                        wanted |= dict.fromkeys(changes, REFUSED)
                    assert found == wanted, (forwarder, kind)
        for caller in ("right", "below"):
            async with it.channel(caller) as channel:
                assert await outcome(channel, OURS[0]) == SERVED, "an intermediate CA's, shown by itself"
                assert await outcome(channel, OURS[0], others["right"]) == REFUSED, "no router"


@failing_cleanly
async def _lasting(_self: object, _request: bytes, context: Context) -> None:
    while True:
        await context.write(b"")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("proxy", [str(PROXY), "none"], ids=["proxy", "grpcio"])
@pytest.mark.parametrize("gate", [each for each in GATES if outcome_of(each, "expired")])
async def test_a_stream_ends_when_what_was_shown_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: str, proxy: str
) -> None:
    monkeypatch.setattr(authorized, "ASKED_AGAIN_S", 0.05)
    monkeypatch.setattr(f"{__name__}._reached", _lasting)
    caller = "ends" if gate == "jwt" else "expired"
    async with served(GateCase(gate, tmp_path), proxy) as it, it.channel(caller) as channel:
        for name in ("Watch",) if gate == "jwt" else STREAMS:
            path = next(each for each in OURS if each.endswith(f"/{name}"))
            stream: Any = channel.unary_stream(path)(b"", timeout=20.0)
            await stream.read()
            if gate != "jwt":
                it.gate._clock = lambda: time.time() + HOURS * 3_600 + 60
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _read_all(stream)
            assert from_rpc_error(caught.value).reason is Reason.UNAUTHENTICATED
            it.gate._clock = time.time


# HTTP: /metrics and probes of each process, and the web process


def _asked(case: GateCase, port: int, caller: str, *requests: tuple[str, str], later: Any = None) -> list[str]:
    """Return what becomes of requests over one connection. `later()` is called when the first has been answered."""
    context = ssl.create_default_context(cafile=str(case.authority.path))
    if (shown := case.certificate_of(caller)) is not None:
        context.load_cert_chain(shown.certificate_path, shown.key_path)
    token = case.token_of(caller)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=20.0, context=context)
    found: list[str] = []
    try:
        for method, path in requests:
            body = json.dumps({"keys": ["k"]}) if method == "POST" else None
            given = headers if body is None else {**headers, "Content-Type": "application/json"}
            try:
                connection.request(method, path, body, given)
                answer = connection.getresponse()
                if answer.headers.get_content_type() == "text/event-stream":
                    connection.close()
                else:
                    answer.read()
                reason = REFUSED if answer.status == 401 else SERVED
            except (OSError, http.client.HTTPException):
                connection.close()
                reason = NO_CONNECTION
            found.append(reason)
            if later is not None and len(found) == 1:
                later()
    finally:
        connection.close()
    return found


@pytest.mark.parametrize("gate", GATES)
def test_metrics_and_probes_behind_each_gate(tmp_path: Path, gate: str) -> None:
    case = GateCase(gate, tmp_path)
    settings = RouterSettings(application_id="tests", **case.settings)
    registry, probes = CollectorRegistry(), ("/startupz", "/livez", "/readyz")
    judge = counted_gate(settings, SecurityMetrics(registry, "t"))
    server = MetricsServer(CollectorRegistry(), LOOPBACK, 0, settings, judge, dict.fromkeys(probes, lambda: ""))
    requests = [("GET", path) for path in ("/metrics", *probes)]
    try:
        for caller in callers_of(gate):
            wanted = outcome_of(gate, caller)
            if caller == "expired" and judge is not None:
                judge._clock = lambda: time.time() + HOURS * 3_600 + 60
            with capture_logs() as lines:
                noted = Noted(registry, lines)
                found = _asked(case, server.port, caller, *requests)
                noted.assert_denials(len(requests) if wanted == REFUSED else 0)
            if judge is not None:
                judge._clock = time.time
            assert found == [wanted] * len(requests), caller
    finally:
        server.close()


async def _routes() -> list[tuple[str, str]]:
    app = build_app(Gateway(WebSettings()))
    values = {"{store}": "s", "{key}": "k", "{query}": "q", "{node}": "n"}
    found = []
    for route in app.routes:
        path: str = route.path  # type: ignore[attr-defined]
        for method in (getattr(route, "methods", None) or {"GET"}) - {"HEAD"}:
            target = path
            for name, value in values.items():
                target = target.replace(name, value)
            if path not in OPEN_ROUTES:
                found.append((method, target))
    return found


@pytest.fixture(scope="module")
def all_routes() -> list[tuple[str, str]]:
    return asyncio.run(_routes())


@contextlib.contextmanager
def web(case: GateCase) -> Iterator[tuple[int, Gateway]]:
    gateways: list[Gateway] = []

    def extra(gateway: Gateway) -> list[Any]:
        gateways.append(gateway)
        return []

    with web_server(NOBODY, extra, **case.settings) as address:
        yield int(address.rpartition(":")[2]), gateways[0]


@pytest.mark.parametrize("gate", GATES)
def test_each_route_behind_each_gate(tmp_path: Path, gate: str, all_routes: list[tuple[str, str]]) -> None:
    case = GateCase(gate, tmp_path)
    with web(case) as (port, gateway):
        judge: Any = gateway._gate

        def later() -> None:
            judge._clock = lambda: time.time() + HOURS * 3_600 + 60

        for caller in callers_of(gate):
            wanted = outcome_of(gate, caller)
            # One that is served asks a router that isn't there: a few will do.
            asked = all_routes if wanted == REFUSED else [("GET", "/v1/stores/s/count"), ("GET", "/nodes.json")]
            with capture_logs() as lines:
                registry = gateway.metrics._registry
                before = scrape_registry(registry).value("statehouse_router_denials_total")
                first = ("GET", "/healthz")
                opened, *found = _asked(case, port, caller, first, *asked, later=later if caller == "expired" else None)
                counted = scrape_registry(registry).value("statehouse_router_denials_total") - before
            if judge is not None:
                judge._clock = time.time
            assert opened == (NO_CONNECTION if wanted == NO_CONNECTION else SERVED), caller
            assert found == [wanted] * len(asked), (
                caller,
                [a for a, f in zip(asked, found, strict=True) if f != wanted],
            )
            assert counted == (len(asked) if wanted == REFUSED else 0)
            assert len([each for each in lines if each["event"] == "denied"]) == counted


def test_callers_of_an_intermediate_ca_are_known_over_http_too(tmp_path: Path) -> None:
    case = Forwarding(tmp_path)
    settings = RouterSettings(application_id="tests", **case.settings)
    judge = counted_gate(settings, SecurityMetrics(CollectorRegistry(), "t"))
    server = MetricsServer(CollectorRegistry(), LOOPBACK, 0, settings, judge)
    try:
        assert _asked(case, server.port, "below", ("GET", "/metrics")) == [SERVED]
    finally:
        server.close()
    with web(case) as (port, _gateway):
        assert _asked(case, port, "below", ("GET", "/nodes.json")) == [SERVED]


def test_a_gate_that_is_not_asked_for_is_none() -> None:
    assert counted_gate(RouterSettings(application_id="tests"), SecurityMetrics(CollectorRegistry(), "t")) is None
