"""Tokens: merging is a maximum, nothing is lost on the way, and what holds of a replica goes on to hold."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.consistency import Freshness, ReplicaFreshness, violation
from statehouse.contract.positions import MAX_POSITIONS, Token
from statehouse.contract.topology import Role
from statehouse.errors import Reason
from statehouse.v1 import types_pb2

places = st.tuples(st.sampled_from(["a", "b", "c-c"]), st.integers(0, 3))
positions = st.integers(0, 2**63 - 1)
tokens = st.dictionaries(places, positions, max_size=8).map(Token)


@given(tokens, tokens, tokens)
def test_merging_is_a_maximum(a: Token, b: Token, c: Token) -> None:
    assert a | b == b | a
    assert (a | b) | c == a | (b | c)
    assert a | a == a | Token() == Token() | a == a
    assert hash(a | b) == hash(b | a)
    for store in "a", "b", "c-c":
        for partition in range(4):
            both = (a | b).position(store, partition)
            assert both == max(a.position(store, partition), b.position(store, partition))


@given(tokens)
def test_every_form_gives_the_token_back(token: Token) -> None:
    assert Token.from_bytes(token.to_bytes()) == token
    assert Token.parse(str(token)) == token
    assert Token.from_proto(token.to_proto()) == token
    assert pickle.loads(pickle.dumps(token)) == copy.deepcopy(token) == token  # noqa: S301 - our own
    assert all(each.isalnum() or each in "-_" for each in str(token))  # as it is, in a cookie, a header or a URL


@given(st.lists(st.tuples(places, positions), max_size=12))
def test_of_several_entries_the_largest_counts(entries: list[tuple[tuple[str, int], int]]) -> None:
    message = types_pb2.Positions(
        positions=[
            types_pb2.StorePosition(store=store, partition=partition, position=position)
            for (store, partition), position in entries
        ]
    )
    merged = Token()
    for place, position in entries:
        merged |= Token({place: position})
    assert Token.from_proto(message) == merged


@given(tokens, places, st.none() | positions, positions)
def test_a_replica_violates_the_bound_until_it_is_there(
    token: Token, place: tuple[str, int], position: int | None, more: int
) -> None:
    def reason(position: int | None) -> Reason | None:
        known = ReplicaFreshness(Role.STANDBY, confirmed=True, lag=None, staleness_ms=None, position=position)
        broken = violation(Freshness(at_least=token), known, *place)
        return None if broken is None else broken[0]

    wanted = token.position(*place)
    assert (reason(position) is None) == (wanted == 0 or (position or 0) >= wanted)
    assert reason(position) in {None, Reason.POSITION_NOT_REACHED}
    if reason(position) is None and position is not None:
        assert reason(position + more) is None


@given(st.binary(max_size=60))
def test_what_is_no_token_is_refused(data: bytes) -> None:
    try:
        token = Token.from_bytes(data)
    except ValueError:
        return
    assert Token.from_bytes(token.to_bytes()) == token


@pytest.mark.parametrize("text", ["x", "ä", "AAAA", "a b", str(Token({("s", 0): 1}))[:-4]])
def test_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a token"):
        Token.parse(text)


def test_a_token_is_bounded() -> None:
    full = Token({("s", partition): 1 for partition in range(MAX_POSITIONS)})
    assert Token.parse(str(full)) == full
    with pytest.raises(ValueError, match="at most"):
        full | Token({("t", 0): 1})
    with pytest.raises(ValueError, match="negative"):
        Token({("s", 0): -1})
    with pytest.raises(ValueError, match="negative"):
        Token.from_proto(types_pb2.Positions(positions=[types_pb2.StorePosition(store="s", position=-1)]))
