"""Each method of each server, asked by callers of every kind, through the proxy and without it."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import commits_topic
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.rpc.failures import from_rpc_error, is_servers
from statehouse.v1 import fleet_service_pb2, node_service_pb2, peer_service_pb2, query_service_pb2
from tests.support.certificates import Authority, Issued
from tests.support.fleet import STORE, Fleet, ServerProcess, is_answered_by_active
from tests.support.kafka import produce
from tests.support.metrics import parsed
from tests.support.polling import poll_until
from tests.support.secured import TOKEN, Keys

Code = grpc.StatusCode
INPUT: Final = "scores"
"""A topic that the processor reads."""


class Ended(NamedTuple):
    """How a call ended. `reason`: ours, as the server gave it."""

    code: Code
    reason: Reason | None = None


ANSWERED: Final = Ended(Code.OK)
# What becomes of calls that are allowed and can't be answered, as a key-value store has no such query. All others are
# answered.
_OF_OTHER_KINDS: Final = ("FetchWindows", "FetchSessions", "GetAsOf", "GetHistory", "ScanWindows", "ScanSessions")
NOT_ANSWERED: Final = MappingProxyType(
    dict.fromkeys((*_OF_OTHER_KINDS, "QueryStore"), Ended(Code.INVALID_ARGUMENT, Reason.WRONG_STORE_KIND))
    | dict.fromkeys(("GetMoment", "SumStore"), Ended(Code.FAILED_PRECONDITION, Reason.MOMENTS_UNAVAILABLE))
    | {"ReadFile": Ended(Code.INVALID_ARGUMENT, Reason.INVALID_REQUEST)}  # there is no such checkpoint
)
_REFUSED: Final = Ended(Code.INVALID_ARGUMENT, Reason.INVALID_REQUEST)
NO_PROGRAM: Final = NOT_ANSWERED | {"Profile": _REFUSED, "OfferStore": _REFUSED}
"""A node alone has no data plane that could be profiled, or give files."""
QUERY: Final = query_service_pb2.DESCRIPTOR.services_by_name["QueryService"]
FLEET: Final = fleet_service_pb2.DESCRIPTOR.services_by_name["FleetService"]
NODE: Final = node_service_pb2.DESCRIPTOR.services_by_name["NodeService"]
PEER: Final = peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"]
SIDE: Final = (
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)
# The calls about a store, and the kinds of callers; only some of them may call a method.
ABOUT_A_STORE: Final = frozenset({"LocateKey", "AwaitInput", "ExplainGet"}) | {each.name for each in QUERY.methods}
KINDS: Final = ("plain", "nothing", "wrong CA", "expired", "revoked", "unknown", "wrong role", "other store", "right")


@dataclass(frozen=True)
class Secured:
    """One node and one router with the proxy, and one of each without; all have the same rules."""

    keys: Keys
    fleet: Fleet
    servers: dict[str, ServerProcess]
    metrics: dict[str, int]
    foreign: Issued
    expired: Issued
    revoked: Issued
    unknown: Issued

    def shown(self, kind: str, method: MethodDescriptor | None) -> grpc.ChannelCredentials | None:
        """Return what a caller of this kind shows to this method, None: they don't encrypt."""
        match kind:
            case "plain":
                return None
            case "nothing":
                return self.keys.showing(None)
            case "wrong CA":
                return self.keys.showing(self.foreign)
            case "expired" | "revoked" | "unknown":
                return self.keys.showing(getattr(self, kind))
            case "other store":
                return self.keys.credentials("other")
        return self.keys.credentials(suited(method) if kind == "right" else unsuited(method))


def suited(method: MethodDescriptor | None) -> str:
    """Return an identity that may call a method; None stands for metrics."""
    if method is not None and method.containing_service is PEER:
        return "node"
    if method is None or method.containing_service.name != "Health":
        return "reader" if method is not None and is_about_a_store(method) else "operator"
    return "health"


def is_about_a_store(method: MethodDescriptor) -> bool:
    return method.name in ABOUT_A_STORE and method.containing_service not in SIDE


def unsuited(method: MethodDescriptor | None) -> str:
    return {"reader": "operator", "operator": "reader", "node": "operator"}[suited(method)]


def services_of(server: str) -> tuple[ServiceDescriptor, ...]:
    return (QUERY, *((FLEET,) if server.startswith("router") else (NODE, PEER)), *SIDE)


def methods_of(server: str, kind: str) -> list[MethodDescriptor]:
    """Return the methods to call; a drain that is allowed ends a node, a restore a replica: they are other tests'."""
    found = [method for service in services_of(server) for method in service.methods]
    if kind == "wrong role":  # any known caller may ask for a server's health
        found = [each for each in found if each.containing_service.name != "Health"]
    if kind == "other store":
        found = [each for each in found if is_about_a_store(each)]
    return [each for each in found if not (kind == "right" and each.name in {"Drain", "RestoreReplica"})]


