"""Static tokens by their hashes, JSON web tokens by the keys of a file."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from statehouse.errors import ConfigurationError
from statehouse.security.bearer_tokens import KEYS_BYTES_MAX, JwtVerifier, TokenRefused, VerifiedToken, entries_of
from statehouse.security.rules import JwtRules, RulesEntry
from tests.support.bearer_tokens import AUDIENCE, ISSUER, TokenIssuer

RULES = JwtRules("jwks.json", ("RS256", "ES256", "EdDSA", "PS256"), ISSUER, AUDIENCE, 30)


@pytest.fixture(scope="module")
def issuer() -> TokenIssuer:
    return TokenIssuer()


def verifier(issuer: TokenIssuer, rules: JwtRules = RULES) -> JwtVerifier:
    return JwtVerifier(rules, json.dumps({"keys": issuer.keys()}).encode())


@pytest.mark.parametrize("algorithm", RULES.algorithms)
def test_a_good_token_tells_its_subject_and_its_end(issuer: TokenIssuer, algorithm: str):
    end = int(time.time()) + 50
    verified = verifier(issuer).verify(issuer.token(algorithm, exp=end))
    assert verified == VerifiedToken("reports@house", end + 30)


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"lasts_s": -31}, "expired"),
        ({"nbf": int(time.time()) + 10_000}, "doesn't hold yet"),
        ({"iat": int(time.time()) + 10_000}, "doesn't hold yet"),
        ({"exp": None}, "lacks one of the claims"),
        ({"iss": None}, "lacks one of the claims"),
        ({"aud": None}, "lacks one of the claims"),
        ({"sub": None}, "lacks one of the claims"),
        ({"aud": "other"}, "another audience"),
        ({"iss": "https://other.house"}, "another issuer"),
        ({"sub": 7}, "no JSON web token"),
        ({"exp": "soon"}, "no JSON web token"),
        ({"exp": float("inf")}, "no JSON web token"),
        ({"kid": "other"}, "no kid"),
        ({"kid": "RS256"}, "isn't its key's"),
    ],
)
def test_a_token_that_is_wrong_is_refused(issuer: TokenIssuer, claims: dict[str, Any], said: str):
    token = issuer.token(**claims)
    with pytest.raises(TokenRefused, match=said) as caught:
        verifier(issuer).verify(token)
    assert not any(part in str(caught.value) for part in token.split("."))


def test_clocks_may_differ_a_little(issuer: TokenIssuer):
    assert verifier(issuer).verify(issuer.token(lasts_s=-20)).subject == "reports@house"


def test_another_issuers_token_is_refused(issuer: TokenIssuer):
    for algorithm in RULES.algorithms:
        with pytest.raises(TokenRefused, match="signature"):
            verifier(issuer).verify(TokenIssuer().token(algorithm))


def test_an_algorithm_that_the_rules_lack_is_refused(issuer: TokenIssuer):
    only_rsa = JwtRules("jwks.json", ("RS256",), ISSUER, AUDIENCE, 30)
    with pytest.raises(TokenRefused, match="no kid"):
        verifier(issuer, only_rsa).verify(issuer.token("ES256"))
    with pytest.raises(TokenRefused, match="algorithm"):
        verifier(issuer, only_rsa).verify(issuer.token("PS256", kid="RS256"))


def b64(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_a_public_key_is_no_secret_to_sign_with(issuer: TokenIssuer):
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "reports@house", "exp": int(time.time()) + 60}
    unsigned = f"{b64({'alg': 'none', 'kid': 'ES256'})}.{b64(claims)}."
    secret = issuer.keys()[0]["n"].encode()
    by_public_key = jwt.api_jws.PyJWS().encode(json.dumps(claims).encode(), secret, "HS256", {"kid": "RS256"})
    for token in (unsigned, by_public_key):
        with pytest.raises(TokenRefused, match="algorithm"):
            verifier(issuer).verify(token)


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "\ud800.x.y",
        f"{b64(b'[' * 4_000)}.e30.e30",
        f"{b64({'kid': ['a'], 'alg': 'ES256'})}.e30.e30",
        f"{b64({'kid': {}, 'alg': 'ES256'})}.e30.e30",
        f"{b64({'kid': 'ES256', 'alg': 'ES256', 'b64': False, 'crit': ['b64']})}..e30",
        f"{b64({'kid': 'ES256', 'alg': 'ES256'})}.e30.e30",
        f"{b64([1])}.e30.e30",
    ],
)
def test_what_is_no_token_is_refused(issuer: TokenIssuer, token: str):
    with pytest.raises(TokenRefused):
        verifier(issuer).verify(token)


def problem(content: bytes) -> str:
    with pytest.raises(ConfigurationError) as caught:
        JwtVerifier(RULES, content)
    return str(caught.value)


def test_a_file_with_keys_that_is_wrong_is_refused(issuer: TokenIssuer):
    assert "no JSON" in problem(b"{")
    assert "no JSON" in problem(b"[" * 100_000)
    assert 'no list "keys"' in problem(b"[]")
    assert "has none for RS256, ES256, EdDSA, PS256" in problem(b'{"keys": []}')
    assert "MiB" in problem(b" " * (KEYS_BYTES_MAX + 1))
    first = issuer.keys()[0]
    assert "key 2 has the kid of another" in problem(json.dumps({"keys": [first, first]}).encode())
    without_kid = {name: value for name, value in first.items() if name != "kid"}
    assert "with a kid" in problem(json.dumps({"keys": [without_kid, 3]}).encode())


def test_secrets_among_the_keys_are_refused_and_not_repeated(issuer: TokenIssuer):
    private: dict[str, Any] = RSAAlgorithm.to_jwk(issuer.secrets["RS256"], as_dict=True)
    shared = {"kty": "oct", "k": "c2VjcmV0", "kid": "a"}
    for key in ({**private, "kid": "a"}, shared):
        found = problem(json.dumps({"keys": [key]}).encode())
        assert "key 1 is a secret" in found
        assert not any(str(value) in found for name, value in key.items() if name in {"d", "k", "n"})


def test_a_short_key_is_refused():
    key = rsa.generate_private_key(65_537, 1_024)  # noqa: S505 - what is refused
    public: dict[str, Any] = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    assert "fewer than 2048 bits" in problem(json.dumps({"keys": [{**public, "kid": "a"}]}).encode())


def test_keys_that_are_not_for_these_tokens_are_passed_over(issuer: TokenIssuer):
    others = [
        {**issuer.keys()[0], "kid": "x", "use": "enc"},
        {"kty": "OKP", "crv": "X25519", "x": "AAAA", "kid": "y"},
        {"kty": "EC", "crv": "P-256", "x": "?", "y": "?", "kid": "z"},
    ]
    content = json.dumps({"keys": [*others, *issuer.keys()]}).encode()
    assert JwtVerifier(RULES, content).verify(issuer.token()).subject == "reports@house"
    with pytest.raises(TokenRefused, match="no kid"):
        JwtVerifier(RULES, content).verify(issuer.token("RS256", kid="x"))


def test_a_static_token_is_known_by_its_hash():
    one, two = RulesEntry("one", ()), RulesEntry("two", ())
    hashes = [hashlib.sha256(name).digest() for name in (b"a", b"b")]
    tokens = ((hashes[0], one), (hashes[1], two), (hashes[0], two), (hashes[0], one))
    assert entries_of("a", tokens) == (one, two)
    assert entries_of("b", tokens) == (two,)
    assert entries_of("c", tokens) == entries_of("", tokens) == entries_of("\ud800", tokens) == ()
