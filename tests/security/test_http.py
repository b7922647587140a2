"""Each HTTP route, asked by callers of every kind; routes come from the application's own list."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from starlette.requests import Request

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import commits_topic
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.settings import WebSettings
from statehouse.web.api.operations import OPERATIONS
from statehouse.web.app import build_app
from statehouse.web.gateway import CERTIFICATE, CallerRefused, Gateway
from statehouse.web.pages.pages import LIVE_PAGES
from tests.support.certificates import Authority, Issued
from tests.support.fleet import STORE, Fleet, ServerProcess, is_answered_by_active
from tests.support.kafka import produce
from tests.support.polling import poll_until
from tests.support.secured import RULES, TOKEN, Keys


class Row(NamedTuple):
    """A route. `suited`: an identity that may ask it, "" if everybody may; `unsuited`: one that may not."""

    suited: str
    unsuited: str = ""
    is_about_a_store: bool = False


READERS: Final = Row("reader", "operator", is_about_a_store=True)
OPERATORS: Final = Row("operator", "reader")
OPEN: Final = Row("")
ROWS: Final[dict[tuple[str, str], Row]] = {
    ("GET", "/healthz"): OPEN,
    ("GET", "/metrics"): OPERATORS,
    ("GET", "/v1"): OPEN,
    ("GET", "/v1/openapi.json"): OPEN,
    **{(each.method, each.path): OPERATORS if each.call == "ListStores" else READERS for each in OPERATIONS},
    ("GET", "/static"): OPEN,
    **{
        ("GET", path): OPERATORS
        for page in LIVE_PAGES.values()
        for path in (f"/{page.path}", f"/{page.name}.json", f"/live/{page.name}")
    },
    ("GET", "/nodes/{node}"): OPERATORS,
    ("GET", "/live/nodes/{node}"): OPERATORS,
    ("POST", "/nodes/{node}/drain"): OPERATORS,
    ("GET", "/lookup"): READERS,
    ("GET", "/lookup.json"): OPERATORS,
    ("GET", "/stores/{store}"): READERS,
    ("GET", "/live/stores/{store}/watch"): READERS,
}
KINDS: Final = (
    "plain",
    "nothing",
    "wrong CA",
    "expired",
    "revoked",
    "unknown",
    "wrong token",
    "two tokens",
    "wrong role",
    "other store",
    "right",
    "right token",
)
# What a key-value store can't answer to callers that may ask.
_OF_OTHER_KINDS: Final = re.compile(r"/(windows|sessions|history|queries/\{query\})$")
_VALUES: Final = {"{store}": STORE, "{key}": "k0", "{query}": "top", "{node}": "n1"}
_QUERIES: Final = {"/await-input": "?record=scores:0:0", "/static": "/page.css", "/lookup": f"?store={STORE}&key=k0"}
# What stands in the page when a form lacks the token of a page.
_NO_FORM: Final = "This form is no longer valid"


@dataclass(frozen=True)
class SecuredHttp:
    """One node, and one router whose web process has the same rules."""

    keys: Keys
    fleet: Fleet
    node: ServerProcess
    router: ServerProcess
    port: int
    shown: dict[str, Issued]

    def ask(self, method: str, path: str, kind: str, row: Row) -> tuple[int | None, str]:
        """Return the status and the reason; None if there is no connection."""
        target = path
        for name, value in _VALUES.items():
            target = target.replace(name, value)
        target += next((query for end, query in _QUERIES.items() if path.endswith(end)), "")
        connection = self._connection(kind, row)
        body = {"keys": ["k0"]} if path.endswith("/batch") else {}
        try:
            connection.putrequest(method, target)
            for each in self._tokens(kind):
                connection.putheader("Authorization", f"Bearer {each}")
            data = json.dumps(body).encode() if method == "POST" else b""
            if data:
                connection.putheader("Content-Type", "application/json")
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data or None)
            answer = connection.getresponse()
            if answer.headers.get_content_type() == "text/event-stream":
                return answer.status, ""
            found = answer.read()
            if answer.headers.get_content_type() == "application/problem+json":
                return answer.status, json.loads(found)["reason"]
            return answer.status, _NO_FORM if _NO_FORM in found.decode() else ""
        except (OSError, http.client.HTTPException):
            return None, ""
        finally:
            connection.close()

    def text(self, path: str, kind: str, row: Row) -> str:
        """Return the answer's body."""
        connection = self._connection(kind, row)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def _connection(self, kind: str, row: Row) -> http.client.HTTPConnection:
        if kind == "plain":
            return http.client.HTTPConnection(LOOPBACK, self.port, timeout=30.0)
        context = ssl.create_default_context(cafile=str(self.keys.authority.path))
        identity = {"wrong role": row.unsuited, "other store": "other", "right": row.suited}.get(kind)
        certificate = self.shown.get(kind) or (self.keys.issued[identity] if identity else None)
        if certificate is not None:
            context.load_cert_chain(certificate.certificate_path, certificate.key_path)
        return http.client.HTTPSConnection(LOOPBACK, self.port, timeout=30.0, context=context)

    @staticmethod
    def _tokens(kind: str) -> list[str]:
        return {"wrong token": ["nobodys"], "two tokens": [TOKEN, TOKEN], "right token": [TOKEN]}.get(kind, [])


