"""How many connections may be open, in all and of an address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.runtime.address_limits import AddressLimit, Bound, WaitingLimit

HERE, THERE = "10.0.0.1", "10.0.0.2"


def test_an_address_alone_has_half():
    places = AddressLimit(4, None)
    assert [places.enter(HERE) for _ in range(3)] == [None, None, Bound.ADDRESS]
    assert [places.enter(THERE) for _ in range(2)] == [None, Bound.ADDRESS]
    places.leave(HERE)
    assert places.enter(HERE) is None


def test_what_an_address_may_have_can_be_set():
    places = AddressLimit(4, 3)
    assert [places.enter(HERE) for _ in range(4)] == [None, None, None, Bound.ADDRESS]
    assert [places.enter(THERE) for _ in range(2)] == [None, Bound.ALL]


def test_a_network_of_ipv6_is_one_caller():
    places = AddressLimit(10, 1)
    assert places.enter("2001:db8::1") is None
    assert places.enter("2001:db8::2%eth0") is Bound.ADDRESS
    assert places.enter("2001:db8:0:1::2") is None


def test_an_address_of_ipv4_is_one_caller_however_it_is_written():
    places = AddressLimit(10, 1)
    assert places.enter("10.0.0.1") is None
    assert places.enter("::ffff:10.0.0.1") is Bound.ADDRESS
    assert places.enter("::ffff:10.0.0.2") is None
    assert places.enter("no:address") is None


@pytest.mark.feature("denials-over-http")
@given(st.integers(1, 6), st.none() | st.integers(1, 6), st.lists(st.tuples(st.booleans(), st.integers(0, 2))))
def test_places_are_never_more_than_there_are(most: int, each: int | None, moves: list[tuple[bool, int]]):
    places, held = AddressLimit(most, each), [0, 0, 0]
    for comes, number in moves:
        if comes:
            held[number] += places.enter(f"10.0.0.{number}") is None
        elif held[number]:
            places.leave(f"10.0.0.{number}")
            held[number] -= 1
        assert places.taken == sum(held) <= most
        assert each is None or max(held) <= each


def test_who_waits_longest_makes_room_and_nobody_with_little_for_somebody_with_much():
    waiting = WaitingLimit(3)
    assert [waiting.enter(1, THERE), waiting.enter(2, HERE), waiting.enter(3, HERE)] == [None, None, None]
    assert waiting.enter(4, HERE) == 2
    assert waiting.enter(5, "10.0.0.3") == 3
    waiting.leave(3)  # who has lost their place leaves, too
    assert waiting.taken == 3


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=60))
def test_whoever_comes_waits_and_loses_it_only_to_its_own_address_or_to_one_with_less(
    most: int, moves: list[tuple[bool, int]]
):
    waiting, addresses = WaitingLimit(most), dict[int, str]()
    for number, (comes, who) in enumerate(moves):
        address = f"10.0.0.{who}"
        if comes:
            addresses[number] = address
            loser = waiting.enter(number, address)
            if loser is not None:
                held = [each for each in addresses.values() if each == addresses[loser]]
                assert all(list(addresses.values()).count(each) <= len(held) for each in addresses.values())
                assert loser == min(each for each, at in addresses.items() if at == addresses[loser])
                del addresses[loser]
                assert number in addresses or len(held) > 1 or most == 0
        elif addresses:
            waiting.leave(addresses.popitem()[0])
        assert waiting.taken == len(addresses) <= most
