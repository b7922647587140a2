"""Names that a server answers to, sites that may change something, and tokens of forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.web import csrf
from statehouse.web.hosts import allowed_names, is_allowed, is_own_site, name_in

NAMES = allowed_names("0.0.0.0", " Board.House, , [::2]")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:7000", True),
        ("127.0.0.1:7000", True),
        ("[::1]:7000", True),
        ("board.house", True),
        ("10.1.2.3", True),
        ("[2001:db8::1]", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("evil.example:localhost", False),
        ("localhost@evil.example", False),
        ("localhost, evil.example", False),
        ("localhost/", False),
        ("", False),
        (":7000", False),
        ("[evil]", False),
        ("localhost ", False),
    ],
)
def test_names(host: str, allowed: bool):
    assert is_allowed(host, NAMES) is allowed


def test_all_names_where_that_is_said():
    assert is_allowed("anything.example", allowed_names("box", "*"))
    assert not is_allowed("", allowed_names("box", "*"))


@given(st.text())
def test_any_header_is_judged(host: str):
    name = name_in(host)
    assert name is None or name == name.lower()


@pytest.mark.parametrize(
    ("origin", "fetch_site", "own"),
    [
        (None, None, True),
        ("https://board.house:7000", None, True),
        ("https://BOARD.house:7000", "same-origin", True),
        ("http://board.house:7000", None, False),
        ("https://board.house", None, False),
        ("null", None, False),
        (None, "cross-site", False),
        (None, "same-site", False),
        ("https://board.house:7000", "cross-site", False),
        (None, "none", True),
    ],
)
def test_sites(origin: str | None, fetch_site: str | None, own: bool):
    assert is_own_site("https", "board.house:7000", origin, fetch_site) is own


@pytest.mark.feature("http-route-identities")
def test_a_forms_token_fits_its_cookie_and_secret_only():
    secret, cookie = b"s" * csrf.SECRET_BYTES, "c" * 43
    token = csrf.token_of(secret, cookie)

    assert csrf.is_valid(secret, cookie, token)
    for wrong in ((b"t" * 32, cookie, token), (secret, "d" * 43, token), (secret, cookie, token[:-1] + "_")):
        assert not csrf.is_valid(*wrong)
    for absent in ((None, token), (cookie, None), (cookie, ""), ("short", csrf.token_of(secret, "short"))):
        assert not csrf.is_valid(secret, *absent)
    assert not csrf.is_valid(secret, cookie, "\u00e9\ud800")
