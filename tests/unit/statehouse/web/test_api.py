"""The HTTP API over a real socket, in front of a router that answers from a dictionary."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import httpx
import pytest

from statehouse.contract.moments import MomentToken
from statehouse.contract.watch_marks import token_of
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fake_router import HOST, STAMP, UNREACHABLE, FakeRouter, fake_router
from tests.support.polling import poll_until
from tests.support.web import EventReader, web_server

BOARD = b'{"z":1.50,"a":[9007199254740993,{"b":null}],"text":"caf\xc3\xa9"}'


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[FakeRouter, httpx.Client]]:
    with (
        fake_router() as router,
        web_server(router.target, max_timeout_ms=20_000, http_max_watches=2, http_max_watches_per_address=2) as address,
        httpx.Client(base_url=f"http://{address}/v1/stores", timeout=30.0) as client,
    ):
        yield router, client


@pytest.fixture
def router(served: tuple[FakeRouter, httpx.Client]) -> FakeRouter:
    fake = served[0]
    fake.values = {"1": BOARD, "a/b": b"[2]", "caf\u00e9": b'"3"'}
    fake.failure, fake.requests, fake.updates, fake.ending, fake.shows = None, [], [], None, None
    return fake


@pytest.fixture
def api(served: tuple[FakeRouter, httpx.Client], router: FakeRouter) -> httpx.Client:
    return served[1]


def root(api: httpx.Client) -> str:
    return str(api.base_url).rstrip("/")


@contextmanager
def watching(url: str, **headers: str) -> Iterator[EventReader]:
    """Open a watch as soon as there is a place: the server learns a moment later that an earlier reader has gone."""
    with ExitStack() as held:

        def opened() -> EventReader | None:
            reader = held.enter_context(EventReader(url, headers=headers))
            return None if reader.response.status_code == http.HTTPStatus.SERVICE_UNAVAILABLE else reader

        yield poll_until(opened, 10.0, "a place for a watch")


# What the page asks for on its own, and the list of stores.
_OF_THE_FLEET = {"GetFleetRequest", "ListStoresRequest"}


def lookups(router: FakeRouter) -> list[Any]:
    return [each for each in router.requests if each.DESCRIPTOR.name not in _OF_THE_FLEET]


def asked(router: FakeRouter) -> Any:
    """Return the last request of a store."""
    return lookups(router)[-1]


def test_a_value_comes_with_who_answered_in_body_and_headers(api: httpx.Client):
    answer = api.get("/boards/keys/1")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert found["found"] is True
    assert found["key"] == "1"
    assert (found["partition"], found["epoch"], found["role"]) == (3, 5, "ACTIVE")
    assert (found["position"], found["lag"], found["staleness_ms"]) == (12, 0, 40)
    assert (found["processor_age_ms"], found["input_backlog"], found["since_ms"]) == (700, 4_980, None)
    assert found["host"] == {"instance_id": "node-a", "host": "127.0.0.1", "port": 7101}
    headers = {name: answer.headers.get(f"statehouse-{name}") for name in ("position", "lag", "staleness-ms", "host")}
    assert headers == {"position": "12", "lag": "0", "staleness-ms": "40", "host": "node-a"}
    assert answer.headers["statehouse-token"] == found["token"]


@pytest.mark.feature("stores-over-http")
def test_a_stored_document_is_copied_byte_for_byte(api: httpx.Client):
    assert b'"value":' + BOARD in api.get("/boards/keys/1").content
    assert b'"value":' + BOARD in api.get("/boards/entries").content


def test_a_null_is_found(api: httpx.Client, router: FakeRouter):
    router.values["1"] = b"null"

    answer = api.get("/boards/keys/1")

    assert answer.status_code == 200
    assert answer.json()["value"] is None


@pytest.mark.parametrize("path", ["a%2Fb", "caf%C3%A9", "%31"])
def test_a_key_is_decoded_by_itself(api: httpx.Client, path: str):
    assert api.get(f"/boards/keys/{path}").status_code == 200


def test_bytes_come_and_go_in_base64(api: httpx.Client, router: FakeRouter):
    key = base64.urlsafe_b64encode(b"a/b").decode()

    answer = api.get(f"/boards/keys/{key}", params={"base64_keys": "true", "raw": "true"})

    assert answer.json()["value"] == {"base64": base64.urlsafe_b64encode(b"[2]").decode()}
    assert asked(router).key.raw == b"a/b"


def test_an_absent_key_is_a_proof(api: httpx.Client):
    answer = api.get("/boards/keys/9")

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert (found["found"], found["reason"], found["position"], found["partition"]) == (False, "NO_SUCH_KEY", 12, 3)
    assert answer.headers["statehouse-position"] == "12"


def test_an_unknown_store_is_no_proof(api: httpx.Client):
    answer = api.get("/other/keys/1")

    assert answer.status_code == 404
    assert answer.json()["reason"] == "UNKNOWN_STORE"
    assert "found" not in answer.json()
    assert "statehouse-position" not in answer.headers


@pytest.mark.feature("stores-over-http")
def test_the_root_says_what_this_is_and_where_to_go_on(api: httpx.Client):
    said = httpx.get(root(api).removesuffix("/stores"))

    assert said.status_code == 200
    assert said.json()["name"] == "Statehouse"
    for link in ("openapi", "stores"):
        assert api.get(httpx.URL(root(api)).copy_with(path=said.json()[link])).status_code == 200


def test_an_unchanged_value_is_not_sent_again(api: httpx.Client, router: FakeRouter):
    first = api.get("/boards/keys/1")
    tag = first.headers["etag"]

    assert tag.startswith('W/"')
    again = api.get("/boards/keys/1", headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["statehouse-position"] == "12"
    router.values["1"] = b"{}"
    assert api.get("/boards/keys/1", headers={"If-None-Match": tag}).status_code == 200


def test_head_has_the_headers_only(api: httpx.Client):
    answer = api.head("/boards/keys/1")

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["etag"] == api.get("/boards/keys/1").headers["etag"]


def test_bounds_reach_the_router(api: httpx.Client, router: FakeRouter):
    token = api.get("/boards/keys/1").json()["token"]
    api.get(
        "/boards/keys/1",
        params=[
            ("active_only", "true"),
            ("max_lag", "7"),
            ("max_staleness_ms", "50"),
            ("max_processor_age_ms", "60"),
            ("max_input_backlog", "8"),
            ("max_value_age_ms", "9"),
            ("at_least", token),
            ("at_least", "boards:1:5"),
        ],
    )

    bounds = asked(router).freshness
    assert (bounds.active_only, bounds.max_lag, bounds.max_staleness_ms) == (True, 7, 50)
    assert (bounds.max_processor_age_ms, bounds.max_input_backlog, bounds.max_value_age_ms) == (60, 8, 9)
    refused = api.get("/boards/keys/1", params={"max_value_age_ms": "-1"})
    assert (refused.status_code, refused.json()["metadata"]["parameter"]) == (400, "max_value_age_ms")
    assert {each.partition: each.position for each in bounds.at_least.positions} == {1: 5, 3: 12}


OF_KEYS = ("keys/1", "keys/1/windows", "keys/1/sessions", "keys/1/history")
OF_STORES = ("entries", "windows", "sessions", "count")


@pytest.mark.parametrize("path", [*OF_KEYS, *OF_STORES])
def test_a_read_is_of_the_moment_that_is_asked_for(api: httpx.Client, router: FakeRouter, path: str):
    router.shows = lambda bound: types_pb2.Moment(query_id="q", batch_id=bound.exactly("q") or 7)
    newest = api.get(f"/boards/{path}", params={"moment": "newest"}).json()

    assert MomentToken.parse(newest["moment"]) == MomentToken({"q": 7})
    assert asked(router).freshness.moment.newest

    older = str(MomentToken({"q": 5}))
    found = api.get(f"/boards/{path}", params={"moment": older})
    stamps = found.json().get("replicas", [found.json().get("replica", found.json())])
    assert found.json()["moment"] == older
    assert [each["moment"] for each in stamps] == [older]
    if path in OF_KEYS:
        assert found.headers["statehouse-moment"] == older

    api.get(f"/boards/{path}", params={"moment_at_least": older})
    assert MomentToken.from_proto(asked(router).freshness.moment.at_least) == MomentToken({"q": 5})

    plain = api.get(f"/boards/{path}")
    assert plain.json()["moment"] is None
    assert "statehouse-moment" not in plain.headers


def test_a_batch_is_of_the_moment_that_is_asked_for(api: httpx.Client, router: FakeRouter):
    router.shows = lambda _: types_pb2.Moment(query_id="q", batch_id=7)
    body = {"keys": ["1", "nobody"]}
    found = api.post("/boards/batch", params={"moment": "newest"}, json=body).json()

    token = str(MomentToken({"q": 7}))
    assert found["moment"] == token
    assert [each["moment"] for each in found["results"]] == [token, token]

    assert api.post("/boards/batch", json=body).json()["moment"] is None


@pytest.mark.parametrize("path", [*OF_KEYS, *OF_STORES, "keys/1/queries/best"])
def test_a_router_of_an_earlier_version_shows_no_moment(api: httpx.Client, router: FakeRouter, path: str):
    params = {"moment": "newest"}
    url = f"/boards/{path}"
    answer = api.post(url, params=params, json={}) if "queries" in path else api.get(url, params=params)

    assert (answer.status_code, answer.json()["reason"]) == (503, "MOMENTS_UNAVAILABLE")

    (found,) = api.post("/boards/batch", params=params, json={"keys": ["1"]}).json()["results"]
    assert found["reason"] == "MOMENTS_UNAVAILABLE"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("moment=rubbish", "moment"),
        ("moment=", "moment"),
        ("moment_at_least=newest", "moment"),
        (f"moment={MomentToken({'q': 5})}&moment_at_least={MomentToken({'q': 5})}", "moment"),
        ("max_lag=-1", "max_lag"),
        ("max_lag=1e3", "max_lag"),
        ("max_lag=", "max_lag"),
        ("max_lag=1&max_lag=2", "max_lag"),
        ("active_only=yes", "active_only"),
        ("at_least=rubbish", "at_least"),
        ("at_least=boards:1:99999999999999999999", "at_least"),
        ("timeout_ms=0", "timeout_ms"),
        ("max_lags=1", "max_lags"),
        ("as_of_ms=now", "as_of_ms"),
    ],
)
def test_a_wrong_parameter_is_named(api: httpx.Client, router: FakeRouter, query: str, names: str):
    answer = api.get(f"/boards/keys/1?{query}")

    assert answer.status_code == 400
    found = answer.json()
    assert (found["reason"], found["metadata"]["parameter"]) == ("INVALID_REQUEST", names)
    assert names in found["detail"]
    assert not lookups(router)


@pytest.mark.parametrize("url", ["/boards/keys/%FF", "/boards/keys/1?max_lag=%FF", "/boards/entries?from=%FF"])
def test_what_is_no_text_is_refused(api: httpx.Client, url: str):
    assert api.get(url).status_code == 400


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/boards/keys/%", "INVALID_KEY"),
        ("/boards/keys/a%zz", "INVALID_KEY"),
        ("/boards/keys/%u0031", "INVALID_KEY"),
        ("/boards/keys/%2", "INVALID_KEY"),
        ("/boards/entries?from=%zz", "INVALID_REQUEST"),
        ("/boards/entries?prefix=%", "INVALID_REQUEST"),
        ("/%zz/entries", "INVALID_REQUEST"),
    ],
)
def test_an_escape_that_is_none_is_not_taken_as_it_stands(api: httpx.Client, path: str, reason: str):
    # httpx would escape the percent sign.
    connection = http.client.HTTPConnection(api.base_url.host, api.base_url.port or 0, timeout=30)
    with closing(connection):
        connection.request("GET", f"/v1/stores{path}")
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["reason"]) == (400, reason)


@pytest.mark.parametrize(("key", "status"), [("MQ==", 200), ("MQ", 200), ("MR", 400), ("MQ=", 400), ("MQ===", 400)])
def test_a_key_has_one_base64(api: httpx.Client, key: str, status: int):
    assert api.get(f"/boards/keys/{key}", params={"base64_keys": "true"}).status_code == status


@pytest.mark.feature("stores-over-http")
@pytest.mark.parametrize(
    ("reason", "status", "retry"),
    [
        (Reason.NO_REPLICA_AVAILABLE, 503, "1"),
        (Reason.OVERLOADED, 503, "1"),
        (Reason.DEADLINE_EXCEEDED, 504, None),
        (Reason.INVALID_KEY, 400, None),
        (Reason.VALUE_UNDECODABLE, 500, None),
        (Reason.PERMISSION_DENIED, 500, None),
    ],
)
def test_a_failure_is_a_problem(api: httpx.Client, router: FakeRouter, reason: Reason, status: int, retry: str | None):
    api.get("/boards/keys/1")
    router.failure = LookupFailure(reason, "because", {"wanted": "9"}, candidates=[UNREACHABLE])

    answer = api.get("/boards/keys/1")

    assert (answer.status_code, answer.headers.get("retry-after")) == (status, retry)
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert (found["status"], found["reason"], found["detail"]) == (status, reason.name, "because")
    assert found["metadata"] == {"wanted": "9"}
    assert found["candidates"] == [{"instance_id": "node-a", "reason": "UNREACHABLE", "detail": "connection refused"}]
    assert found["remedy"]


def test_a_value_that_is_no_json_fails_alone_and_not_in_a_page(api: httpx.Client, router: FakeRouter):
    router.values = {"1": b"\xff", "2": b"NaN", "3": b"3"}

    assert api.get("/boards/keys/1").json()["reason"] == "VALUE_UNDECODABLE"
    assert api.get("/boards/keys/2").status_code == 500
    assert [each["value"] for each in api.get("/boards/entries").json()["entries"]] == [
        {"base64": "_w=="},
        {"base64": "TmFO"},
        3,
    ]


def test_pages_follow_each_other_by_token_and_link(api: httpx.Client):
    first = api.get("/boards/entries", params={"page_size": 2})
    found = first.json()
    assert [each["key"] for each in found["entries"]] == ["1", "a/b"]
    assert found["replicas"][0]["partition"] == 3

    second = api.get(first.links["next"]["url"].removeprefix("/v1/stores"))
    assert [each["key"] for each in second.json()["entries"]] == ["caf\u00e9"]
    assert second.json()["next_page_token"] is None
    assert "next" not in second.links


def test_ranges_prefixes_and_both(api: httpx.Client):
    def keys(**params: str) -> list[str]:
        return [each["key"] for each in api.get("/boards/entries", params=params).json()["entries"]]

    assert keys(**{"from": "a", "to": "b"}) == ["a/b"]
    assert keys(prefix="ca") == ["caf\u00e9"]
    assert keys(reverse="true") == ["caf\u00e9", "a/b", "1"]
    assert api.get("/boards/entries", params={"prefix": "a", "to": "b"}).status_code == 400
    for path in ("/boards/entries", "/boards/windows", "/boards/sessions"):
        refused = api.get(path, params={"from": "b", "to": "a"})
        assert (refused.status_code, refused.json()["reason"]) == (400, "INVALID_REQUEST")
        assert "the first is after the last" in refused.json()["detail"]


def test_a_batch_has_an_outcome_for_each_key(api: httpx.Client, router: FakeRouter):
    answer = api.post("/boards/batch", json={"keys": ["1", "nobody", "a/b"]})

    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [(each["status"], each["key"], each.get("found")) for each in results] == [
        (200, "1", True),
        (404, "nobody", False),
        (200, "a/b", True),
    ]
    assert len(asked(router).requests) == 3


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"keys":"1"}', "application/json", 400),
        (b'{"keys":[1]}', "application/json", 400),
        (b'{"keys":[],"more":1}', "application/json", 400),
        (b'{"keys":["\\ud800"]}', "application/json", 400),
        (b'{"keys":[]}', "text/plain", 415),
        (b'{"keys":["' + b"1" * 1_100_000 + b'"]}', "application/json", 413),
    ],
)
def test_a_wrong_body_is_refused(api: httpx.Client, content: bytes, content_type: str, status: int):
    answer = api.post("/boards/batch", content=content, headers={"Content-Type": content_type})

    assert answer.status_code == status, answer.text
    assert answer.json()["reason"] in {"INVALID_REQUEST", "INVALID_KEY"}


def test_windows_sessions_and_history_of_a_key(api: httpx.Client):
    windows = api.get("/boards/keys/1/windows", params={"from_ms": 1_000}).json()
    assert [(each["start_ms"], each["end_ms"]) for each in windows["windows"]] == [(1_000, 2_000), (2_000, 3_000)]
    sessions = api.get("/boards/keys/1/sessions", params={"reverse": "true", "page_size": 1}).json()
    assert [each["start_ms"] for each in sessions["sessions"]] == [2_000]
    assert int(sessions["next_page_token"]) == 1
    history = api.get("/boards/keys/1/history").json()
    assert [each["valid_to_ms"] for each in history["versions"]] == [1_000, 2_000, None]
    assert history["history_start_ms"] == 0
    assert history["replica"]["position"] == 12


def test_windows_and_sessions_of_a_range(api: httpx.Client):
    windows = api.get("/boards/windows", params={"prefix": "1"}).json()["windows"]
    assert [(each["key"], each["start_ms"], each["sequence"]) for each in windows] == [("1", 0, 0), ("1", 1_000, 0)]
    sessions = api.get("/boards/sessions", params={"to_ms": 0, "prefix": "1"}).json()["sessions"]
    assert [(each["key"], each["end_ms"]) for each in sessions] == [("1", 500)]


def test_a_value_as_of_a_time(api: httpx.Client):
    assert api.get("/boards/keys/1", params={"as_of_ms": 1_500}).json()["timestamp_ms"] == 1_000
    assert api.get("/boards/keys/1", params={"as_of_ms": 999}).status_code == 404


def test_count_query_locate_explain_and_inputs(api: httpx.Client, router: FakeRouter):
    assert api.get("/boards/count", params={"exact": "true"}).json()["count"] == 3
    asked_store = api.post("/boards/keys/1/queries/top", json={"n": 3}).json()
    assert asked_store["result"] == {"query": "top", "n": 3}
    large = api.post(
        "/boards/keys/1/queries/top", content=b'{"n":9007199254740993}', headers={"Content-Type": "application/json"}
    )
    assert b'"n":9007199254740993' in large.content
    location = api.get("/boards/keys/1/locate").json()
    assert (location["active"]["instance_id"], location["candidates"][0]["reason"]) == ("node-a", "UNREACHABLE")
    told = api.get("/boards/keys/1/explain")
    assert b'"value":' + BOARD in told.content
    assert [each["outcome"] for each in told.json()["attempts"]] == ["FAILED", "ANSWERED"]
    assert api.get("/boards/keys/9/explain").json()["failure"]["reason"] == "NO_REPLICA_AVAILABLE"
    token = api.get("/boards/await-input", params={"record": "scores:0:5"}).json()["token"]
    assert asked(router).records[0].offset == 5
    assert api.get("/boards/keys/1", params={"at_least": token}).status_code == 200
    assert api.get("/boards/await-input", params={"record": "scores"}).status_code == 400


def test_stores(api: httpx.Client):
    listed = httpx.get(root(api)).json()
    assert listed["epoch"] == 5
    assert listed["stores"] == [api.get("/boards").json()]
    assert listed["stores"][0]["value_serde"] == "json"
    assert api.get("/other").json()["reason"] == "UNKNOWN_STORE"


def test_paths_and_methods_that_are_not_there(api: httpx.Client):
    assert api.get("/boards/nothing").json()["reason"] == "NO_SUCH_PATH"
    refused = api.post("/boards/keys/1")
    assert (refused.status_code, refused.json()["reason"]) == (405, "METHOD_NOT_ALLOWED")
    assert "GET" in refused.headers["allow"]


def update(position: int | None, *events: tuple[str, bytes | None], **fields: Any) -> query_service_pb2.WatchResponse:
    return query_service_pb2.WatchResponse(
        replica=STAMP,
        position=position,
        topic_id="" if position is None else "topic",
        events=[
            query_service_pb2.WatchEvent(
                key=types_pb2.Key(raw=key.encode()),
                value=None if value is None else types_pb2.Value(raw=value),
                offset=None if fields.get("current") else (position or 1) - 1,
            )
            for key, value in events
        ],
        **fields,
    )


def test_a_watch_is_events_with_positions(api: httpx.Client, router: FakeRouter):
    router.updates = [
        update(None, ("1", b"1"), current=True, begins=True),
        update(4, ("2", b'{"a":\n1.0}'), current=True),
        update(6, ("1", None)),
        update(9, ("3", b"3"), current=True, begins=True, gap=True),
    ]
    with watching(f"{root(api)}/boards/watch") as reader:
        assert reader.response.headers["content-type"].startswith("text/event-stream")
        events = reader.take(5)

    assert [each.name for each in events] == ["current", "current", "change", "gap", "current"]
    assert [each.at for each in events] == ["", "topic/3:4", "topic/3:6", "", "topic/3:9"]
    assert events[1].body["changes"][0]["value"] == {"a": 1.0}
    change = events[2].body["changes"][0]
    assert (change["key"], change["deleted"], change["offset"]) == ("1", True, 5)
    assert events[3].body == {"partition": 3}
    assert events[0].body["begins"] is True


def test_a_watch_by_moment_marks_batches_and_goes_on_after_one(api: httpx.Client, router: FakeRouter):
    moment = types_pb2.Moment(query_id="q", batch_id=7)
    position = query_service_pb2.WatchPosition(partition=3, position=6, topic_id="topic", after=moment)
    mark = query_service_pb2.WatchMark(moment=moment, positions=[position])
    router.shows = lambda _: moment
    router.updates = [
        update(6, ("1", b"1"), moment=moment, moment_ends=True),
        query_service_pb2.WatchResponse(mark=mark),
        update(7, ("2", b"2"), moment=types_pb2.Moment(query_id="q", batch_id=8)),
    ]
    url = f"{root(api)}/boards/watch?by_moment=true"
    with watching(url) as reader:
        events = reader.take(3)
    assert [(each.name, each.at) for each in events] == [("change", ""), ("moment", token_of(mark)), ("change", "")]
    assert events[1].body == {"moment": str(MomentToken({"q": 7})), "batch_id": 7}
    with watching(url, **{"Last-Event-ID": events[1].at}) as reader:
        reader.take(1)
    resumed = asked(router)
    assert resumed.mark_moments
    assert list(resumed.resume) == [position]
    assert list(resumed.freshness.moment.at_least.moments) == [moment]
    assert api.get("/boards/watch", params={"by_moment": "true", "last_event_id": "topic/3:6"}).status_code == 400
    router.shows = None
    refused = api.get("/boards/watch", params={"by_moment": "true"})
    assert refused.json()["reason"] == "MOMENTS_UNAVAILABLE", "an older router knows nothing of it"


def test_a_watch_goes_on_after_the_last_event(api: httpx.Client, router: FakeRouter):
    router.updates = [update(7, ("1", b"1"))]
    for how in ({"headers": {"Last-Event-ID": "topic/3:6"}}, {"query": "?last_event_id=topic/3:6"}):
        url = f"{root(api)}/boards/keys/1/watch{how.get('query', '')}"
        with watching(url, **how.get("headers", {})) as reader:  # type: ignore[arg-type]
            assert reader.take(1)[0].at == "topic/3:7"
        resumed = asked(router)
        assert [(each.partition, each.position, each.topic_id) for each in resumed.resume] == [(3, 6, "topic")]
        assert resumed.key.text == "1"
    assert api.get("/boards/watch", params={"last_event_id": "3:6"}).status_code == 400


def test_a_watch_that_cannot_begin_has_a_status_and_one_that_ends_a_problem(api: httpx.Client, router: FakeRouter):
    poll_until(
        lambda: api.get("/other/watch").json()["reason"] == "UNKNOWN_STORE", 10.0, "the refusal of an unknown store"
    )
    router.ending = LookupFailure(Reason.NO_REPLICA_AVAILABLE, "gone")
    with watching(f"{root(api)}/boards/watch") as reader:
        (event,) = list(reader)

    assert (event.name, event.body["reason"]) == ("problem", "NO_REPLICA_AVAILABLE")


def test_watches_are_bounded_and_give_their_places_back(api: httpx.Client):
    url = f"{root(api)}/boards/watch"
    for _ in range(2):
        with watching(url), watching(url):
            refused = api.get("/boards/watch")
            assert (refused.status_code, refused.json()["reason"]) == (503, "OVERLOADED")


def test_browsers_are_told_to_be_careful(api: httpx.Client):
    headers = api.get("/boards/keys/1").headers

    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "private, no-cache"
    assert "server" not in headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost:80"}, 200),
        ({"Host": "192.0.2.7"}, 200),
        ({"Host": "a@localhost"}, 421),
    ],
)
def test_only_names_of_this_server_are_answered(api: httpx.Client, headers: dict[str, str], status: int):
    assert api.get("/boards/keys/1", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({}, 200),
    ],
)
def test_pages_of_other_sites_cannot_post(api: httpx.Client, headers: dict[str, str], status: int):
    assert api.post("/boards/batch", json={"keys": ["1"]}, headers=headers).status_code == status


def test_the_root_says_what_this_is_and_leads_on(api: httpx.Client):
    base = root(api).removesuffix("/v1/stores")
    answer = httpx.get(f"{base}/v1")
    assert answer.status_code == 200
    said = answer.json()
    assert said["name"] == "Statehouse"
    assert [httpx.get(base + said[link]).status_code for link in ("openapi", "stores")] == [200, 200]


def test_the_document_describes_each_operation(api: httpx.Client):
    described = json.loads(httpx.get(root(api).replace("/stores", "/openapi.json")).content)

    assert described["openapi"] == "3.1.0"
    get = described["paths"]["/v1/stores/{store}/keys/{key}"]["get"]
    assert {each["name"] for each in get["parameters"]} >= {"store", "key", "max_lag", "at_least", "timeout_ms", "raw"}
    assert set(get["responses"]) >= {"200", "304", "404", "503"}
    assert HOST.instance_id not in json.dumps(described)