def expected(kind: str, *, by_proxy: bool) -> Code:
    """Return the code that a call of this kind ends with; OK if it is allowed."""
    match kind:
        case "plain" | "wrong CA" | "expired":
            return Code.UNAVAILABLE  # there is no connection
        case "nothing":  # the proxy takes callers with tokens, and grpcio demands a certificate
            return Code.UNAUTHENTICATED if by_proxy else Code.UNAVAILABLE
        case "revoked" | "unknown":
            return Code.UNAUTHENTICATED
        case "right":
            return Code.OK
    return Code.PERMISSION_DENIED


def request_to(method: MethodDescriptor) -> Message:
    """Return a request of this method about the store, as whole as these tests need it."""
    request: Any = GetMessageClass(method.input_type)()
    fields = method.input_type.fields_by_name
    if method.name == "BatchGet":
        request.requests.add(store=STORE).key.text = "k0"
    elif method.name == "Profile":
        request.kind = node_service_pb2.PROFILE_KIND_GOROUTINES
    elif method.name == "ServerReflectionInfo":
        request.list_services = ""
    elif method.name == "ExplainGet":
        request.lookup.store = STORE
        request.lookup.key.text = "k0"
    elif "store" in fields:
        request.store = STORE
        if "key" in fields:
            request.key.text = "k0"
        elif "partition" in fields:  # nodes want one
            request.partition = 0
        if method.name == "AwaitInput":
            request.records.add(topic=INPUT, partition=0, offset=0)
    return cast(Message, request)


def call(channel: grpc.Channel, method: MethodDescriptor) -> Ended:
    """Return how a call ends. A stream's first answer counts."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    request, answer = request_to(method), GetMessageClass(method.output_type).FromString
    write = type(request).SerializeToString
    try:
        if method.client_streaming:
            talk = channel.stream_stream(path, write, answer)(iter([request]), timeout=10.0)
            next(talk)
            talk.cancel()
        elif method.server_streaming:
            stream = channel.unary_stream(path, write, answer)(request, timeout=10.0)
            next(stream)
            stream.cancel()
        else:
            channel.unary_unary(path, write, answer)(request, timeout=10.0)
    except grpc.RpcError as error:
        assert_told_by_name(error)
        failure = from_rpc_error(error)
        return Ended(error.code(), failure.reason if is_servers(failure) else None)
    return ANSWERED


def assert_told_by_name(error: Any) -> None:
    """Refusals have our reasons, so that nobody takes them for a node's ill health."""
    if error.code() in {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED}:
        failure: LookupFailure = from_rpc_error(error)
        assert failure.reason.name == error.code().name
        assert "grpc_status" not in failure.metadata