def expected(kind: str, row: Row) -> set[int | None]:
    """Return the statuses that a caller of this kind may get."""
    if kind in {"plain", "wrong CA", "expired"}:
        return {None}
    if row is OPEN:
        return {200}
    if kind in {"nothing", "revoked", "unknown", "wrong token", "two tokens"}:
        return {401}
    if kind in {"wrong role", "other store"}:
        return {403}
    return {200}


@pytest.fixture(scope="module")
def secured(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredHttp]:
    folder = tmp_path_factory.mktemp("secured-http")
    keys = Keys(folder)
    revoked = keys.issue("all")
    keys.revoke(revoked)
    shown = {
        "wrong CA": Authority(folder, "foreign").issue(("localhost",), ("statehouse://tests/all",)),
        "expired": keys.issue("all", expired=True),
        "revoked": revoked,
        "unknown": keys.issue("stranger"),
    }
    with Fleet(kafka.bootstrap, f"http-{free_port()}", folder, partitions=1) as fleet:
        fleet.credentials = keys.credentials("all")
        port, optional = free_port(), {"tls_callers": "optional"}
        node = fleet.node("n1", **keys.options("node", **optional))
        router = fleet.router("r1", **keys.options("router", http_port=port, **optional))
        fleet.assign(TaskAssignment("n1"))
        fleet.put({"k0": "v0"})
        commit = commits_pb2.Commit(
            store=STORE,
            query_id="q1",
            source_ends=[commits_pb2.TopicOffset(topic="scores", offset=1)],
            changelog_ends=[commits_pb2.TopicOffset(topic=fleet.changelog, offset=1)],
        )
        produce(kafka.bootstrap, commits_topic(fleet.application_id), [(STORE.encode(), commit.SerializeToString())])
        poll_until(partial(is_answered_by_active, router, "k0"), 60, "the router to find what was written")
        found = SecuredHttp(keys, fleet, node, router, port, shown)
        poll_until(
            lambda: found.ask("GET", "/nodes.json", "right", OPERATORS)[0] == 200, 60, "the page to know the fleet"
        )
        yield found


@pytest.mark.feature("http-route-identities")
async def test_no_route_is_left_out() -> None:
    app = build_app(Gateway(WebSettings()))
    listed = {
        (method, route.path)
        for route in app.routes
        for method in (getattr(route, "methods", None) or {"GET"}) - {"HEAD"}  # type: ignore[attr-defined]
    }
    assert listed == set(ROWS)


@pytest.mark.feature("http-route-identities")
@pytest.mark.parametrize("kind", KINDS)
def test_each_route_answers_whom_it_should(secured: SecuredHttp, kind: str) -> None:
    wrong: list[Any] = []
    for (method, path), row in ROWS.items():
        if (kind == "other store" and not row.is_about_a_store) or (kind == "right token" and row is OPERATORS):
            continue
        status, reason = secured.ask(method, path, kind, row)
        is_right = status in expected(kind, row)
        if status == 400 and _OF_OTHER_KINDS.search(path) and kind in {"right", "right token"}:
            is_right = reason == "WRONG_STORE_KIND"
        if path.endswith("/drain"):
            is_form_refused = (status, reason) == (403, _NO_FORM)
            is_right = is_form_refused if kind == "right" else is_right and not is_form_refused
        if not is_right:
            wrong.append((method, path, status, reason))
    assert not wrong, wrong


def test_who_may_not_see_the_fleet_learns_no_address_of_a_node(secured: SecuredHttp) -> None:
    """In bodies, headers, pages and events; and who may see it does."""

    def told(path: str, row: Row) -> str:
        target = path
        for name, value in _VALUES.items():
            target = target.replace(name, value)
        target += next((query for end, query in _QUERIES.items() if path.endswith(end)), "")
        connection = secured._connection("right", row)
        try:
            connection.request("GET", target)
            answer = connection.getresponse()
            headers = str(answer.headers)
            if answer.headers.get_content_type() != "text/event-stream":
                return headers + answer.read().decode()
            text = ""
            while "data:" not in text:  # the page's own has no more than the table
                text += answer.readline().decode()
            return headers + text
        finally:
            connection.close()

    readers = [path for (method, path), row in ROWS.items() if row is READERS and method == "GET"]
    address, port = f"{LOOPBACK}:{secured.node.port}", f"{secured.node.port}"
    quiet = {"/live/stores/{store}/watch"}  # its first event comes with the first change
    seen = {path: told(path, READERS) for path in readers if path not in quiet}
    assert not [path for path, text in seen.items() if address in text or port in text]
    everything = Row("all")
    for path in ("/v1/stores/{store}/keys/{key}", "/v1/stores/{store}/keys/{key}/explain"):
        assert port in told(path, everything), path


