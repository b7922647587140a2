"""Routers' addresses as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.client import AsyncClient, Client
from statehouse.client.addresses import addresses
from statehouse.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given_target", "called"),
    [
        ("127.0.0.1", ["127.0.0.1:7100"]),
        ("router-1", ["router-1:7100"]),
        (" a , b:1 ,", ["a:7100", "b:1"]),
        ("::1", ["[::1]:7100"]),
        ("[::1]", ["[::1]:7100"]),
        ("[::1]:9", ["[::1]:9"]),
        ("dns:///routers:7100", ["dns:///routers:7100"]),
        ("unix:/run/router", ["unix:/run/router"]),
    ],
)
def test_an_address_without_a_port_gets_the_routers(given_target: str, called: list[str]):
    assert addresses(given_target) == called


@pytest.mark.parametrize(
    ("given_target", "right"),
    [
        ("http://router-1:8080", r"'http://router-1:8080' is a URL, .* as 'router-1:7100'$"),
        ("https://router-1/v1", r"as 'router-1:7100', and tls=ClientTls\(\.\.\.\) for TLS$"),
        ("grpc://[::1]:5", r"as '\[::1\]:7100'$"),
        ("http://[", r"as 'router-1:7100'$"),
        ("a:b", "'a:b' is no router's address: give host:port, as 127.0.0.1:7100"),
        ("a:0", "is no router's address"),
        ("a:65536", "is no router's address"),
        ("a b:1", "is no router's address"),
        ("a/b", "is no router's address"),
        ("", "names no router"),
    ],
)
def test_what_is_no_address_is_refused_with_the_right_form(given_target: str, right: str):
    for make in (addresses, Client, AsyncClient):
        with pytest.raises(ConfigurationError, match=right):
            make(given_target)


@given(st.text())
def test_what_is_taken_is_taken_again_as_it_is(target: str):
    try:
        taken = addresses(target)
    except ConfigurationError:
        return
    assert addresses(",".join(taken)) == taken