@contextlib.contextmanager
def connected(target: str, credentials: grpc.ChannelCredentials | None) -> Iterator[grpc.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    opened = (
        grpc.insecure_channel(target, options)
        if credentials is None
        else grpc.secure_channel(target, credentials, options)
    )
    with opened as channel:
        yield channel


@pytest.fixture(scope="module")
def secured(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    keys = Keys(folder)
    revoked = keys.issue("all")
    keys.revoke(revoked)
    foreign = Authority(folder, "foreign").issue(("localhost",), ("statehouse://tests/all",))
    with Fleet(kafka.bootstrap, f"secured-{free_port()}", folder, partitions=1) as fleet:
        fleet.credentials = keys.credentials("all")
        ports = {name: free_port() for name in ("node", "router", "node alone", "router alone", "controller")}
        by_proxy, alone = {"tls_callers": "optional"}, {"proxy": "none"}
        servers = {
            "node": fleet.node("n1", **keys.options("node", metrics_port=ports["node"], **by_proxy)),
            "node alone": fleet.node("n2", **keys.options("node", metrics_port=ports["node alone"], **alone)),
            "router": fleet.router("r1", **keys.options("router", metrics_port=ports["router"], **by_proxy)),
            "router alone": fleet.router("r2", **keys.options("router", metrics_port=ports["router alone"], **alone)),
        }
        # The smallest process that serves what a processor serves: its metrics. It is to assign nothing here.
        options = {
            "application-id": f"{fleet.application_id}-alone",
            "bootstrap": kafka.bootstrap,
            "bind-host": LOOPBACK,
        }
        secured = {
            name.replace("_", "-"): value
            for name, value in keys.options("node", metrics_port=ports["controller"]).items()
        }
        controller = ServerProcess(
            "controller", "statehouse.cli", options | secured, 0, folder, words=("controller", "--standby")
        )
        fleet.processes.append(controller.start())
        fleet.assign(TaskAssignment("n1", ("n2",)))
        fleet.put({"k0": "v0"})
        commit = commits_pb2.Commit(
            store=STORE,
            query_id="q1",
            source_ends=[commits_pb2.TopicOffset(topic=INPUT, offset=1)],
            changelog_ends=[commits_pb2.TopicOffset(topic=fleet.changelog, offset=1)],
        )
        produce(kafka.bootstrap, commits_topic(fleet.application_id), [(STORE.encode(), commit.SerializeToString())])
        fleet.wait_running((servers["node"], servers["node alone"]))
        poll_until(lambda: "metrics served" in controller.log, 30, "the controller to serve its metrics")
        for name in ("router", "router alone"):
            poll_until(partial(is_answered_by_active, servers[name], "k0"), 30, f"{name} to find what was written")
        yield Secured(
            keys, fleet, servers, ports, foreign, keys.issue("all", expired=True), revoked, keys.issue("stranger")
        )


@pytest.mark.feature("port-speaks-tls")
@pytest.mark.feature("identities-certificates-tokens")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server", ["node", "router", "node alone", "router alone"])
def test_each_method_answers_whom_it_should(secured: Secured, server: str, kind: str) -> None:
    wrong = []
    wanted = expected(kind, by_proxy=not server.endswith("alone"))
    for method in methods_of(server, kind):
        with connected(secured.servers[server].target, secured.shown(kind, method)) as channel:
            found = call(channel, method)
        is_right = found.code is wanted
        if wanted is Code.OK:
            is_right = found == (NO_PROGRAM if server == "node alone" else NOT_ANSWERED).get(method.name, ANSWERED)
        if not is_right:
            wrong.append((method.full_name, found))
    assert not wrong, wrong


@pytest.mark.feature("identities-certificates-tokens")
def test_no_method_is_left_out(secured: Secured) -> None:
    for server, process in secured.servers.items():
        with connected(process.target, secured.keys.credentials("operator")) as channel:
            reflection = SIDE[1].methods_by_name["ServerReflectionInfo"]
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            ask = channel.stream_stream(
                f"/{reflection.containing_service.full_name}/{reflection.name}",
                reflection_pb2.ServerReflectionRequest.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )
            listed = next(ask(iter([request]), timeout=10.0)).list_services_response.service
        assert {each.name for each in listed} == {each.full_name for each in services_of(server)}


@pytest.mark.feature("identities-certificates-tokens")
@pytest.mark.parametrize("kind", [each for each in KINDS if each != "other store"])
@pytest.mark.parametrize("server", ["node", "router", "node alone", "router alone", "controller"])
def test_metrics_answer_whom_they_should(secured: Secured, server: str, kind: str) -> None:
    by_proxy = server in {"node", "router"}
    wanted = {Code.OK: 200, Code.UNAUTHENTICATED: 401, Code.PERMISSION_DENIED: 403, Code.UNAVAILABLE: None}
    assert scraped(secured, secured.metrics[server], kind)[0] == wanted[expected(kind, by_proxy=by_proxy)]


@pytest.mark.parametrize(
    ("server", "component"), [("node", "node"), ("router alone", "router"), ("controller", "processor")]
)
def test_denied_scrapes_are_counted(secured: Secured, server: str, component: str) -> None:
    port, counter = secured.metrics[server], f"statehouse_{component}_denials_total"

    def denials(reason: str) -> float:
        status, text = scraped(secured, port, "right")
        assert status == 200
        return parsed(text).value(counter, reason=reason)

    for kind, reason in (("wrong role", "PERMISSION_DENIED"), ("revoked", "UNAUTHENTICATED")):
        before = denials(reason)
        scraped(secured, port, kind)
        assert denials(reason) == before + 1


def scraped(secured: Secured, port: int, kind: str) -> tuple[int | None, str]:
    """Return the status of a scrape and what it says; None if there is no connection."""
    if kind == "plain":
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10.0)
    else:
        context = ssl.create_default_context(cafile=str(secured.keys.authority.path))
        issued = {"wrong CA": secured.foreign, "expired": secured.expired, "revoked": secured.revoked}
        issued |= {"unknown": secured.unknown, "wrong role": secured.keys.issued["reader"]}
        issued |= {"right": secured.keys.issued["operator"]}
        if kind in issued:
            context.load_cert_chain(issued[kind].certificate_path, issued[kind].key_path)
        connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=10.0, context=context)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException):
        return None, ""
    finally:
        connection.close()