def test_denials_are_in_the_audit_log_without_tokens(secured: SecuredHttp) -> None:
    secured.ask("GET", "/v1/stores/{store}/keys/{key}", "wrong token", READERS)
    secured.ask("GET", "/v1/stores/{store}/keys/{key}", "wrong role", READERS)

    poll_until(lambda: "operator lacks the right lookup" in secured.router.log, 10, "the denial to be logged")
    assert "/statehouse.v1.QueryService/Get" in secured.router.log
    assert "nobodys" not in secured.router.log
    assert TOKEN not in secured.router.log


@pytest.mark.feature("denials-over-http")
def test_denials_are_counted(secured: SecuredHttp) -> None:
    def denials() -> dict[str, float]:
        metrics = secured.text("/metrics", "right", OPERATORS)
        found = re.findall(r'^statehouse_router_denials_total{reason="(\w+)"} (\S+)$', metrics, re.MULTILINE)
        return {reason: float(count) for reason, count in found}

    before = denials()
    secured.ask("GET", "/v1/stores/{store}/keys/{key}", "wrong token", READERS)
    secured.ask("GET", "/nodes.json", "wrong role", OPERATORS)
    secured.ask("GET", "/metrics", "wrong role", OPERATORS)
    after = denials()
    assert after["UNAUTHENTICATED"] == before.get("UNAUTHENTICATED", 0) + 1
    assert after["PERMISSION_DENIED"] == before.get("PERMISSION_DENIED", 0) + 2


def test_who_loses_a_right_loses_the_watch_that_is_open(secured: SecuredHttp) -> None:
    connection = secured._connection("right", READERS)
    connection.request("GET", f"/v1/stores/{STORE}/watch")
    answer = connection.getresponse()
    assert answer.status == 200
    rules = secured.keys.rules.read_text()
    try:
        secured.keys.rules.write_text(rules.replace("roles = ['reader']\nstores = ['counts']", "roles = ['health']", 1))
        told = b""
        while b"event: problem" not in told:
            line = answer.readline()
            assert line, told
            told += line
        assert b"PERMISSION_DENIED" in answer.readline()
    finally:
        secured.keys.rules.write_text(rules)
        connection.close()
    poll_until(
        lambda: secured.ask("GET", "/v1/stores/{store}/keys/{key}", "right", READERS)[0] == 200, 20, "the rules before"
    )


@pytest.mark.parametrize("kind", ["nothing", "revoked", "wrong token", "wrong role", "other store"])
def test_who_may_not_ask_is_told_before_the_body_is_waited_for(secured: SecuredHttp, kind: str) -> None:
    for (method, path), row in ROWS.items():
        if method == "GET" or (kind == "other store" and not row.is_about_a_store):
            continue
        connection = secured._connection(kind, row)
        connection.timeout = 5.0  # half of what a body may take
        target = path.replace("{store}", STORE).replace("{key}", "k0").replace("{query}", "top").replace("{node}", "n1")
        connection.putrequest(method, target)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "100")
        for each in secured._tokens(kind):
            connection.putheader("Authorization", f"Bearer {each}")
        connection.endheaders()
        assert connection.getresponse().status in expected(kind, row), path
        connection.close()


def request_of(certificate: Issued) -> Request:
    """Return an HTTP request as the server makes it of a caller with this certificate."""
    state = {CERTIFICATE: certificate.der}
    return Request({"type": "http", "method": "POST", "path": "/", "headers": [], "state": state, "client": None})


@pytest.mark.feature("http-route-identities")
def test_a_node_judges_and_logs_whoever_drains_it_over_http(secured: SecuredHttp) -> None:
    """The last test: the node leaves."""
    given = secured.keys.options("router", tls_callers="optional")
    node = f"{LOOPBACK}:{secured.node.port}"

    async def drained_by(name: str) -> list[str]:
        gateway = Gateway(WebSettings(router=secured.router.target, **given))
        try:
            return await gateway.drain(request_of(secured.keys.issued[name]), node)
        finally:
            await gateway.close()

    def is_allowed() -> bool:
        try:
            return asyncio.run(drained_by("operator")) == ["0_0"]
        except LookupFailure:
            return False

    with pytest.raises(CallerRefused, match="reader lacks the right drain"):
        asyncio.run(drained_by("reader"))
    with pytest.raises(LookupFailure, match=r'router may only read for others: .* also = \["act-for"\]'):
        asyncio.run(drained_by("operator"))
    rules = {**RULES, "router": {"roles": ["router"], "also": ["act-for"]}}
    secured.keys.write_rules(rules)
    poll_until(is_allowed, 20, "the right to act for others")
    poll_until(lambda: "operator's call" in secured.node.log, 20, "the node's audit log to have the drain")
    (line,) = [each for each in secured.node.log.splitlines() if "operator's call" in each and "Drain" in each]
    assert '"forwarder": "router", "identity": "operator"' in line
    denied = [each for each in secured.node.log.splitlines() if '"denied"' in each and "Drain" in each]
    assert all('"identity": "router"' in each and "may only read for others" in each for each in denied)
    assert denied
