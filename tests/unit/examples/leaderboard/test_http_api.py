"""The leaderboard's routes, answered by a client that reads a dictionary."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from examples.leaderboard.http_api import READS, ROOT, answer
from statehouse.client import Answer, Entry, EntryCount, Host
from statehouse.errors import LookupFailure, Reason
from tests.support.http_api import Api, api_of

BOARD = b'[{"playerId":3,"productId":1,"playerName":"Isabelle","gameName":"Super Smash Bros","score":4000}]'
OTHER = b'[{"playerId":2,"productId":6,"playerName":"Mitch","gameName":"Mario Kart","score":12.5}]'


class FakeStore:
    """What the API needs of a client."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {"1": BOARD, "6": OTHER}
        self.failure: LookupFailure | None = None

    async def get(self, _store: str, key: str, *, raw: bool) -> Answer:
        assert raw
        self._fail()
        value = self.values.get(key)
        return Answer(value is not None, value, 0, 1, Host("node-a", "", 0), "ACTIVE", 0, 0, 0)

    async def scan(
        self, _store: str, *, from_key: str | None, to_key: str | None, page_size: int, raw: bool
    ) -> AsyncIterator[Entry]:
        assert raw
        assert page_size > 0
        self._fail()
        for key in sorted(self.values, key=str.encode):
            if (from_key or "").encode() <= key.encode() and (to_key is None or key.encode() <= to_key.encode()):
                yield Entry(key.encode(), self.values[key])

    async def count(self, _store: str, *, exact: bool) -> EntryCount:
        assert exact
        self._fail()
        return EntryCount(len(self.values), exact, ())

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def api(store: FakeStore) -> Api:
    return api_of(store, ROOT, READS, answer)


def test_one_product_is_its_stored_document_byte_for_byte(api: Api):
    answer = api("/leaderboard/6")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.content == OTHER


def test_all_products_are_an_object_by_id(api: Api):
    assert api("/leaderboard").content == b'{"1":' + BOARD + b',"6":' + OTHER + b"}"


def test_no_products_are_an_empty_object(api: Api, store: FakeStore):
    store.values.clear()

    assert api("/leaderboard").content == b"{}"
    assert api("/leaderboard/count").content == b"0"


def test_count_is_a_bare_number_and_comes_before_ids(api: Api, store: FakeStore):
    store.values["count"] = BOARD

    assert api("/leaderboard/count").content == b"3"


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("/leaderboard/1/6", ["1", "10", "6"]),
        ("/leaderboard/10/6", ["10", "6"]),
        ("/leaderboard/2/6", ["6"]),
        ("/leaderboard/6/1", []),
        ("/leaderboard/1/1", ["1"]),
    ],
)
def test_a_range_includes_both_ends_in_byte_order(api: Api, store: FakeStore, path: str, keys: list[str]):
    store.values["10"] = BOARD

    assert list(api(path).json()) == keys


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("/leaderboard/a%2Fb", ["a/b"]),
        ("/leaderboard/caf%C3%A9", ["café"]),
        ("/leaderboard/100%25", ["100%"]),
        ("/leaderboard/a%20b", ["a b"]),
        ("/leaderboard/x+y", ["x+y"]),
    ],
)
def test_an_id_is_decoded_by_itself(api: Api, store: FakeStore, path: str, keys: list[str]):
    store.values = dict.fromkeys(keys, BOARD)

    assert api(path).content == BOARD


def test_an_encoded_slash_in_a_range_is_part_of_an_id(api: Api, store: FakeStore):
    store.values = {"a/b": BOARD, "a/d": OTHER}

    assert list(api("/leaderboard/a%2Fa/a%2Fc").json()) == ["a/b"]


def test_an_id_that_json_must_escape(api: Api, store: FakeStore):
    store.values = {'say "hi"': BOARD}

    assert list(api("/leaderboard").json()) == ['say "hi"']


def test_an_absent_product_is_404_with_a_reason(api: Api):
    answer = api("/leaderboard/9")

    assert answer.status_code == 404
    assert answer.json()["error"]["reason"] == "NOT_FOUND"


@pytest.mark.parametrize("path", ["/", "/leaderboard/", "/leaderboard/1/", "/leaderboard/1/2/3", "/other/1"])
def test_other_paths_are_404(api: Api, path: str):
    assert api(path).status_code == 404


def test_a_path_that_is_no_text_is_400(api: Api):
    assert api("/leaderboard/%FF").status_code == 400


@pytest.mark.parametrize("path", ["/leaderboard", "/leaderboard/1", "/leaderboard/count", "/leaderboard/1/6"])
@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (Reason.NO_REPLICA_AVAILABLE, 503),
        (Reason.UNREACHABLE, 503),
        (Reason.ROUTING_NOT_READY, 503),
        (Reason.UNKNOWN_STORE, 503),
        (Reason.OVERLOADED, 503),
        (Reason.DEADLINE_EXCEEDED, 503),
        (Reason.INVALID_KEY, 400),
        (Reason.INTERNAL, 500),
    ],
)
def test_a_failed_lookup_says_why(api: Api, store: FakeStore, path: str, reason: Reason, status: int):
    store.failure = LookupFailure(reason, "because")

    answer = api(path)

    assert answer.status_code == status
    assert answer.json()["error"]["reason"] == reason.name
    assert "because" in answer.json()["error"]["message"]


def test_a_value_that_is_no_json_does_not_break_the_answer(api: Api, store: FakeStore):
    store.values["7"] = b"\xff"

    assert api("/leaderboard/7").status_code == 500
    assert api("/leaderboard").json()["error"]["reason"] == "VALUE_UNDECODABLE"
    assert api("/leaderboard/1").status_code == 200