@pytest.mark.parametrize("crl", [True, False])
@pytest.mark.parametrize("kind", ["node", "router"])
def test_a_start_without_rules_says_that_everybody_may_do_everything(secured: Secured, kind: str, *, crl: bool) -> None:
    options = secured.keys.options(kind)
    del options["security_rules"]
    if not crl:
        del options["tls_crl"]
    start = secured.fleet.node if kind == "node" else secured.fleet.router
    process = start(f"{kind}-without-{crl}", **options)
    poll_until(lambda: '"listen' in process.log or "router listens" in process.log, 30, "the start")
    warnings = [json.loads(line) for line in process.log.splitlines() if "set security_rules" in line]
    assert [(each["level"], each["who"]) for each in warnings] == [
        ("warning", "whoever has a certificate of a CA in tls_ca")
    ]
    process.stop()
    others = secured.servers.values()
    assert not any("set security_rules" in each.log for each in others)


@pytest.mark.parametrize("server", ["node", "router"])
def test_a_token_stands_for_a_certificate(secured: Secured, server: str) -> None:
    get = QUERY.methods_by_name["Get"]
    target = secured.servers[server].target
    for token, wanted in ((TOKEN, Code.OK), ("another", Code.UNAUTHENTICATED)):
        with connected(target, secured.keys.showing(None, token)) as channel:
            assert call(channel, get).code is wanted
    # A wrong token is not made good by a certificate.
    with connected(target, secured.keys.showing(secured.keys.issued["reader"], "another")) as channel:
        assert call(channel, get).code is Code.UNAUTHENTICATED
    assert TOKEN not in secured.servers[server].log


@pytest.mark.feature("identities-certificates-tokens")
@pytest.mark.parametrize("server", ["node", "node alone"])
def test_only_routers_forward(secured: Secured, server: str) -> None:
    request = query_service_pb2.GetRequest(store=STORE)
    request.key.text = "k0"
    request.forwarding.hops = 1
    outcomes: dict[str, Code | None] = {}
    for identity in ("reader", "router"):
        with connected(secured.servers[server].target, secured.keys.credentials(identity)) as channel:
            ask: Any = channel.unary_unary(
                "/statehouse.v1.QueryService/Get", query_service_pb2.GetRequest.SerializeToString
            )
            try:
                ask(request, timeout=10.0)
                outcomes[identity] = None
            except grpc.RpcError as error:
                outcomes[identity] = error.code()
    assert outcomes == {"reader": Code.PERMISSION_DENIED, "router": None}


def test_a_batch_is_allowed_if_each_of_its_stores_is(secured: Secured) -> None:
    request = query_service_pb2.BatchGetRequest()
    for store in (STORE, "others"):
        request.requests.add(store=store).key.text = "k0"
    for process in secured.servers.values():
        with connected(process.target, secured.keys.credentials("reader")) as channel:
            ask: Any = channel.unary_unary(
                "/statehouse.v1.QueryService/BatchGet", query_service_pb2.BatchGetRequest.SerializeToString
            )
            with pytest.raises(grpc.RpcError) as caught:
                ask(request, timeout=10.0)
            assert caught.value.code() is Code.PERMISSION_DENIED


def test_operators_calls_and_denials_are_audited(secured: Secured) -> None:
    node = secured.servers["node"]
    with connected(node.target, secured.keys.credentials("reader")) as channel:
        assert call(channel, NODE.methods_by_name["Drain"]).code is Code.PERMISSION_DENIED
    denials = [line for line in node.log.splitlines() if "audit" in line and "Drain" in line and "reader" in line]
    assert denials


@pytest.mark.parametrize("server", ["router", "router alone"])
def test_an_operators_calls_are_audited_and_lookups_are_not(secured: Secured, server: str) -> None:
    process = secured.servers[server]
    methods = {"operator": ["ListNodes", "WatchFleet"], "all": ["GetFleet", "LocateKey"]}

    def lines() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in process.log.splitlines() if "operator's call" in line]
        return [each for each in found if each["identity"] in methods]

    before = len(lines())
    for identity, names in methods.items():
        with connected(process.target, secured.keys.credentials(identity)) as channel:
            for name in names:
                assert call(channel, FLEET.methods_by_name[name]) == ANSWERED
    poll_until(lambda: len(lines()) >= before + 3, 10, "the lines")
    assert [(each["identity"], each["method"].rpartition("/")[2]) for each in lines()[before:]] == [
        ("operator", "ListNodes"),
        ("operator", "WatchFleet"),
        ("all", "GetFleet"),
    ]


@pytest.mark.parametrize("name", ["n3", "n4"])
def test_an_operator_drains(secured: Secured, name: str) -> None:
    """Last, on nodes of its own."""
    own = {"tls_callers": "optional"} if name == "n3" else {"proxy": "none"}
    node = secured.fleet.node(name, drain_timeout_ms=100, **secured.keys.options("node", **own))
    with connected(node.target, secured.keys.credentials("operator")) as channel:
        grpc.channel_ready_future(channel).result(30.0)
        assert call(channel, NODE.methods_by_name["Drain"]) == ANSWERED
    assert node.wait() == 0
    assert any("audit" in line and "operator" in line for line in node.log.splitlines())
