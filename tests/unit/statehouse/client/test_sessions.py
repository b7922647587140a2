"""Tokens of answers, and sessions that carry them, against a router in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from statehouse.client import Answer, AsyncClient, Client, Freshness, Lookup, ReadSession, Token
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fake_router import STAMP, FakeRouter, fake_router

SEEN = Token({("boards", 3): 12})  # as the fake router's stamp says
EARLIER = Token({("boards", 1): 4, ("boards", 3): 2, ("other", 0): 9})

# How each read is made, and the token it should give.
READS: dict[str, Callable[[Any], Any]] = {
    "get": lambda reads: reads.get("boards", "1"),
    "get_as_of": lambda reads: reads.get_as_of("boards", "1"),
    "batch_get": lambda reads: reads.batch_get([Lookup("boards", "1")]),
    "pages": lambda reads: list(reads.pages("boards")),
    "scan": lambda reads: list(reads.scan("boards")),
    "window_pages": lambda reads: list(reads.window_pages("boards")),
    "scan_windows": lambda reads: list(reads.scan_windows("boards")),
    "session_pages": lambda reads: list(reads.session_pages("boards")),
    "scan_sessions": lambda reads: list(reads.scan_sessions("boards")),
    "get_history": lambda reads: list(reads.get_history("boards", "1")),
    "fetch_windows": lambda reads: list(reads.fetch_windows("boards", "1")),
    "fetch_sessions": lambda reads: list(reads.fetch_sessions("boards", "1")),
    "query_store": lambda reads: reads.query_store("boards", "1", "q"),
    "count": lambda reads: reads.count("boards"),
}


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with fake_router() as router:
        router.values = {"1": {"score": 1}, "6": {"score": 6}}
        yield router


@pytest.fixture
def client(router: FakeRouter) -> Iterator[Client]:
    with Client(router.target) as client:
        yield client


def asked(router: FakeRouter, nth: int = -1) -> Token:
    """Return what a request, the last one say, wants to be reached."""
    request = router.requests[nth]
    request = request.requests[0] if isinstance(request, query_service_pb2.BatchGetRequest) else request
    return Token.from_proto(request.freshness.at_least)


def test_answers_have_tokens(client: Client) -> None:
    tokens = [
        client.get("boards", "1").token,
        client.get_as_of("boards", "1").token,
        next(client.pages("boards")).token,
        next(client.window_pages("boards")).token,
        client.query_store("boards", "1", "q").token,
        client.count("boards").token,
    ]
    assert tokens == [SEEN] * len(tokens)
    (outcome,) = client.batch_get([Lookup("boards", "1")])
    assert isinstance(outcome, Answer)
    assert outcome.token == SEEN


@pytest.mark.parametrize("name", sorted(READS.keys() - {"batch_get"}))
def test_a_token_travels_with_a_read_as_far_as_it_concerns_the_store(
    client: Client, router: FakeRouter, name: str
) -> None:
    class WithToken:
        def __getattr__(self, method: str) -> Any:
            return lambda *arguments: getattr(client, method)(*arguments, at_least=EARLIER)

    READS[name](WithToken())
    assert asked(router) == Token({("boards", 1): 4, ("boards", 3): 2})


def test_the_keyword_and_the_bounds_are_merged(client: Client, router: FakeRouter) -> None:
    bounds = Freshness(max_lag=5, at_least=Token({("boards", 3): 7}))
    client.get("boards", "1", freshness=bounds, at_least=EARLIER)
    assert asked(router) == Token({("boards", 1): 4, ("boards", 3): 7})
    assert router.requests[-1].freshness.max_lag == 5
    client.batch_get([Lookup("boards", "1", bounds)])
    assert asked(router) == Token({("boards", 3): 7})


@pytest.mark.parametrize("name", READS)
def test_a_session_shows_each_read_what_those_before_it_saw(client: Client, router: FakeRouter, name: str) -> None:
    with client.session() as session:
        READS[name](session)
        assert not asked(router, 0)
        assert session.token == SEEN
        session.get("boards", "1")
        assert asked(router) == SEEN
        READS[name](session)
        assert asked(router) == SEEN


def test_a_session_goes_on_from_a_token_and_keeps_other_bounds(client: Client, router: FakeRouter) -> None:
    session = client.session(Token.parse(str(EARLIER)))
    session.get("boards", "1", freshness=Freshness(active_only=True))
    assert router.requests[-1].freshness.active_only
    assert asked(router) == Token({("boards", 1): 4, ("boards", 3): 2})
    assert session.token == EARLIER | SEEN
    assert client.session().token == Token()


def test_each_page_of_a_session_is_shown_what_the_one_before_saw(client: Client, router: FakeRouter) -> None:
    pages = client.session().pages("boards", page_size=1)
    next(pages)
    assert not router.requests[-1].HasField("freshness")
    next(pages)
    assert asked(router) == SEEN


def test_a_watch_of_a_session_counts(client: Client, router: FakeRouter) -> None:
    event = query_service_pb2.WatchEvent(key=types_pb2.Key(text="1"), offset=20, timestamp_ms=1)
    router.updates = [query_service_pb2.WatchResponse(replica=STAMP, events=[event], position=21)]
    session: ReadSession = client.session(EARLIER)
    with session.watch("boards", "1") as watch:
        update = next(watch)
    assert asked(router) == Token({("boards", 1): 4, ("boards", 3): 2})
    assert update.token == Token({("boards", 3): 21})
    assert session.token == EARLIER | update.token


async def test_an_asynchronous_session(router: FakeRouter) -> None:
    async with AsyncClient(router.target) as client, client.session() as session:
        await session.get("boards", "1")
        await session.count("boards")
        assert asked(router) == session.token == SEEN
