"""How many connections may be open, in all and of an address."""

from __future__ import annotations

import socket

from hypothesis import given
from hypothesis import strategies as st

from statehouse.local.ports import LOOPBACK
from statehouse.web.connection_limit import Bound, ConnectionLimit, ServerSocket

HERE, THERE = "10.0.0.1", "10.0.0.2"


def test_what_is_small_is_sent_at_once():
    """asyncio switches the waiting off for sockets that name their protocol."""
    with ServerSocket((LOOPBACK, 0), socket.AF_INET, ConnectionLimit(1, None)) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_an_address_alone_has_half():
    places = ConnectionLimit(4, None)
    assert [places.enter(HERE) for _ in range(3)] == [None, None, Bound.ADDRESS]
    assert [places.enter(THERE) for _ in range(2)] == [None, Bound.ADDRESS]
    places.leave(HERE)
    assert places.enter(HERE) is None


def test_what_an_address_may_have_can_be_set():
    places = ConnectionLimit(4, 3)
    assert [places.enter(HERE) for _ in range(4)] == [None, None, None, Bound.ADDRESS]
    assert [places.enter(THERE) for _ in range(2)] == [None, Bound.ALL]


def test_a_network_of_ipv6_is_one_caller():
    places = ConnectionLimit(10, 1)
    assert places.enter("2001:db8::1") is None
    assert places.enter("2001:db8::2%eth0") is Bound.ADDRESS
    assert places.enter("2001:db8:0:1::2") is None


@given(st.integers(1, 6), st.none() | st.integers(1, 6), st.lists(st.tuples(st.booleans(), st.integers(0, 2))))
def test_places_are_never_more_than_there_are(most: int, each: int | None, moves: list[tuple[bool, int]]):
    places, held = ConnectionLimit(most, each), [0, 0, 0]
    for comes, number in moves:
        if comes:
            held[number] += places.enter(f"10.0.0.{number}") is None
        elif held[number]:
            places.leave(f"10.0.0.{number}")
            held[number] -= 1
        assert places.taken == sum(held) <= most
        assert each is None or max(held) <= each
